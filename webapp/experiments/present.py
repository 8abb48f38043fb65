"""What the pages of an experiment show, built from its rows. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from runner.plan import ExperimentPlan, PlanError, RequestInfo, schedule
from runner.plan_codec import from_document
from webapp.experiments.models import Experiment, Run
from webapp.experiments.states import TRIAL_MEASURED, RunState

NONE = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One run of the review page, counted from 1."""

    number: int
    arm: str
    block: int
    levels: str


def plan_of(experiment: Experiment) -> ExperimentPlan:
    return from_document(experiment.plan)


def runs_of(experiment: Experiment) -> list[Run]:
    """Every run with its trials, in two queries."""
    return list(experiment.runs.select_related("slot").prefetch_related("trials"))


def estimated_usd(experiment: Experiment, plan: ExperimentPlan) -> Decimal | None:
    """What the engine-hours of the whole experiment cost; None when its duration is unknown."""
    if experiment.estimated_s is None:
        return None
    return plan.price.usd_per_hour * Decimal(str(experiment.estimated_s)) / 3600


def planned_rows(plan: ExperimentPlan, prompts: int) -> list[PlannedRow]:
    """The runs in their order, from counts alone; empty when the plan can't be scheduled now."""
    try:
        runs = schedule(plan, [RequestInfo(str(number)) for number in range(prompts)])
    except PlanError:
        return []
    return [
        PlannedRow(
            run.index + 1,
            run.arm.name,
            run.block + 1,
            ", ".join(str(trial.level.concurrency) for trial in run.trials),
        )
        for run in runs
    ]


def measured(runs: Sequence[Run]) -> dict[str, int]:
    """Trials planned, and how many of them some attempt recorded."""
    planned = {(run.index, trial.index) for run in runs for trial in run.trials.all()}
    recorded = {
        (run.index, trial.index)
        for run in runs
        for trial in run.trials.all()
        if trial.state in TRIAL_MEASURED
    }
    return {"recorded": len(recorded), "total": len(planned)}


def findings(runs: Sequence[Run]) -> list[Run]:
    """For each arm its first run that the engine refused or that failed at the last attempt."""
    latest = {run.index: run for run in runs}
    found: dict[str, Run] = {}
    for run in latest.values():
        if run.state in (RunState.UNSUPPORTED, RunState.FAILED) and run.reason:
            found.setdefault(run.arm, run)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class SettingRow:
    name: str
    values: list[str]
    differs: bool


def settings_side_by_side(runs: Sequence[Run]) -> tuple[list[str], list[SettingRow]]:
    """(arms, rows): the fingerprint of each arm's first start, one row per setting.

    Differing rows come first. A setting that an arm does not have is shown as a dash.
    """
    first: dict[str, dict[str, str]] = {}
    for run in runs:
        if run.fingerprint and run.arm not in first:
            first[run.arm] = dict(_flat(run.fingerprint))
    names = list(dict.fromkeys(name for flat in first.values() for name in flat))
    rows = []
    for name in names:
        values = [flat.get(name, NONE) for flat in first.values()]
        rows.append(SettingRow(name, values, len(set(values)) > 1))
    rows.sort(key=lambda row: not row.differs)
    return list(first), rows


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [
            pair
            for key, inner in value.items()
            for pair in _flat(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(value, list):
        return [(prefix, " ".join(str(item) for item in value) or "none")]
    return [(prefix, "unknown" if value is None else str(value))]
