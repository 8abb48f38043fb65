"""Reads of experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from django.contrib.postgres.aggregates import JSONBAgg
from django.db.models import JSONField, Q, QuerySet, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import JSONObject

from webapp.accounts.models import Workspace
from webapp.experiments import progress as progress_of
from webapp.experiments.models import Experiment
from webapp.experiments.progress import Progress
from webapp.fleet.selectors import slots_alive

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations


class Glance(TypedDict):
    """What ``for_workspace`` adds to each experiment."""

    verdicts: list[dict[str, str]]


def for_workspace(workspace: Workspace) -> QuerySet[WithAnnotations[Experiment, Glance]]:
    """The workspace's experiments, newest first, in one query with its sample and target.

    ``verdicts`` is a list of {"arm", "code", "sentence"}: comparisons are a layer above, so they
    are joined by the name of the relation; their documents stay in the database.
    """
    return (
        Experiment.objects.filter(workspace=workspace)
        .select_related("sample", "target")
        # Said here: an aggregate drops the model's own order.
        .order_by("-created_at", "-pk")
        .annotate(
            verdicts=JSONBAgg(
                JSONObject(
                    arm="comparisons__arm",
                    code=KeyTextTransform("code", "comparisons__verdict"),
                    sentence=KeyTextTransform("sentence", "comparisons__verdict"),
                ),
                filter=Q(comparisons__isnull=False),
                default=Value([], output_field=JSONField()),
                order_by="comparisons__id",
            )
        )
    )


def progress(experiment: Experiment) -> Progress:
    """How far it is, as of now."""
    return progress_of.of(experiment, worker_alive=slots_alive().exists())
