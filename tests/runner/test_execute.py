"""One run against the simulator, which is a real server process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from runner.engines.base import Engine
from runner.engines.simulator import SimulatorProcess
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
from runner.execute import execute_run
from runner.journal import read_trial, trial_path
from runner.plan import (
    Arm,
    Design,
    ExperimentPlan,
    LoadLevel,
    PlannedRun,
    Price,
    RequestInfo,
    Target,
    schedule,
)
from runner.ruler import Promise, RulerCheck, check
from runner.traffic.request import NormalisedRequest

FAST = {"ttft_ms": 2.0, "step_ms": 1.0, "output_tokens": 8}
DRAFTS = {**FAST, "draft_tokens": 3, "acceptance_rate": 0.7}
NGRAM = {"num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
REQUESTS = {
    f"r{n}": NormalisedRequest(
        id=f"r{n}",
        kind="chat",
        line=n,
        messages=({"role": "user", "content": f"Question {n}: what is the colour of box {n}?"},),
        max_output_tokens=16,
        category=f"kind {n % 2}",
    )
    for n in range(60)
}


def plan(baseline: dict[str, Any] = FAST, ngram: dict[str, Any] | None = None) -> ExperimentPlan:
    behaviours = {"none": baseline} if ngram is None else {"none": baseline, "ngram": ngram}
    return ExperimentPlan(
        target=Target("simulator", "demo", simulator=behaviours),
        arms=(Arm("baseline"), Arm("ngram", "ngram", NGRAM)),
        levels=(LoadLevel(1, 6), LoadLevel(4, 12)),
        price=Price(Decimal(1), "a list", "2026-01-31"),
        design=Design(runs_per_arm=2, output_check_requests=4, output_check_tokens=6),
    )


class Listener:
    """Keeps the engine and the events; may act upon an event."""

    def __init__(self, workdir: Path, on: Callable[[Event, Listener], None] | None = None) -> None:
        self.workdir = workdir
        self.events: list[Event] = []
        self.engine: SimulatorProcess | None = None
        self.stop = False
        self._on = on

    def make_engine(self, target: Target, arm: Arm, workdir: Path) -> Engine:
        self.engine = SimulatorProcess(target, arm, workdir)
        return self.engine

    def emit(self, event: Event) -> None:
        self.events.append(event)
        if self._on is not None:
            self._on(event, self)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def run(self, wanted: ExperimentPlan, index: int = 0, **more: Any) -> RunEnded:
        return execute_run(
            planned(wanted, index),
            wanted,
            REQUESTS,
            workdir=self.workdir,
            digest_key="k" * 32,
            emit=self.emit,
            should_stop=lambda: self.stop,
            make_engine=self.make_engine,
            **more,
        )

    @property
    def engine_is_gone(self) -> bool:
        assert self.engine is not None
        if self.engine.pid is None:
            return True
        try:
            os.kill(self.engine.pid, 0)
        except ProcessLookupError:
            return True
        return False


def planned(wanted: ExperimentPlan, index: int) -> PlannedRun:
    infos = [RequestInfo(request.id, request.category) for request in REQUESTS.values()]
    return schedule(wanted, infos)[index]


def test_run_is_recorded_with_counters_and_output_check(tmp_path: Path) -> None:
    wanted = plan(ngram=DRAFTS)
    heard = Listener(tmp_path)
    ended = heard.run(wanted, index=1)
    assert ended == RunEnded("recorded")
    assert heard.events[-1] == ended
    assert [event.name for event in heard.of(Phase)] == [
        "starting",
        "warming",
        "measuring",
        "stopping",
    ]
    (ready,) = heard.of(EngineReady)
    assert ready.start_s > 0
    assert ready.fingerprint["engine"] == "simulator"
    assert ready.fingerprint["host"]["cpu_cores"] >= 1
    (warmed,) = heard.of(WarmedUp)
    assert 2 <= warmed.result.rounds <= 5
    assert [event.trial for event in heard.of(TrialStarted)] == [0, 1]
    for recorded, trial in zip(heard.of(TrialRecorded), planned(wanted, 1).trials, strict=True):
        assert tuple(m.request_id for m in recorded.measurements) == trial.request_ids
        assert all(m.ok and m.output_tokens == 8 for m in recorded.measurements)
        assert recorded.duration_s > 0
        assert recorded.client.peak_in_flight == trial.level.concurrency
        counters = recorded.counters
        assert counters.requests_finished == len(trial.request_ids), "warm-ups are not in it"
        assert counters.generation_tokens == 8 * len(trial.request_ids)
        assert 0 < counters.accepted_tokens < counters.draft_tokens
    record = heard.of(OutputChecked)[-1].record
    assert set(record.answers) == set(planned(wanted, 1).output_check_ids)
    assert {len(answer.digests) for answer in record.answers.values()} == {6}
    assert heard.engine_is_gone


def test_each_trial_is_in_its_journal_before_it_is_told(tmp_path: Path) -> None:
    seen = []

    def look(event: Event, heard: Listener) -> None:
        if isinstance(event, TrialRecorded):
            journal = read_trial(trial_path(heard.workdir, event.trial))
            assert journal is not None
            assert journal.ended
            assert journal.measurements == event.measurements
            assert journal.counters == event.counters
            seen.append(event.trial)

    assert Listener(tmp_path, look).run(plan()).status == "recorded"
    assert seen == [0, 1]


def test_recorded_trials_are_left_out(tmp_path: Path) -> None:
    heard = Listener(tmp_path)
    assert heard.run(plan(), skip_trials={0}).status == "recorded"
    assert [event.trial for event in heard.of(TrialRecorded)] == [1]


def test_combination_that_the_engine_refuses_is_a_finding(tmp_path: Path) -> None:
    heard = Listener(tmp_path)
    ended = heard.run(plan(ngram=None), index=1)
    assert ended.status == "unsupported"
    assert ended.reason is not None
    assert "ngram" in ended.reason
    assert not heard.of(TrialRecorded)


def test_engine_that_ends_at_start_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    heard = Listener(tmp_path)
    ended = heard.run(plan({**FAST, "exit_at_start": "no memory left on the device"}))
    assert ended.status == "failed"
    assert "no memory left on the device" in ended.log_tail
    assert heard.of(Phase)[-1] == Phase("stopping")


def test_engine_that_dies_in_a_trial_loses_only_that_trial(tmp_path: Path) -> None:
    def kill(event: Event, heard: Listener) -> None:
        if isinstance(event, TrialStarted) and event.trial == 1:
            assert heard.engine is not None
            assert heard.engine.pid is not None
            os.kill(heard.engine.pid, signal.SIGKILL)

    heard = Listener(tmp_path, kill)
    ended = heard.run(plan())
    assert (ended.status, ended.code) == ("failed", "engine_died")
    assert [event.trial for event in heard.of(TrialRecorded)] == [0]
    kept, lost = (read_trial(trial_path(tmp_path, n)) for n in (0, 1))
    assert kept is not None
    assert kept.ended
    assert lost is None


def test_engine_that_crashes_by_itself_under_load(tmp_path: Path) -> None:
    # The warm-up's 2 to 5 rounds of 2 leave it alive or not; the levels' 18 requests never do.
    ended = Listener(tmp_path).run(plan({**FAST, "crash_after_requests": 12}))
    assert (ended.status, ended.code) == ("failed", "engine_died")


@pytest.mark.parametrize("phase", ["starting", "warming", "measuring"])
def test_stop_is_heard_in_every_phase(tmp_path: Path, phase: str) -> None:
    def stop(event: Event, heard: Listener) -> None:
        heard.stop = heard.stop or event == Phase(phase)  # type: ignore[arg-type]

    slow = {**FAST, "step_ms": 150.0, "start_delay_s": 0.3}
    heard = Listener(tmp_path, stop)
    ended = heard.run(plan(slow))
    assert ended.status == "cancelled"
    assert not heard.of(TrialRecorded)
    assert heard.engine_is_gone


def test_listener_that_fails_ends_the_run_and_is_heard(tmp_path: Path) -> None:
    class LeaseLost(Exception):
        pass

    def fail(event: Event, heard: Listener) -> None:
        if isinstance(event, TrialRecorded):
            raise LeaseLost

    heard = Listener(tmp_path, fail)
    with pytest.raises(LeaseLost):
        heard.run(plan())
    assert heard.engine_is_gone
    assert len(heard.of(TrialRecorded)) == 1


def test_the_ruler_is_read_before_the_engine_starts_and_goes_with_each_trial(
    tmp_path: Path,
) -> None:
    when = []

    def check_ruler(levels: Collection[int], should_stop: Callable[[], bool]) -> list[RulerCheck]:
        when.append(heard.of(EngineReady))
        return check(levels, should_stop=should_stop, promise=Promise(5.0, 1.0, 5), rounds=30)

    heard = Listener(tmp_path)
    assert heard.run(plan(), check_ruler=check_ruler).status == "recorded"
    assert when == [[]]
    for recorded in heard.of(TrialRecorded):
        assert recorded.client.ruler_ttft_p50_error_ms >= 0
        journal = read_trial(trial_path(tmp_path, recorded.trial))
        assert journal is not None
        assert journal.client == recorded.client
    one, four = heard.of(TrialRecorded)
    assert one.client.ruler_ttft_p99_error_ms is None, "30 requests have no p99"
    assert four.client.ruler_ttft_p99_error_ms >= 0


def test_a_ruler_that_is_off_takes_the_belief_from_the_trial(tmp_path: Path) -> None:
    def off(levels: Collection[int], should_stop: Callable[[], bool]) -> list[RulerCheck]:
        return [RulerCheck(level, 1, 100, 50.0, -9.0, None, 0.0, 0.1) for level in levels]

    heard = Listener(tmp_path)
    assert heard.run(plan(), check_ruler=off).status == "recorded"
    for recorded in heard.of(TrialRecorded):
        assert recorded.client.ruler_ttft_p50_error_ms == 9.0
        assert "client_saturated" in recorded.invalid_reasons


def test_a_run_can_be_stopped_while_the_ruler_is_read(tmp_path: Path) -> None:
    def endless(levels: Collection[int], should_stop: Callable[[], bool]) -> list[RulerCheck]:
        heard.stop = True
        return check(levels, should_stop=should_stop, promise=Promise(tokens=10_000))

    heard = Listener(tmp_path)
    assert heard.run(plan(), check_ruler=endless).status == "cancelled"
    assert not heard.of(EngineReady)


def test_failed_requests_are_counted_and_not_hidden(tmp_path: Path) -> None:
    heard = Listener(tmp_path)
    assert heard.run(plan({**FAST, "error_rate": 1.0})).status == "recorded"
    for recorded in heard.of(TrialRecorded):
        assert {m.outcome for m in recorded.measurements} == {"error"}
        assert recorded.invalid_reasons


def test_progress_and_log_are_told_while_a_long_trial_runs(tmp_path: Path) -> None:
    wanted = replace(plan({**FAST, "step_ms": 60.0}), levels=(LoadLevel(2, 12),))
    heard = Listener(tmp_path)
    assert heard.run(wanted).status == "recorded"
    done = [event.done for event in heard.of(Progress)]
    assert done
    assert done == sorted(done)
    assert all(0 < n <= 12 for n in done)
    assert {event.total for event in heard.of(Progress)} == {12}
    assert len(done) <= 4, "at most one a second"
    tails = heard.of(LogTail)
    assert all(tail.lines for tail in tails)


def test_request_that_left_the_sample_is_said_before_an_engine_starts(tmp_path: Path) -> None:
    wanted = plan()
    events: list[Event] = []
    ended = execute_run(
        planned(wanted, 0), wanted, {}, workdir=tmp_path, digest_key="k",
        emit=events.append, should_stop=lambda: False,
    )  # fmt: skip
    assert (ended.status, ended.code) == ("failed", "requests_missing")
    assert events == [ended]
