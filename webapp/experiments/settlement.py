"""After a run has ended: what that means for the runs still waiting, and for the experiment."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from webapp.core.nudge import nudge_on_commit
from webapp.experiments.lease import move_experiment
from webapp.experiments.models import Experiment, Run, Trial
from webapp.experiments.states import (
    RUN_ACTIVE,
    TRIAL_MEASURED,
    ExperimentState,
    RunState,
)

EXECUTE_NEXT = "experiments.execute_next"
ANALYSE = "comparisons.analyse"


def baseline_arm(experiment: Experiment) -> str:
    """The name of the arm without speculation."""
    arms = experiment.plan["arms"]
    return str(next(arm["name"] for arm in arms if arm.get("method", "none") == "none"))


def candidate_arms(experiment: Experiment) -> list[str]:
    baseline = baseline_arm(experiment)
    return [str(arm["name"]) for arm in experiment.plan["arms"] if arm["name"] != baseline]


def settle(experiment_id: int) -> None:
    """Wake a worker for the next run or, after the last one, whoever analyses."""
    with transaction.atomic():
        experiment = Experiment.objects.select_for_update().get(pk=experiment_id)
        if experiment.state not in (ExperimentState.QUEUED, ExperimentState.RUNNING):
            return
        _spread_refusals(experiment)
        if experiment.runs.filter(state__in=RUN_ACTIVE).exists():
            return
        if experiment.runs.filter(state=RunState.PENDING).exists():
            nudge_on_commit(EXECUTE_NEXT)
        else:
            _all_runs_ended(experiment)


def _spread_refusals(experiment: Experiment) -> None:
    """What the engine refused once it would refuse again: don't start it for that."""
    for refused in experiment.runs.filter(state=RunState.UNSUPPORTED).exclude(reason=""):
        waiting = experiment.runs.filter(state=RunState.PENDING)
        if refused.arm == baseline_arm(experiment):
            waiting.update(
                state=RunState.CANCELLED,
                reason="Not started: the engine refused the baseline, so nothing can be compared.",
                ended_at=Now(),
            )
        waiting.filter(arm=refused.arm).update(
            state=RunState.UNSUPPORTED, code=refused.code, reason=refused.reason, ended_at=Now()
        )


def _all_runs_ended(experiment: Experiment) -> None:
    move_experiment(experiment.pk, ExperimentState.RUNNING, started_at=Now())
    baseline = baseline_arm(experiment)
    measured = Trial.objects.filter(
        run__experiment=experiment, run__arm=baseline, state__in=TRIAL_MEASURED
    )
    if measured.exists():
        move_experiment(experiment.pk, ExperimentState.ANALYSING)
        nudge_on_commit(ANALYSE, experiment.pk)
        return
    begun = experiment.runs.filter(arm=baseline, started_at__isnull=False)
    last = begun.exclude(reason="").last()
    why = last.reason if last else "Its runs ended without a recorded trial."
    move_experiment(
        experiment.pk,
        ExperimentState.FAILED,
        reason=f"The baseline was never measured, so there is nothing to compare with. {why}",
        ended_at=Now(),
    )


def shortfall(experiment: Experiment) -> str:
    """One sentence on what could not be measured; empty when everything was.

    An arm that the engine refused is a finding and counts as measured.
    """
    runs: dict[int, Run] = {run.index: run for run in experiment.runs.order_by("attempt")}
    measured = set(
        Trial.objects.filter(run__experiment=experiment, state__in=TRIAL_MEASURED).values_list(
            "run__index", "index"
        )
    )
    planned = set(
        Trial.objects.filter(run__experiment=experiment).values_list("run__index", "index")
    )
    refused = {index for index, run in runs.items() if run.state == RunState.UNSUPPORTED}
    missing = {place for place in planned - measured if place[0] not in refused}
    if not missing:
        return ""
    first = runs[min(missing)[0]]
    reason = first.reason or "The run ended early."
    return (
        f"{len(missing)} of {len(planned)} trials could not be measured. "
        f"Run {first.index + 1} ({first.arm}): {reason}"
    )


def refused_arms(experiment: Experiment) -> dict[str, str]:
    """Candidate arms that the engine refused, with its reason."""
    refused = experiment.runs.filter(state=RunState.UNSUPPORTED).order_by("index", "attempt")
    return {run.arm: run.reason for run in refused}
