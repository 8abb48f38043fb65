"""The simulator is a real process whose truth is known; the replay must find that truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from calculator.measurement import Outcome, SpeculationCounters
from runner.counters import CountersReset, difference, parse
from runner.engines.base import Endpoint, EngineError, EngineRefused, EngineStopped
from runner.engines.simulator import SimulatorProcess
from runner.engines.simulator_behaviour import Behaviour, BehaviourError, from_document
from runner.output_check import greedy_answers
from runner.plan import Arm, Target
from runner.replay import ReplayStopped, ServerGone, replay
from runner.traffic.request import NormalisedRequest

ARM = Arm("arm", "ngram")


def never() -> bool:
    return False


def process(workdir: Path, **behaviour: Any) -> SimulatorProcess:
    return SimulatorProcess(
        Target("simulator", "toy", simulator={"ngram": behaviour}), ARM, workdir
    )


@contextmanager
def started(workdir: Path, **behaviour: Any) -> Iterator[tuple[SimulatorProcess, Endpoint]]:
    engine = process(workdir, **behaviour)
    try:
        yield engine, engine.start(never)
    finally:
        engine.stop()


def requests(count: int, tokens: int = 40, start: int = 0) -> list[NormalisedRequest]:
    return [
        NormalisedRequest(
            id=f"r{i}",
            kind="chat" if i % 2 else "completion",
            line=i + 1,
            messages=({"role": "user", "content": f"question {i}"},),
            prompt=f"question {i}",
            max_output_tokens=tokens,
        )
        for i in range(start, start + count)
    ]


def counted(engine: SimulatorProcess, before: str) -> SpeculationCounters:
    return difference(parse(before), parse(engine.metrics_text()))


def test_known_latencies_are_found(tmp_path: Path) -> None:
    with started(tmp_path, ttft_ms=60, step_ms=10, step_slowdown_per_sequence_ms=5) as (_, server):
        alone = replay(server, requests(2, 30), concurrency=1).measurements
        crowd = replay(server, requests(4, 30, 10), concurrency=4).measurements
    assert all(one.ok and one.output_tokens == one.chunks == 30 for one in alone + crowd)
    for one in alone:
        assert one.ttft_ms is not None
        assert 60 <= one.ttft_ms < 1000
    # 10 + 5 ms a token alone, 10 + 4 * 5 with four; a busy machine may add, never take away.
    assert 14.9 <= mean(one.tpot_ms or 0 for one in alone) < 60
    assert 29 <= mean(one.tpot_ms or 0 for one in crowd) < 90


def test_drafts_speed_up_and_are_counted_exactly(tmp_path: Path) -> None:
    drafting = {"step_ms": 4, "draft_tokens": 3, "acceptance_rate": 0.8}
    with started(tmp_path, **drafting) as (engine, server):
        before = engine.metrics_text()
        found = replay(server, requests(6), concurrency=3).measurements
        counters = counted(engine, before)
    assert counters.requests_finished == 6
    assert counters.generation_tokens == sum(one.output_tokens or 0 for one in found) == 240
    assert counters.prompt_tokens == sum(one.prompt_tokens or 0 for one in found)
    # The first token of each answer comes from the prompt; every later event is one draft.
    assert counters.drafts == sum(one.chunks for one in found) - 6
    assert counters.draft_tokens == 3 * counters.drafts
    assert counters.accepted_tokens == sum(counters.accepted_per_position)
    assert list(counters.accepted_per_position) == sorted(
        counters.accepted_per_position, reverse=True
    )
    # 0.8 accepted given the one before: 0.8 of first drafts; wide, as drafts are few.
    assert 0.6 < counters.accepted_per_position[0] / counters.drafts < 0.95
    assert counters.drafts < 160  # 234 steps without drafts, about 80 with


def test_behaviour_tells_its_own_means() -> None:
    drafting = Behaviour(step_ms=10, draft_tokens=2, acceptance_rate=0.6)
    assert drafting.mean_tokens_per_step == pytest.approx(1.96)  # Leviathan et al.: 1.96
    assert drafting.tpot_ms(running=4) == pytest.approx(10 / 1.96)
    plain = Behaviour(step_ms=10, step_slowdown_per_sequence_ms=2, tokens_per_step=2.5)
    assert plain.tpot_ms(running=5) == pytest.approx(8)


def test_several_tokens_a_step_without_drafts(tmp_path: Path) -> None:
    with started(tmp_path, step_ms=2, tokens_per_step=4) as (engine, server):
        (found,) = replay(server, requests(1, 41), concurrency=1).measurements
        counters = counted(engine, "")
    assert (found.output_tokens, found.chunks) == (41, 11)
    assert counters.drafts is None  # no draft counters where nothing drafts


def test_answers_and_lengths_depend_on_the_prompt_alone(tmp_path: Path) -> None:
    rule = {"output_tokens": 20, "output_tokens_spread": 0.5, "step_ms": 1}
    plain = rule | {"seed": 1}
    drafting = rule | {"seed": 2, "draft_tokens": 4, "acceptance_rate": 0.5}
    broken = drafting | {"corrupt_token_rate": 0.3}
    answers, lengths = [], []
    for number, behaviour in enumerate((plain, drafting, broken)):
        with started(tmp_path / str(number), **behaviour) as (_, server):
            found_ids = greedy_answers(
                server, requests(6), max_tokens=40, concurrency=3, timeout_s=20
            )
            answers.append({name: one.token_ids for name, one in found_ids.items()})
            found = replay(server, requests(6), concurrency=3).measurements
            lengths.append([(one.output_tokens, one.finish_reason) for one in found])
    assert answers[0] == answers[1]
    assert lengths[0] == lengths[1] == lengths[2]
    assert len({length for length, _ in lengths[0]}) > 1
    assert all(10 <= (length or 0) <= 30 and reason == "stop" for length, reason in lengths[0])
    changed = [
        a != b
        for name in answers[0]
        for a, b in zip(answers[1][name], answers[2][name], strict=True)
    ]
    assert mean(changed) > 0.5, "after a corrupted token the text goes on as another one"


def test_prefix_cache_is_counted_and_kept_apart_by_salt(tmp_path: Path) -> None:
    long = NormalisedRequest(
        id="a", kind="completion", line=1, prompt="word " * 50, max_output_tokens=2
    )
    with started(tmp_path) as (engine, server):
        cached = []
        for salt in ("one", "one", "two"):
            before = engine.metrics_text()
            result = replay(server, [long], concurrency=1, cache_salt=salt)
            counters = counted(engine, before)
            assert counters.prefix_cache_queries == 51
            assert counters.prefix_cache_hits == result.measurements[0].cached_tokens
            cached.append(result.measurements[0].cached_tokens)
    assert cached == [0, 48, 0]


def test_injected_failures(tmp_path: Path) -> None:
    rates = {"error_rate": 0.25, "cut_rate": 0.25, "refuse_rate": 0.25, "step_ms": 1, "seed": 3}
    with started(tmp_path, **rates) as (_, server):
        found = replay(server, requests(40, 10), concurrency=8).measurements
        again = replay(server, requests(40, 10), concurrency=2).measurements
    assert {one.outcome for one in found} == {
        Outcome.OK,
        Outcome.ERROR,
        Outcome.CUT,
        Outcome.REFUSED,
    }
    assert [one.outcome for one in found] == [one.outcome for one in again]
    assert {one.error_kind for one in found} == {
        None,
        "error_in_stream",
        "connection_lost",
        "http_429",
    }
    assert all(one.chunks < 10 for one in found if not one.ok)


def test_usage_can_be_left_out(tmp_path: Path) -> None:
    with started(tmp_path, omit_usage=True, step_ms=1) as (_, server):
        (found,) = replay(server, requests(1), concurrency=1).measurements
    assert found.ok
    assert found.marks == ("tokens_estimated",)
    assert found.output_tokens == found.chunks


def test_a_hanging_server_is_given_up(tmp_path: Path) -> None:
    with (
        started(tmp_path, hang_after_requests=1, step_ms=1) as (_, server),
        pytest.raises(ServerGone, match="takes requests and answers none: 2 in a row") as gone,
    ):
        replay(server, requests(60, 5), concurrency=1, timeout_s=0.3)
    found = gone.value.result.measurements
    assert [one.outcome for one in found] == [Outcome.OK, Outcome.TIMEOUT, Outcome.TIMEOUT]


def test_crash_ends_the_replay_with_what_was_measured(tmp_path: Path) -> None:
    with started(tmp_path, crash_after_requests=5, step_ms=1) as (engine, server):
        with pytest.raises(ServerGone) as gone:
            replay(server, requests(200, 5), concurrency=1, give_up_after_s=0)
        assert not engine.alive()
    outcomes = [one.outcome for one in gone.value.result.measurements]
    assert outcomes[:4] == [Outcome.OK] * 4
    assert Outcome.OK not in outcomes[4:]
    assert len(outcomes) < 12


def test_kill_9_in_the_middle_of_a_trial(tmp_path: Path) -> None:
    with started(tmp_path, step_ms=5) as (engine, server):
        before = engine.metrics_text()

        def kill(done: int, total: int) -> None:
            assert engine.pid
            os.kill(engine.pid, signal.SIGKILL)

        with pytest.raises(ServerGone) as gone:
            replay(server, requests(400, 20), concurrency=4, on_progress=kill, give_up_after_s=0)
        assert not engine.alive()
        assert engine.metrics_text() == ""
        with pytest.raises(CountersReset):
            counted(engine, before)
    found = gone.value.result.measurements
    assert sum(one.ok for one in found) >= 4
    assert {one.outcome for one in found} <= {Outcome.OK, Outcome.CUT, Outcome.REFUSED}
    assert len(found) < 400


def test_stop_request(tmp_path: Path) -> None:
    with started(tmp_path, step_ms=2) as (engine, server):
        asked: list[float] = []

        def should_stop() -> bool:
            if "generation_tokens_total" in engine.metrics_text() and not asked:
                asked.append(0.0)
                return False
            asked.append(time.monotonic())
            return len(asked) > 3

        short, endless = requests(3, 5), requests(3, 100_000, start=3)
        with pytest.raises(ReplayStopped) as stopped:
            replay(server, short + endless, concurrency=3, should_stop=should_stop)
        assert time.monotonic() - asked[-1] < 1.5
        assert [one.request_id for one in stopped.value.result.measurements] == ["r0", "r1", "r2"]
        assert stopped.value.result.client.peak_in_flight == 3
        limit = time.monotonic() + 5  # the server drops what nobody reads any more
        while "num_requests_running{" in engine.metrics_text() and time.monotonic() < limit:
            if " 0.0" in [
                line[-4:] for line in engine.metrics_text().splitlines() if "s_running{" in line
            ]:
                break
        else:
            pytest.fail("cancelled requests were left running")


def test_progress_and_its_exceptions(tmp_path: Path) -> None:
    with started(tmp_path, step_ms=1) as (_, server):
        seen: list[tuple[int, int]] = []
        replay(
            server, requests(5, 5), concurrency=2, on_progress=lambda *counts: seen.append(counts)
        )
        assert seen[-1] == (5, 5)

        def broken(done: int, total: int) -> None:
            raise RuntimeError("the listener is gone")

        with pytest.raises(RuntimeError, match="listener"):
            replay(server, requests(5, 5), concurrency=2, on_progress=broken)


def test_refused_method_and_bad_settings(tmp_path: Path) -> None:
    target = Target("simulator", "toy", simulator={"none": {}})
    with pytest.raises(EngineRefused, match="no behaviour for the method 'ngram'"):
        SimulatorProcess(target, ARM, tmp_path).start(never)
    with pytest.raises(EngineError, match="no setting 'speed'"):
        process(tmp_path, speed=3).start(never)
    for wrong in (
        {"step_ms": 0}, {"acceptance_rate": 1.2}, {"draft_tokens": 1.5}, {"ttft_ms": "5"},
        {"omit_usage": 1}, {"noise_cv": float("nan")}, {"tokens_per_step": 0.5},
        {"crash_after_requests": 0}, {"exit_at_start": 3}, {"seed": None},
    ):  # fmt: skip
        with pytest.raises(BehaviourError, match=next(iter(wrong))):
            from_document(wrong)


def test_death_at_start_is_told_with_the_log(tmp_path: Path) -> None:
    engine = process(tmp_path, exit_at_start="out of memory, said the toy")
    with pytest.raises(EngineError, match="ended with code 1") as failed:
        engine.start(never)
    assert not isinstance(failed.value, EngineRefused)
    assert failed.value.log_tail == ["out of memory, said the toy"]
    assert not engine.alive()


def test_stop_while_it_starts(tmp_path: Path) -> None:
    engine = process(tmp_path, start_delay_s=30)
    with pytest.raises(EngineStopped):
        engine.start(lambda: True)
    assert not engine.alive()
    engine.stop()
    engine.stop()


def test_it_does_not_outlive_its_parent(tmp_path: Path) -> None:
    parent = f"""
