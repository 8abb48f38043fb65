"""Whether the process lives (``/healthz``) and whether it can work (``/readyz``)."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from webapp.core import health


@require_safe
@login_not_required
def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
@login_not_required
def readyz(request: HttpRequest) -> HttpResponse:
    checks = health.checks()
    ready = all(value == "ok" for value in checks.values())
    return JsonResponse(checks, status=200 if ready else 503)
