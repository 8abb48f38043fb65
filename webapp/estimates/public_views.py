"""The shared page: one frozen estimate for whoever has the address, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from webapp.core.limits import limited_page
from webapp.core.throttle import SHARE_VIEW
from webapp.estimates import charts, selectors

HEADERS = {
    "X-Robots-Tag": "noindex, nofollow",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
View = Callable[[HttpRequest, str], HttpResponseBase]


def _public(view: View) -> View:
    """Open to strangers, rate-limited, and with the headers of a private address."""

    @require_safe
    @login_not_required
    @wraps(view)
    def inner(request: HttpRequest, token: str) -> HttpResponseBase:
        response = limited_page(SHARE_VIEW, methods=("GET", "HEAD"))(view)(request, token)
        for name, value in HEADERS.items():
            response[name] = value
        return response

    return inner


@_public
def shared(request: HttpRequest, token: str) -> HttpResponse:
    estimate = selectors.estimate_for_token(token)
    if estimate is None:
        return render(request, "estimates/not_found.html", status=404)
    context = {
        "document": estimate.document,
        "sha256": estimate.sha256,
        "figures": charts.figures(estimate.document),
        "token": token,
    }
    return render(request, "estimates/shared.html", context)


@_public
def shared_json(request: HttpRequest, token: str) -> HttpResponse:
    estimate = selectors.estimate_for_token(token)
    if estimate is None:
        return JsonResponse({"error": "There is nothing here."}, status=404)
    return JsonResponse(estimate.document, json_dumps_params={"indent": 2})
