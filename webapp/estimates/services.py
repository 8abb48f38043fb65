"""Changes to estimates: freeze one from an experiment, share it, take a share back."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from calculator.estimate import document_sha256
from webapp.accounts.models import User
from webapp.core import audit
from webapp.core.errors import Refusal
from webapp.estimates import selectors
from webapp.estimates.freezing import frozen_document
from webapp.estimates.models import Estimate, ShareLink
from webapp.experiments.models import Experiment

SHARE_DAYS = 30
SHARE_DAYS_MOST = 365


@transaction.atomic
def from_experiment(
    experiment: Experiment,
    comparison_document: Mapping[str, Any],
    verdict_document: Mapping[str, Any],
    user: User,
    title: str,
) -> Estimate:
    """Freeze what the comparison of one arm says, as the next version for that arm.

    The documents are those of ``calculator.comparison`` and ``calculator.verdict``: comparisons are
    this app's sibling, so its caller passes them in. Refused: no title.
    """
    title = title.strip()
    if not title or len(title) > 200:
        raise Refusal("Give the estimate a title of 1 to 200 characters.")
    # One at a time for an experiment, so that versions are counted without a gap.
    Experiment.objects.select_for_update().get(pk=experiment.pk)
    document = frozen_document(experiment, comparison_document, verdict_document, title)
    arm = str(comparison_document["candidate"])
    versions = Estimate.objects.filter(experiment_public_id=experiment.public_id, arm=arm)
    last = versions.aggregate(last=Max("version"))["last"] or 0
    estimate = Estimate.objects.create(
        workspace_id=experiment.workspace_id,
        created_by=user,
        experiment_public_id=experiment.public_id,
        arm=arm,
        title=title,
        version=last + 1,
        document=document,
    )
    # Hashed as the database gives it back: it writes -0.0 and 1e16 in its own way.
    estimate.refresh_from_db(fields=["document"])
    estimate.sha256 = document_sha256(estimate.document)
    estimate.save(update_fields=["sha256"])
    audit.record(
        user, experiment.workspace, "estimate.made", estimate,
        version=estimate.version, sha256=estimate.sha256,
    )  # fmt: skip
    return estimate


@transaction.atomic
def share(estimate: Estimate, user: User, days: int = SHARE_DAYS) -> tuple[ShareLink, str]:
    """A new link and its token, which is shown once and kept nowhere.

    Refused: an altered document, and fewer than 1 or more than 365 days.
    """
    if not 1 <= days <= SHARE_DAYS_MOST:
        raise Refusal(f"A link can work for 1 to {SHARE_DAYS_MOST} days.")
    selectors.checked_document(estimate)
    token = secrets.token_urlsafe(32)
    link = ShareLink.objects.create(
        estimate=estimate,
        created_by=user,
        token_sha256=selectors.token_sha256(token),
        expires_at=timezone.now() + timedelta(days=days),
    )
    audit.record(user, estimate.workspace, "link.made", link, days=days)
    return link, token


@transaction.atomic
def revoke(link: ShareLink, user: User) -> None:
    """End a link now. Twice is once."""
    rows = ShareLink.objects.filter(pk=link.pk, revoked_at=None)
    if rows.update(revoked_at=timezone.now()):
        audit.record(user, link.workspace, "link.revoked", link, views=link.views)
    link.refresh_from_db()
