"""Turns what a run reports into rows, each trial in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from django.db import close_old_connections, transaction
from django.db.models.functions import Now

from calculator import answers
from runner.events import (
    EngineReady,
    Event,
    LogTail,
    OutputChecked,
    Phase,
    Progress,
    RunEnded,
    TrialRecorded,
    TrialStarted,
    WarmedUp,
)
from webapp.experiments import lease as leases
from webapp.experiments.keeper import Keeper
from webapp.experiments.lease import Lease, LeaseLost
from webapp.experiments.measurements import copy_in, request_key, storable
from webapp.experiments.models import Trial
from webapp.experiments.patience import patiently
from webapp.experiments.states import TRIAL_MEASURED, RunState, TrialState, sources
from webapp.experiments.states import TRIAL_MOVES as MOVES

LOG_LINES = 40
LOG_LINE_LENGTH = 400
REASON_LENGTH = 1000


def log_lines(lines: list[str]) -> list[str]:
    return [storable(line, LOG_LINE_LENGTH) for line in lines[-LOG_LINES:]]


class Recorder:
    """The ``emit`` of one run. Raises LeaseLost as soon as the run is no longer ours."""

    def __init__(self, lease: Lease, keeper: Keeper) -> None:
        self.lease = lease
        self.keeper = keeper
        rows = Trial.objects.filter(run_id=lease.run_id).values_list("index", "pk")
        self._trials: dict[int, int] = dict(rows)

    def __call__(self, event: Event) -> None:
        if self.keeper.lost.is_set():
            raise LeaseLost
        match event:
            case Progress(trial=index, done=done):
                self.keeper.show_progress(self._trials[index], done)
            case LogTail(lines=lines):
                self.keeper.show_log(log_lines(lines))
            case _:
                close_old_connections()
                patiently(self._writing(event))

    def _writing(self, event: Event) -> Callable[[], None]:
        match event:
            case Phase(name=name):
                return lambda: leases.move(self.lease, RunState(name))
            case EngineReady():
                return lambda: self._ready(event)
            case WarmedUp(result=found):
                return lambda: leases.write(self.lease, warm_up=asdict(found))
            case TrialStarted(trial=index):
                return lambda: self._start_trial(self._trials[index])
            case TrialRecorded():
                return lambda: self._record(event)
            case OutputChecked(record=record):
                by_key = {request_key(name): one for name, one in record.answers.items()}
                kept = answers.to_document(replace(record, answers=by_key))
                return lambda: leases.write(self.lease, output=kept)
            case RunEnded():
                return lambda: end_run(self.lease, event)
        raise TypeError(type(event).__name__)

    def _ready(self, event: EngineReady) -> None:
        fingerprint = {**event.fingerprint, "device": self.lease.device}
        leases.write(self.lease, fingerprint=fingerprint, engine_start_s=event.start_s)

    def _start_trial(self, trial_id: int) -> None:
        self._move_trial(trial_id, TrialState.RUNNING, done=0)

    def _record(self, event: TrialRecorded) -> None:
        trial_id = self._trials[event.trial]
        reasons = list(event.invalid_reasons)
        state = TrialState.INVALID if reasons else TrialState.RECORDED
        with transaction.atomic():
            # Locked until the commit: nobody can close the run while its trial is written.
            if not self.lease.held().select_for_update().exists():
                raise LeaseLost
            if Trial.objects.filter(pk=trial_id, state__in=TRIAL_MEASURED).exists():
                return  # the commit of an earlier try had happened
            copy_in(trial_id, event.measurements)
            self._move_trial(
                trial_id,
                state,
                reasons=reasons,
                done=len(event.measurements),
                duration_s=event.duration_s,
                counters=asdict(event.counters) if event.counters else None,
                client=asdict(event.client),
            )

    def _move_trial(self, trial_id: int, state: TrialState, **values: Any) -> None:
        trial = self.lease.held_trials().filter(pk=trial_id)
        if trial.filter(state__in=sources(MOVES, state)).update(state=state, **values) == 1:
            return
        if not trial.filter(state=state).exists():
            raise LeaseLost


def end_run(lease: Lease, ended: RunEnded) -> None:
    """The last write of a run, in one transaction with the trials it leaves unmeasured."""
    state = RunState(ended.status)
    values: dict[str, Any] = {
        "code": storable(ended.code or "", 40),
        "reason": storable(ended.reason or "", REASON_LENGTH),
        "ended_at": Now(),
        "lease_until": None,
    }
    if ended.log_tail:
        values["log_tail"] = log_lines(ended.log_tail)
    with transaction.atomic():
        leases.move(lease, state, **values)
        fail_open_trials(lease.run_id)


def fail_open_trials(run_id: int) -> None:
    """A trial that was under way when its run ended was not measured."""
    running = Trial.objects.filter(run_id=run_id, state=TrialState.RUNNING)
    running.update(state=TrialState.FAILED)
