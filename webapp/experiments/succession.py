"""What of a planned run is still unmeasured, and the run that goes on from there."""

from __future__ import annotations

from django.db.models import Max

from webapp.experiments.models import Run, Trial
from webapp.experiments.states import TRIAL_MEASURED


def missing_trials(experiment_id: int, index: int) -> list[Trial]:
    """Planned trials of ``index`` that no attempt has measured, in order."""
    planned: dict[int, Trial] = {}
    measured: set[int] = set()
    for trial in Trial.objects.filter(run__experiment_id=experiment_id, run__index=index):
        planned.setdefault(trial.index, trial)
        if trial.state in TRIAL_MEASURED:
            measured.add(trial.index)
    return [planned[position] for position in sorted(planned) if position not in measured]


def add_successor(run: Run, *, losses: int) -> Run | None:
    """A pending run for what ``run`` and its forerunners left unmeasured; None if nothing.

    Its server start is another one: recorded trials stay with the run that measured them.
    """
    missing = missing_trials(run.experiment_id, run.index)
    if not missing:
        return None
    attempts = Run.objects.filter(experiment_id=run.experiment_id, index=run.index)
    last = attempts.aggregate(last=Max("attempt"))["last"]
    successor = Run.objects.create(
        experiment_id=run.experiment_id,
        index=run.index,
        attempt=last + 1,
        losses=losses,
        arm=run.arm,
        block=run.block,
    )
    Trial.objects.bulk_create(
        Trial(
            run=successor,
            index=trial.index,
            concurrency=trial.concurrency,
            requests=trial.requests,
        )
        for trial in missing
    )
    return successor
