"""A workspace's experiments and estimates, each with its verdict at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from webapp.accounts.models import Workspace
from webapp.core.templatetags.show import word
from webapp.estimates.models import Estimate
from webapp.experiments.models import Experiment
from webapp.experiments.selectors import for_workspace


@dataclass(frozen=True, slots=True)
class ArmVerdict:
    code: str
    label: str
    """Arm and verdict in words."""


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    experiment: Experiment
    verdicts: list[ArmVerdict]


def experiments_at_a_glance(workspace: Workspace) -> list[ExperimentRow]:
    """Newest first, in one query; the comparisons' documents stay in the database."""
    return [
        ExperimentRow(
            experiment,
            [
                ArmVerdict(found["code"], f"{found['arm']}: {str(word(found['code'])).lower()}")
                for found in experiment.verdicts
            ],
        )
        for experiment in for_workspace(workspace)
    ]


def estimates_at_a_glance(workspace: Workspace) -> list[dict[str, object]]:
    """Newest first, without loading the documents."""
    rows = Estimate.objects.filter(workspace=workspace).order_by("-created_at")
    wanted = ("public_id", "title", "version", "created_at", "document__verdict__code")
    return [{**row, "verdict_code": row["document__verdict__code"]} for row in rows.values(*wanted)]
