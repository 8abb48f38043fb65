"""What goes into a frozen estimate: everything it needs to be read on its own, and no more.

It is shown to whoever holds a link, so it names no person, no folder and nothing of the sample but
counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from calculator import estimate
from runner.arms import deploy_command
from runner.plan import Arm, ExperimentPlan
from runner.plan_codec import from_document
from webapp.core.errors import Refusal
from webapp.experiments.models import Experiment
from webapp.experiments.states import ExperimentState

_ENDED = (ExperimentState.DONE, ExperimentState.PARTIAL, ExperimentState.CANCELLED)


def frozen_document(
    experiment: Experiment,
    comparison_document: Mapping[str, Any],
    verdict_document: Mapping[str, Any],
    title: str,
) -> dict[str, Any]:
    """``calculator.estimate``'s document for the arm that the comparison is about.

    Refused: an experiment that has not ended, and a comparison of an arm that its plan lacks.
    """
    if experiment.state not in _ENDED:
        raise Refusal("Wait for the end of the experiment; then its costs can be estimated.")
    plan = from_document(experiment.plan)
    arm = _arm(plan, str(comparison_document["candidate"]))
    frozen = estimate.build(
        title=title,
        made_at=timezone.now(),
        arm=arm.name,
        baseline=str(comparison_document["baseline"]),
        target=_target(experiment, plan, arm),
        design=_design(plan),
        usd_per_hour=plan.price.usd_per_hour,
        price_source=plan.price.source,
        price_as_of=plan.price.as_of,
        requests_per_month=plan.decision.requests_per_month,
        peak_to_mean=plan.decision.peak_to_mean,
        own_concurrency=plan.decision.own_concurrency,
        comparison=comparison_document,
        verdict=verdict_document,
        command="" if plan.target.engine == "simulator" else deploy_command(plan.target, arm),
        notes=_notes(experiment, plan),
    )
    document: dict[str, Any] = estimate.to_document(frozen)
    return document


def _arm(plan: ExperimentPlan, name: str) -> Arm:
    found = next((arm for arm in plan.arms if arm.name == name), None)
    if found is None:
        raise Refusal("This arm is not part of the experiment; choose one that was measured.")
    return found


def _target(experiment: Experiment, plan: ExperimentPlan, arm: Arm) -> dict[str, Any]:
    """The model under the operator's name for it: its location may be a folder."""
    return {
        "name": experiment.target.name,
        "engine": plan.target.engine,
        "engine_version": _engine_version(experiment, arm),
        "dtype": plan.target.dtype,
    }


def _engine_version(experiment: Experiment, arm: Arm) -> str | None:
    """What the arm's starts said of themselves; None when none did."""
    prints = experiment.runs.filter(arm=arm.name).values_list("fingerprint", flat=True)
    versions = {str(found["engine_version"]) for found in prints if found.get("engine_version")}
    return ", ".join(sorted(versions)) or None


def _design(plan: ExperimentPlan) -> dict[str, Any]:
    return {
        "runs_per_arm": plan.design.runs_per_arm,
        "levels": [
            {"concurrency": level.concurrency, "requests": level.requests} for level in plan.levels
        ],
        "requests": sum(level.requests for level in plan.levels),
        "seed": plan.design.seed,
        "max_output_tokens": plan.design.max_output_tokens,
    }


def _notes(experiment: Experiment, plan: ExperimentPlan) -> list[str]:
    notes = []
    if plan.target.engine == "simulator":
        notes.append("Measured on the simulator: these are not the figures of a real model.")
    if experiment.state != ExperimentState.DONE:
        notes.append("Part of the planned measurements is missing.")
    return notes