import sys, time, pathlib
from runner.engines.simulator import SimulatorProcess
from runner.output_check import greedy_answers
from runner.plan import Arm, Target
target = Target("simulator", "toy", simulator={{"none": {{}}}})
engine = SimulatorProcess(target, Arm("a"), pathlib.Path({str(tmp_path)!r}))
engine.start(lambda: False)
print(engine.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as child:
        assert child.stdout
        pid = int(child.stdout.readline())
        assert _runs(pid)
        child.kill()
    limit = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_other_paths(tmp_path: Path) -> None:
    with started(tmp_path) as (engine, server):

        def ask(path: str, body: object = None) -> Any:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(server.url + path, data=data)
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.loads(answer.read() or "null")

        assert ask("/health") is None
        assert ask("/version") == {"version": engine.fingerprint()["engine_version"]}
        assert ask("/v1/models")["data"] == [{"id": "toy"}]
        assert ask("/tokenize", {"prompt": "two words"})["count"] == 3
        body = {"model": "toy", "prompt": "two words", "max_tokens": 3, "return_token_ids": True}
        whole = ask("/v1/completions", body)
        assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"] == 3
        assert len(whole["choices"][0]["prompt_token_ids"]) == whole["usage"]["prompt_tokens"] == 3
        refused: list[object] = [{"model": "toy"}, [], {**body, "max_tokens": 0.5}]
        for wrong in [*refused, {"model": "toy", "messages": []}]:
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask("/v1/completions", wrong)
        for path, wrong in (("/v1/completions", body | {"model": "other"}), ("/nowhere", {})):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                ask(path, wrong)
