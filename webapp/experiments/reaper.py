"""Closes runs whose worker is gone, and lets the experiment go on."""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from webapp.core.nudge import nudge
from webapp.experiments.lease import claimable_experiments, free_slot_exists
from webapp.experiments.models import Experiment, Run
from webapp.experiments.recorder import fail_open_trials
from webapp.experiments.settlement import EXECUTE_NEXT, settle
from webapp.experiments.states import RUN_ACTIVE, ExperimentState, RunState
from webapp.experiments.succession import add_successor
from webapp.experiments.timing import LOSSES_ALLOWED

log = logging.getLogger(__name__)

WORKER_LOST = "worker_lost"
LOST_SENTENCE = (
    "The worker that measured this run stopped answering; it may have been killed or its machine "
    "restarted. Trials recorded before are kept."
)
GIVEN_UP = " It was lost {n} times, so it isn't started again by itself; resume to try once more."


def reap() -> int:
    """Close every run whose lease has lapsed; how many. Wakes a worker where work waits."""
    lapsed = Run.objects.filter(state__in=RUN_ACTIVE, lease_until__lt=Now())
    closed = sum(
        close_lost(run_id, fence, WORKER_LOST, LOST_SENTENCE)
        for run_id, fence in lapsed.values_list("pk", "fence")
    )
    for experiment in _unsettled():
        settle(experiment)
    if claimable_experiments().exists() and free_slot_exists():
        nudge(EXECUTE_NEXT)
    return closed


def close_lost(run_id: int, fence: int, code: str, reason: str) -> bool:
    """Close one run as failed, its fence made stale, and plan its successor.

    False when it had ended, or was claimed again, in the meantime.
    """
    run = Run.objects.get(pk=run_id)
    with transaction.atomic():
        experiment = Experiment.objects.select_for_update().get(pk=run.experiment_id)
        open_run = Run.objects.filter(pk=run_id, fence=fence, state__in=RUN_ACTIVE)
        going_on = experiment.state in (ExperimentState.QUEUED, ExperimentState.RUNNING)
        final = going_on and run.losses >= LOSSES_ALLOWED
        closed = open_run.update(
            state=RunState.FAILED,
            fence=fence + 1,
            code=code,
            reason=reason + (GIVEN_UP.format(n=run.losses + 1) if final else ""),
            ended_at=Now(),
            lease_until=None,
        )
        if closed != 1:
            return False
        fail_open_trials(run_id)
        if going_on and not final:
            add_successor(run, losses=run.losses + 1)
    log.warning("run %s of experiment %s closed: %s", run.index, experiment.public_id, code)
    settle(run.experiment_id)
    return True


def _unsettled() -> list[int]:
    """Experiments whose runs have all ended without anybody noticing."""
    still_open = Run.objects.filter(
        experiment=OuterRef("pk"), state__in=(*RUN_ACTIVE, RunState.PENDING)
    )
    waiting = Experiment.objects.filter(
        ~Exists(still_open), state__in=(ExperimentState.QUEUED, ExperimentState.RUNNING)
    )
    return list(waiting.values_list("pk", flat=True))
