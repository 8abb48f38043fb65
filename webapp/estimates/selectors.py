"""Reads of estimates. A document is shown only while it is what was frozen."""

from __future__ import annotations

import hashlib
import logging

from django.db.models import F, QuerySet
from django.utils import timezone

from calculator.estimate import verify
from webapp.accounts.models import Workspace
from webapp.core.errors import Refusal
from webapp.estimates.models import Estimate, ShareLink

log = logging.getLogger(__name__)


def for_workspace(workspace: Workspace) -> QuerySet[Estimate]:
    """The workspace's estimates, newest first."""
    return Estimate.objects.filter(workspace=workspace)


def links_of(estimate: Estimate) -> QuerySet[ShareLink]:
    """Every link to the estimate, newest first, with who made it."""
    return estimate.links.select_related("created_by")


def is_intact(estimate: Estimate) -> bool:
    """Whether the document is the one whose hash was kept when it was frozen."""
    if verify(estimate.document, estimate.sha256):
        return True
    log.error("estimate %s is not what was frozen", estimate.public_id)
    return False


def checked_document(estimate: Estimate) -> dict[str, object]:
    """The document; Refusal when it was altered after it was frozen."""
    if not is_intact(estimate):
        raise Refusal("This estimate was altered after it was made; make a new one.")
    document: dict[str, object] = estimate.document
    return document


def token_sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def estimate_for_token(token: str) -> Estimate | None:
    """The estimate that a link shows, and one more view of it.

    None for an unknown, an expired and a revoked link alike, and for an altered document: whoever
    asks cannot tell them apart.
    """
    links = ShareLink.objects.filter(
        token_sha256=token_sha256(token), revoked_at=None, expires_at__gt=timezone.now()
    )
    link = links.select_related("estimate").first()
    if link is None or not is_intact(link.estimate):
        return None
    links.update(views=F("views") + 1)
    return link.estimate
