"""Reads of samples."""

from __future__ import annotations

from datetime import date, timedelta

from django.db.models import QuerySet
from django.utils import timezone

from runner.traffic.request import NormalisedRequest
from runner.traffic.store import load_requests as load_file
from webapp.accounts.models import Workspace
from webapp.core.errors import Refusal
from webapp.samples import storage
from webapp.samples.models import Sample

DELETED = "The text of this sample was deleted; upload it again to measure with it."

# Names of states, not their classes: experiments are a layer above samples.
_NEEDS_TEXT = ("queued", "running")


def for_workspace(workspace: Workspace) -> QuerySet[Sample]:
    """The workspace's samples, newest first."""
    return Sample.objects.filter(workspace=workspace)


def load_requests(sample: Sample) -> list[NormalisedRequest]:
    """The sample's requests with their text. Refusal when there are none to be had."""
    if sample.status == Sample.Status.DELETED:
        raise Refusal(DELETED)
    if sample.status != Sample.Status.READY:
        raise Refusal("This sample has not been read; wait for it, or upload another file.")
    try:
        return load_file(storage.requests_path(sample.stored_name))
    except FileNotFoundError:
        raise Refusal("The text of this sample is missing on disk; upload it again.") from None


def in_use(sample: Sample) -> bool:
    """Whether an experiment waits for the text or is being measured with it."""
    return sample.experiments.filter(state__in=_NEEDS_TEXT).exists()


def unread(older_than: timedelta) -> QuerySet[Sample]:
    """Uploads that nobody has read for a while: their nudge was lost, or its worker."""
    before = timezone.now() - older_than
    return Sample.objects.filter(status=Sample.Status.READING, created_at__lt=before)


def past_retention(today: date) -> QuerySet[Sample]:
    """Samples whose last day is over and whose text is still here."""
    rows = Sample.objects.filter(delete_after__lt=today)
    return rows.exclude(status=Sample.Status.DELETED)
