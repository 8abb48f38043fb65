"""How far an experiment is: what the page of a running experiment shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.utils import timezone

from webapp.experiments.models import Experiment, Run, Trial
from webapp.experiments.states import (
    RUN_ACTIVE,
    TRIAL_MEASURED,
    ExperimentState,
    RunState,
    TrialState,
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One trial: a load level of a run."""

    concurrency: int
    state: str
    label: str
    done: int
    requests: int


@dataclass(frozen=True, slots=True)
class RunRow:
    """One attempt of a run, counted from 1. A cell is None where it has no trial at that load."""

    number: int
    attempt: int
    arm: str
    block: int
    state: str
    label: str
    reason: str
    cells: list[Cell | None]


@dataclass(frozen=True, slots=True)
class Progress:
    """``done`` and ``total`` count requests; ``share`` is 0 to 1, None before there are runs.

    ``seconds_left`` comes from this experiment's own finished runs, else from the plan; None
    when neither says anything.
    """

    state: str
    done: int
    total: int
    share: float | None
    trials_done: int
    trials_total: int
    runs_ended: int
    runs_total: int
    elapsed_s: float | None
    seconds_left: float | None
    phase: str
    waiting: str = ""
    concurrencies: list[int] = field(default_factory=list)
    runs: list[RunRow] = field(default_factory=list)
    log_tail: list[str] = field(default_factory=list)

    @property
    def percent(self) -> float | None:
        return None if self.share is None else 100 * self.share


def of(experiment: Experiment, *, worker_alive: bool) -> Progress:
    """Two queries; ``worker_alive`` says whether anybody could measure at all."""
    runs = list(experiment.runs.prefetch_related("trials"))
    now = timezone.now()
    best = _best_trials(runs)
    done = sum(_requests_done(trial) for trial in best.values())
    total = sum(trial.requests for trial in best.values())
    latest = {run.index: run for run in runs}
    active = next((run for run in runs if run.state in RUN_ACTIVE), None)
    concurrencies = sorted({trial.concurrency for trial in best.values()})
    return Progress(
        state=experiment.state,
        done=done,
        total=total,
        share=done / total if total else None,
        trials_done=sum(trial.state in TRIAL_MEASURED for trial in best.values()),
        trials_total=len(best),
        runs_ended=sum(_ended(run) for run in latest.values()),
        runs_total=len(latest),
        elapsed_s=_elapsed(experiment, now),
        seconds_left=_seconds_left(experiment, runs, latest, now),
        phase=_phase(experiment, active, best),
        waiting=_waiting(experiment, active, worker_alive),
        concurrencies=concurrencies,
        runs=[_row(run, concurrencies) for run in runs],
        log_tail=_log_tail(runs, active),
    )


def _ended(run: Run) -> bool:
    return run.state != RunState.PENDING and run.state not in RUN_ACTIVE


def _best_trials(runs: Sequence[Run]) -> dict[tuple[int, int], Trial]:
    """For each planned trial the attempt that measured it, else the latest."""
    best: dict[tuple[int, int], Trial] = {}
    for run in runs:
        for trial in run.trials.all():
            place = (run.index, trial.index)
            if place not in best or best[place].state not in TRIAL_MEASURED:
                best[place] = trial
    return best


def _requests_done(trial: Trial) -> int:
    """What a lost attempt had sent is measured again, so it does not count."""
    counts = trial.state in TRIAL_MEASURED or trial.state == TrialState.RUNNING
    return trial.done if counts else 0


def _row(run: Run, concurrencies: Sequence[int]) -> RunRow:
    cells = {
        trial.concurrency: Cell(
            trial.concurrency,
            trial.state,
            TrialState(trial.state).label,
            trial.done,
            trial.requests,
        )
        for trial in run.trials.all()
    }
    return RunRow(
        run.index + 1,
        run.attempt,
        run.arm,
        run.block,
        run.state,
        RunState(run.state).label,
        run.reason,
        [cells.get(concurrency) for concurrency in concurrencies],
    )


def _elapsed(experiment: Experiment, now: datetime) -> float | None:
    if experiment.started_at is None:
        return None
    return ((experiment.ended_at or now) - experiment.started_at).total_seconds()


def _seconds_left(
    experiment: Experiment, runs: Sequence[Run], latest: dict[int, Run], now: datetime
) -> float | None:
    if experiment.state not in (ExperimentState.QUEUED, ExperimentState.RUNNING):
        return None
    typical = _typical_run_s(experiment, runs, len(latest))
    if typical is None:
        return None
    pending = sum(run.state == RunState.PENDING for run in latest.values())
    left = pending * typical
    for run in latest.values():
        if run.state in RUN_ACTIVE and run.started_at:
            left += max(0.0, typical - (now - run.started_at).total_seconds())
    return left


def _typical_run_s(experiment: Experiment, runs: Sequence[Run], planned: int) -> float | None:
    """Mean duration of the recorded runs, else the plan's estimate for one."""
    took = [
        (run.ended_at - run.started_at).total_seconds()
        for run in runs
        if run.state == RunState.RECORDED and run.started_at and run.ended_at
    ]
    if took:
        return sum(took) / len(took)
    if experiment.estimated_s is None or not planned:
        return None
    return experiment.estimated_s / planned


def _phase(experiment: Experiment, active: Run | None, best: dict[tuple[int, int], Trial]) -> str:
    if active is None:
        return str(ExperimentState(experiment.state).label)
    running = [t for t in active.trials.all() if t.state == TrialState.RUNNING]
    label = str(RunState(active.state).label)
    if running and active.state == RunState.MEASURING:
        label = f"{label} {running[0].concurrency} in flight"
    return f"{label}: run {active.index + 1}, {active.arm}"


def _waiting(experiment: Experiment, active: Run | None, worker_alive: bool) -> str:
    """Why nothing happens, where something should."""
    open_states = (ExperimentState.QUEUED, ExperimentState.RUNNING)
    if active or experiment.state not in open_states:
        return ""
    if not worker_alive:
        return "No worker that runs engines was heard of lately; start one (queue gpu)."
    return "Waiting for a free engine slot."


def _log_tail(runs: Sequence[Run], active: Run | None) -> list[str]:
    if active:
        return list(active.log_tail)
    begun = [run for run in runs if run.started_at]
    last = max(begun, key=lambda run: run.started_at or run.created_at, default=None)
    return list(last.log_tail) if last else []
