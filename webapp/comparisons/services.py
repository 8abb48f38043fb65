"""Turns an experiment's measurements into comparisons and verdicts, once, when it has ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import DatabaseError, InterfaceError, transaction

from calculator.answers import OutputRecord
from calculator.answers import from_document as from_row
from calculator.columns import Trials
from calculator.measurement import ClientHealth, SpeculationCounters, TrialRecord
from runner.analysis import compare_plan
from runner.plan_codec import from_document
from webapp.comparisons.models import Comparison
from webapp.core.nudge import nudge
from webapp.experiments.measurements import load
from webapp.experiments.models import Experiment, Trial
from webapp.experiments.services import finish
from webapp.experiments.settlement import (
    ANALYSE,
    candidate_arms,
    refused_arms,
    shortfall,
)
from webapp.experiments.states import TRIAL_MEASURED, ExperimentState

log = logging.getLogger(__name__)


def analyse(experiment_id: int) -> None:
    """Compare every measured candidate with the baseline and end the experiment.

    Safe to do twice: the same measurements give the same documents, and only an experiment that
    is being analysed is ended. A database that is away leaves it for the sweep; any other error
    ends it as failed, with its measurements kept.
    """
    experiment = Experiment.objects.filter(
        pk=experiment_id, state=ExperimentState.ANALYSING
    ).first()
    if experiment is None:
        return
    try:
        documents = _compare_all(experiment)
    except (DatabaseError, InterfaceError):
        raise
    except Exception as error:
        log.exception("experiment %s could not be analysed", experiment.public_id)
        reason = (
            f"The comparison could not be computed ({type(error).__name__}). All measurements are "
            "kept; resume to compute it again."
        )
        finish(experiment.pk, ExperimentState.FAILED, reason)
        return
    with transaction.atomic():
        for arm, document, decided in documents:
            Comparison.objects.update_or_create(
                experiment=experiment,
                arm=arm,
                defaults={
                    "schema_version": document["schema_version"],
                    "document": document,
                    "verdict": decided,
                },
            )
        state, reason = _end_state(experiment, [arm for arm, _, _ in documents])
        finish(experiment.pk, state, reason)


def sweep() -> int:
    """Nudge again for experiments whose analysis got lost; how many."""
    waiting = Experiment.objects.filter(state=ExperimentState.ANALYSING)
    ids = list(waiting.values_list("pk", flat=True))
    for experiment_id in ids:
        nudge(ANALYSE, experiment_id)
    return len(ids)


def _compare_all(experiment: Experiment) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(arm, comparison document, verdict document) of each candidate that was measured."""
    plan = from_document(experiment.plan)
    trials = Trials.of(_records(experiment))
    outputs = _outputs(experiment)
    measured = {trial.arm for trial in trials.columns}
    return [
        (arm, *compare_plan(plan, trials, arm, outputs))
        for arm in candidate_arms(experiment)
        if arm in measured
    ]


def _records(experiment: Experiment) -> Iterator[TrialRecord]:
    """Every measured trial, in the plan's order, read when its turn comes. What may not be believed
    the comparison says."""
    trials = list(
        Trial.objects.filter(run__experiment=experiment, state__in=TRIAL_MEASURED)
        .select_related("run")
        .order_by("run__index", "index")
    )
    for trial in trials:
        yield TrialRecord(
            arm=trial.run.arm,
            run=trial.run.index,
            block=trial.run.block,
            concurrency=trial.concurrency,
            duration_s=trial.duration_s or 0.0,
            measurements=load([trial.pk])[trial.pk],
            counters=_counters(trial.counters),
            client=ClientHealth(**trial.client) if trial.client else None,
            invalid_reasons=tuple(trial.reasons),
        )


def _counters(row: dict[str, Any] | None) -> SpeculationCounters | None:
    if row is None:
        return None
    positions = tuple(row["accepted_per_position"])
    return SpeculationCounters(**{**row, "accepted_per_position": positions})


def _outputs(experiment: Experiment) -> dict[int, OutputRecord]:
    """By run index; the latest attempt that made the check counts."""
    rows = experiment.runs.order_by("attempt").values_list("index", "output")
    return {index: from_row(document) for index, document in rows if document}


def _end_state(experiment: Experiment, compared: Sequence[str]) -> tuple[ExperimentState, str]:
    missing = shortfall(experiment)
    if missing:
        return ExperimentState.PARTIAL, missing
    refused = refused_arms(experiment)
    if not compared and refused:
        arm, why = next(iter(refused.items()))
        every = "the candidate" if len(refused) == 1 else f"all {len(refused)} candidates"
        return ExperimentState.DONE, f"The engine refused {every}. {arm}: {why}"
    return ExperimentState.DONE, ""
