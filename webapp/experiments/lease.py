"""Who may measure what: one run, one slot, one worker, told apart by a fence.

A claim raises the run's fence. Every later write names the fence in its WHERE, so that a worker
that was given up for lost can wake up and write nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from webapp.experiments.models import Experiment, Run, Trial
from webapp.experiments.states import (
    EXPERIMENT_MOVES,
    RUN_ACTIVE,
    RUN_MOVES,
    ExperimentState,
    RunState,
    sources,
)
from webapp.experiments.timing import times
from webapp.fleet.models import Slot

SLOT_GONE_AFTER = timedelta(minutes=5)


class LeaseLost(Exception):
    """Somebody else closed or took this run; nothing more may be written for it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write for one run while its fence stands."""

    run_id: int
    experiment_id: int
    fence: int
    slot_id: int
    device: str

    def held(self) -> QuerySet[Run]:
        """The run, if this lease still stands; updates go through it."""
        return Run.objects.filter(pk=self.run_id, fence=self.fence, state__in=RUN_ACTIVE)

    def held_trials(self) -> QuerySet[Trial]:
        return Trial.objects.filter(
            run_id=self.run_id, run__fence=self.fence, run__state__in=RUN_ACTIVE
        )


def claim(host: str, worker: str) -> Lease | None:
    """The next pending run with a free slot of ``host``, or None. One transaction.

    Runs of one experiment go strictly in order, one at a time and on one slot, so that A B B A
    holds and no arm measures another device.
    """
    with transaction.atomic():
        for slot in _free_slots(host):
            for experiment in _waiting_experiments():
                run = _next_run(experiment) if _suits(slot, experiment) else None
                if run:
                    return _take(run, experiment, slot, worker)
    return None


def _free_slots(host: str) -> Iterator[Slot]:
    for slot_id in Slot.objects.filter(host=host, enabled=True).values_list("pk", flat=True):
        locked = (
            Slot.objects.select_for_update(skip_locked=True)
            .filter(pk=slot_id, enabled=True)
            .first()
        )
        # Asked after the lock, in a statement of its own: it sees what the last holder committed.
        if locked and not Run.objects.filter(slot=locked, state__in=RUN_ACTIVE).exists():
            yield locked


def free_slot_exists() -> bool:
    """Whether any host has room. Cheap and without locks: it only decides on a nudge."""
    taken = Run.objects.filter(slot=OuterRef("pk"), state__in=RUN_ACTIVE)
    return Slot.objects.filter(~Exists(taken), enabled=True).exists()


def claimable_experiments() -> QuerySet[Experiment]:
    """Experiments with a pending run and none active; those already begun come first."""
    runs = Run.objects.filter(experiment=OuterRef("pk"))
    return Experiment.objects.filter(
        Exists(runs.filter(state=RunState.PENDING)),
        ~Exists(runs.filter(state__in=RUN_ACTIVE)),
        state__in=(ExperimentState.QUEUED, ExperimentState.RUNNING),
    ).order_by(F("started_at").asc(nulls_last=True), "created_at", "pk")


def _waiting_experiments() -> Iterator[Experiment]:
    for experiment_id in claimable_experiments().values_list("pk", flat=True):
        locked = (
            Experiment.objects.select_for_update(skip_locked=True)
            .filter(pk=experiment_id, state__in=(ExperimentState.QUEUED, ExperimentState.RUNNING))
            .first()
        )
        if locked and not locked.runs.filter(state__in=RUN_ACTIVE).exists():
            yield locked


def _suits(slot: Slot, experiment: Experiment) -> bool:
    """Whether ``slot`` measured this experiment before, or the one that did is gone."""
    used = Slot.objects.filter(runs__experiment=experiment).order_by("-runs__started_at").first()
    if used is None or used.pk == slot.pk:
        return True
    alive_since = timezone.now() - SLOT_GONE_AFTER
    return not (used.enabled and used.seen_at and used.seen_at > alive_since)


def _next_run(experiment: Experiment) -> Run | None:
    return experiment.runs.filter(state=RunState.PENDING).order_by("index", "attempt").first()


def _take(run: Run, experiment: Experiment, slot: Slot, worker: str) -> Lease | None:
    taken = Run.objects.filter(pk=run.pk, state__in=sources(RUN_MOVES, RunState.STARTING)).update(
        state=RunState.STARTING,
        fence=F("fence") + 1,
        slot=slot,
        worker=worker[:120],
        lease_until=lease_end(),
        started_at=Now(),
    )
    if taken != 1:
        return None
    move_experiment(experiment.pk, ExperimentState.RUNNING)
    Experiment.objects.filter(pk=experiment.pk, started_at=None).update(started_at=Now())
    return Lease(run.pk, experiment.pk, run.fence + 1, slot.pk, slot.device)


def lease_end() -> Any:
    """By the database's clock, as is every question whether it has passed."""
    return Now() + timedelta(seconds=times().lease_ttl_s)


def renew(lease: Lease) -> None:
    """One heartbeat. Raises LeaseLost."""
    if lease.held().update(lease_until=lease_end()) != 1:
        raise LeaseLost
    Slot.objects.filter(pk=lease.slot_id).update(seen_at=Now())


def write(lease: Lease, **values: Any) -> None:
    """Set columns of the run. Raises LeaseLost when the fence is stale."""
    if lease.held().update(**values) != 1:
        raise LeaseLost


def move(lease: Lease, state: RunState, **values: Any) -> None:
    """Move the run, by the table. Writing a move twice is no error. Raises LeaseLost."""
    allowed = lease.held().filter(state__in=sources(RUN_MOVES, state))
    if allowed.update(state=state, **values) == 1:
        return
    again = Run.objects.filter(pk=lease.run_id, fence=lease.fence, state=state)
    if not again.exists():
        raise LeaseLost


def move_experiment(
    experiment_id: int, state: ExperimentState, *, only_from: Iterable[str] = (), **values: Any
) -> bool:
    """Move an experiment, by the table; False when it was not in a state that allows it."""
    allowed = sources(EXPERIMENT_MOVES, state)
    if only_from:
        allowed = [name for name in allowed if name in set(only_from)]
    moved = Experiment.objects.filter(pk=experiment_id, state__in=allowed)
    return moved.update(state=state, **values) == 1
