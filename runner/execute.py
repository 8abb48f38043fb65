"""One run: start the engine, warm it up, replay the trials, read the counters, stop it.

Everything that happens is told to ``emit``, on the caller's thread. The load generator has a
thread of its own, so that whatever ``emit`` and ``should_stop`` do (a row in a database) never
holds up a time stamp.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from calculator.columns import columns_of
from calculator.measurement import Measurement, SpeculationCounters, TrialRecord
from calculator.validity import trial_reasons
from runner import counters
from runner.engines.base import Endpoint, Engine, EngineError, EngineRefused, EngineStopped
from runner.engines.factory import make_engine as make_real_engine
from runner.environment import host_fingerprint
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
from runner.journal import TrialHeader, TrialJournal, trial_path
from runner.output_check import OutputCheckPhase
from runner.plan import Arm, ExperimentPlan, PlannedRun, PlannedTrial, Target
from runner.replay import (
    ReplayInterrupted,
    ReplayResult,
    ReplayStopped,
    ServerGone,
    replay,
)
from runner.ruler import RulerCheck, check_once
from runner.ruler.check import CheckRuler
from runner.traffic.request import NormalisedRequest
from runner.warmup import until_steady

MakeEngine = Callable[[Target, Arm, Path], Engine]
Result = TypeVar("Result")

PROGRESS_EVERY_S = 1.0
LOG_EVERY_S = 2.0
CHECK_EVERY_S = 0.25
_COUNTERS_SETTLE_S = 1.0


def execute_run(
    planned: PlannedRun,
    plan: ExperimentPlan,
    requests: Mapping[str, NormalisedRequest],
    *,
    workdir: Path,
    digest_key: str,
    emit: Callable[[Event], None],
    should_stop: Callable[[], bool],
    skip_trials: Collection[int] = (),
    make_engine: MakeEngine = make_real_engine,
    check_ruler: CheckRuler | None = None,
) -> RunEnded:
    """Carry out ``planned`` and return how it ended; RunEnded is also the last event.

    Trials in ``skip_trials`` are already recorded and are left out. Each trial is written to
    ``workdir/trial-NNN.jsonl`` before it is emitted. The engine is gone when this returns or
    raises; what ``emit`` raises ends the run and propagates.

    ``check_ruler`` says how far off the load generator is at each load. By default it measures
    that before a real engine's start, once in a process; a simulated engine is its own ruler.
    """
    missing = _missing(planned, requests)
    if missing:
        ended = RunEnded(
            "failed",
            "requests_missing",
            f"{missing} of the planned requests are no longer in the sample.",
        )
        emit(ended)
        return ended
    workdir.mkdir(parents=True, exist_ok=True)
    engine = make_engine(plan.target, planned.arm, workdir)
    if check_ruler is None and plan.target.engine != "simulator":
        check_ruler = check_once
    run = _Run(
        planned,
        plan,
        requests,
        workdir,
        digest_key,
        emit,
        should_stop,
        engine,
        make_engine,
        check_ruler,
    )
    try:
        ended = _carry_out(run, frozenset(skip_trials))
    finally:
        run.engine.stop()
    emit(ended)
    return ended


def _missing(planned: PlannedRun, requests: Mapping[str, NormalisedRequest]) -> int:
    wanted = {*planned.warmup_ids, *planned.output_check_ids}
    for trial in planned.trials:
        wanted.update(trial.request_ids)
    return sum(request_id not in requests for request_id in wanted)


def _carry_out(run: _Run, skip: frozenset[int]) -> RunEnded:
    try:
        ended = run.all_phases(skip)
    except EngineStopped:
        ended = RunEnded("cancelled", "cancelled", "The run was stopped on request.")
    except EngineRefused as error:
        ended = RunEnded("unsupported", error.code, error.reason, error.log_tail)
    except EngineError as error:
        ended = RunEnded("failed", error.code, error.reason, error.log_tail)
    run.emit(Phase("stopping"))
    return ended


@dataclass(slots=True)
class _Run:
    planned: PlannedRun
    plan: ExperimentPlan
    requests: Mapping[str, NormalisedRequest]
    workdir: Path
    digest_key: str
    emit: Callable[[Event], None]
    should_stop: Callable[[], bool]
    engine: Engine
    make_engine: MakeEngine
    check_ruler: CheckRuler | None
    _ruler: dict[int, RulerCheck] = field(default_factory=dict)
    """By requests in flight."""
    _log_due: float = 0.0
    _last_log: list[str] = field(default_factory=list)

    def all_phases(self, skip: frozenset[int]) -> RunEnded:
        endpoint = self._start()
        self.emit(Phase("warming"))
        self._warm_up(endpoint)
        self.emit(Phase("measuring"))
        for trial in self.planned.trials:
            if trial.index not in skip:
                self._measure(endpoint, trial)
        self._check_output(endpoint)
        return RunEnded("recorded")

    def _start(self) -> Endpoint:
        self.emit(Phase("starting"))
        self._measure_ruler()
        began = time.monotonic()
        # On this thread: an engine may ask the system to end it with the thread that started it.
        endpoint = self.engine.start(self._tick)
        start_s = time.monotonic() - began
        fingerprint = {"host": host_fingerprint(), **self.engine.fingerprint()}
        self.emit(EngineReady(fingerprint, start_s))
        return endpoint

    def _measure_ruler(self) -> None:
        """Before the engine is there to take cores; a ruler that fails is one not looked at."""
        check = self.check_ruler
        if check is None:
            return
        levels = {trial.level.concurrency for trial in self.planned.trials}
        try:
            found = self._beside(lambda stop: check(levels, stop), self.should_stop).result()
        except ReplayStopped:
            raise EngineStopped from None
        except (OSError, ReplayInterrupted):
            return
        self._ruler = {one.concurrency: one for one in found}

    def _tick(self) -> bool:
        """Show the log now and then; answers ``should_stop``."""
        now = time.monotonic()
        if now >= self._log_due:
            self._log_due = now + LOG_EVERY_S
            lines = self.engine.log_tail()
            if lines and lines != self._last_log:
                self._last_log = lines
                self.emit(LogTail(lines))
        return self.should_stop()

    def _warm_up(self, endpoint: Endpoint) -> None:
        """Send the warm-up requests until their times are steady; the results are thrown away."""
        chosen = self._requests(self.planned.warmup_ids)
        if not chosen:
            return
        widest = max(level.concurrency for level in self.plan.levels)

        def one_round(number: int) -> Sequence[Measurement]:
            result = self._wait(
                lambda stop: replay(
                    endpoint,
                    chosen,
                    concurrency=min(widest, len(chosen)),
                    cache_salt=self._salt(f"warm-up {number}"),
                    max_output_tokens=self.plan.design.max_output_tokens,
                    timeout_s=self.plan.design.request_timeout_s,
                    should_stop=stop,
                )
            )
            return result.measurements

        self.emit(WarmedUp(until_steady(one_round)))

    def _measure(self, endpoint: Endpoint, trial: PlannedTrial) -> None:
        self.emit(TrialStarted(trial.index))
        finished = [0]
        chosen = self._requests(trial.request_ids)

        def one_trial(stop: Callable[[], bool]) -> ReplayResult:
            return replay(
                endpoint,
                chosen,
                concurrency=trial.level.concurrency,
                cache_salt=trial.cache_salt,
                max_output_tokens=self.plan.design.max_output_tokens,
                timeout_s=self.plan.design.request_timeout_s,
                on_progress=lambda done, total: finished.__setitem__(0, done),
                should_stop=stop,
            )

        before = self._metrics()
        result = self._wait(one_trial, _ProgressEvents(trial, finished, self.emit).tick)
        read, reasons = self._counters(before, result)
        self._record(trial, result, read, reasons)

    def _record(
        self,
        trial: PlannedTrial,
        result: ReplayResult,
        read: SpeculationCounters | None,
        reasons: Sequence[str],
    ) -> None:
        ruler = self._ruler.get(trial.level.concurrency)
        client = ruler.added_to(result.client) if ruler else result.client
        record = TrialRecord(
            arm=self.planned.arm.name,
            run=self.planned.index,
            block=self.planned.block,
            concurrency=trial.level.concurrency,
            duration_s=result.duration_s,
            measurements=result.measurements,
            counters=read,
            client=client,
        )
        invalid = list(dict.fromkeys([*reasons, *trial_reasons(columns_of(record))]))
        header = TrialHeader(
            record.arm, record.run, record.block, trial.index, record.concurrency,
            len(trial.request_ids),
        )  # fmt: skip
        with TrialJournal(trial_path(self.workdir, trial.index), header) as journal:
            journal.add(result.measurements)
            journal.end(
                duration_s=result.duration_s,
                counters=read,
                client=client,
                invalid_reasons=invalid,
            )
        self.emit(
            TrialRecorded(
                trial.index, result.duration_s, result.measurements, read, client, invalid
            )
        )

    def _metrics(self) -> counters.Metrics | None:
        text = self.engine.metrics_text()
        return counters.parse(text) if text else None

    def _counters(
        self, before: counters.Metrics | None, result: ReplayResult
    ) -> tuple[SpeculationCounters | None, list[str]]:
        """What the engine counted during the trial; it may count a last request a little late."""
        if before is None:
            return None, []
        answered = sum(measurement.ok for measurement in result.measurements)
        deadline = time.monotonic() + _COUNTERS_SETTLE_S
        while True:
            after = self._metrics()
            if after is None:
                return None, []
            try:
                found = counters.difference(before, after)
            except counters.CountersReset:
                return None, ["counters_reset"]
            seen = found.requests_finished
            if seen is None or seen >= answered or time.monotonic() > deadline:
                return found, []
            time.sleep(0.05)

    def _check_output(self, endpoint: Endpoint) -> None:
        """The untimed greedy pass, after all trials so that it can't warm anything for them."""
        chosen = self._requests(self.planned.output_check_ids)
        if not chosen:
            return
        OutputCheckPhase(
            self.planned,
            self.plan.design,
            key=self.digest_key.encode(),
            cache_salt=self._salt("output check"),
            wait=self._wait,
            start_scorer=self._start_scorer,
            tell=lambda record: self.emit(OutputChecked(record)),
        ).carry_out(endpoint, chosen)

    def _start_scorer(self) -> Endpoint:
        """The baseline's engine in place of this run's, once all is measured."""
        self.engine.stop()
        baseline = next(arm for arm in self.plan.arms if arm.method == "none")
        self.engine = self.make_engine(self.plan.target, baseline, self.workdir / "scorer")
        return self.engine.start(self._tick)

    def _wait(
        self, work: Callable[[Callable[[], bool]], Result], tick: Callable[[], None] | None = None
    ) -> Result:
        """Do ``work`` beside the engine while this thread tells and listens."""

        def over() -> bool:
            if tick is not None:
                tick()
            return self._tick() or not self.engine.alive()

        future = self._beside(work, over)
        if not self.engine.alive():
            raise self._died()
        try:
            return future.result()
        except ReplayStopped:
            raise EngineStopped from None
        except ServerGone as error:
            raise EngineError("engine_gone", error.reason, self.engine.log_tail()) from None

    def _beside(
        self, work: Callable[[Callable[[], bool]], Result], over: Callable[[], bool]
    ) -> Future[Result]:
        """``work``, done on a thread of its own and asked to stop once ``over`` said so."""
        stop = threading.Event()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="replay") as pool:
            future = pool.submit(work, stop.is_set)
            try:
                while not wait({future}, timeout=CHECK_EVERY_S).done:
                    if over():
                        stop.set()
            except BaseException:
                stop.set()  # leaving the pool waits for the work to end
                raise
        return future

    def _died(self) -> EngineError:
        return EngineError(
            "engine_died",
            "The engine ended by itself while it was measured; its last log lines say why. "
            "Trials recorded before are kept.",
            self.engine.log_tail(),
        )

    def _requests(self, ids: Sequence[str]) -> list[NormalisedRequest]:
        return [self.requests[request_id] for request_id in ids]

    def _salt(self, purpose: str) -> str:
        text = f"{self.digest_key} {self.planned.index} {purpose}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class _ProgressEvents:
    """Turns the load generator's count into at most one event a second, and none without news."""

    def __init__(
        self, trial: PlannedTrial, finished: list[int], emit: Callable[[Event], None]
    ) -> None:
        self._trial = trial
        self._finished = finished
        self._emit = emit
        self._told = 0
        self._due = 0.0

    def tick(self) -> None:
        now = time.monotonic()
        done = self._finished[0]
        if done != self._told and now >= self._due:
            self._told = done
            self._due = now + PROGRESS_EVERY_S
            self._emit(Progress(self._trial.index, done, len(self._trial.request_ids)))
