"""An estimate, and who it is shared with."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from webapp.accounts.access import may_write, owned
from webapp.accounts.people import signed_in
from webapp.core.errors import Refusal
from webapp.estimates import charts, selectors, services
from webapp.estimates.models import Estimate, ShareLink


@require_safe
def detail(request: HttpRequest, public_id: UUID) -> HttpResponse:
    return _page(request, owned(Estimate, request.user, public_id))


@require_POST
def share(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Makes a link and shows it in this one answer; it is kept nowhere, so it can't be later."""
    estimate = owned(Estimate, request.user, public_id, write=True)
    try:
        link, token = services.share(estimate, signed_in(request))
    except Refusal as refusal:
        messages.error(request, refusal.sentence)
        return redirect("estimate", estimate.public_id)
    address = request.build_absolute_uri(reverse("shared", args=[token]))
    return _page(request, estimate, fresh_link=link, fresh_address=address)


@require_POST
def revoke(request: HttpRequest, public_id: UUID) -> HttpResponse:
    link = owned(ShareLink, request.user, public_id, write=True)
    services.revoke(link, signed_in(request))
    messages.success(request, "The link was revoked; its address shows nothing any more.")
    return redirect("estimate", link.estimate.public_id)


def _page(request: HttpRequest, estimate: Estimate, **extra: Any) -> HttpResponse:
    """The page of an intact estimate; an altered document is not shown to anybody."""
    try:
        document = selectors.checked_document(estimate)
    except Refusal as refusal:
        context = {"estimate": estimate, "sentence": refusal.sentence}
        return render(request, "estimates/altered.html", context, status=409)
    context = {
        "estimate": estimate,
        "document": document,
        "figures": charts.figures(document),
        "links": selectors.links_of(estimate),
        "may_change": may_write(request.user, estimate.workspace),
        **extra,
    }
    return render(request, "estimates/detail.html", context)
