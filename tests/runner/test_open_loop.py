"""Open loops: requests go out when they are due, whatever the server does. Real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calculator.measurement import Outcome
from runner import arrivals
from runner.engines.base import Endpoint
from runner.replay import OverCapacity, replay
from tests.runner.replay_cases import STOP, THREE, USAGE_3
from tests.runner.scripted_server import ScriptedServer
from tests.runner.streams import DONE, head, stream
from tests.runner.test_replay import requests


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as started:
        yield started


def test_requests_do_not_wait_for_each_other(server: ScriptedServer) -> None:
    url = server.play("slow", stream(*THREE, STOP, USAGE_3, DONE, gap_s=0.1))
    load = arrivals.constant(50, 20)
    result = replay(Endpoint(url, "m"), requests(20), arrivals=load)
    assert [one.scheduled_ns for one in result.measurements] == list(load.due_ns)
    assert all(one.ok and one.open_loop for one in result.measurements)
    assert all(one.sent_ns >= one.scheduled_ns for one in result.measurements)
    assert result.client.peak_in_flight == 20  # all of them came before the first answer ended


def test_latency_counts_from_when_a_request_was_due(server: ScriptedServer) -> None:
    url = server.play("plain", stream(*THREE, STOP, USAGE_3, DONE))
    (found,) = replay(
        Endpoint(url, "m"), requests(1), arrivals=arrivals.OpenLoop((0,))
    ).measurements
    assert found.first_token_ns is not None
    assert found.last_token_ns is not None
    assert found.ttft_ms == (found.first_token_ns - found.scheduled_ns) / 1e6
    assert found.e2e_ms == (found.last_token_ns - found.scheduled_ns) / 1e6
    since_due_us = (found.last_token_ns - found.scheduled_ns) // 1000
    assert abs(sum(found.chunk_gaps_us) - since_due_us) <= 3


def test_refusals_count_at_the_time_they_were_due(server: ScriptedServer) -> None:
    url = server.play("full", [(0.0, head("429 No", "Retry-After: 7")), (0.0, b"0\r\n\r\n")])
    load = arrivals.constant(100, 12)
    found = replay(Endpoint(url, "m"), requests(12), arrivals=load).measurements
    assert {(one.outcome, one.retry_after_s) for one in found} == {(Outcome.REFUSED, 7.0)}
    assert [one.scheduled_ns for one in found] == list(load.due_ns)
    posts = [entry for entry in server.received("full") if entry["method"] == "POST"]
    assert len(posts) == 12  # none again


def test_a_server_that_cannot_keep_up_is_cut_short(server: ScriptedServer) -> None:
    # One connection at a time is all that the scripted server's lock lets through.
    url = server.play("queue", stream(*THREE, STOP, USAGE_3, DONE, gap_s=0.005), "one-by-one")
    with pytest.raises(OverCapacity, match="the queue grows") as cut:
        replay(Endpoint(url, "m"), requests(2000), arrivals=arrivals.constant(100, 2000))
    found = cut.value.result.measurements
    assert 10 <= len(found) < 1000
    assert all(one.ok for one in found)


def test_arrivals_that_make_no_trial(server: ScriptedServer) -> None:
    endpoint = Endpoint(server.url, "m")
    with pytest.raises(ValueError, match="one arrival for each request"):
        replay(endpoint, requests(2), arrivals=arrivals.constant(1, 3))
    with pytest.raises(ValueError, match="not both"):
        replay(endpoint, requests(2), concurrency=2, arrivals=arrivals.constant(1, 2))


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_a_load_and_merge_exactly(server: ScriptedServer, processes: int) -> None:
    url = server.play("shared", stream(*THREE, STOP, USAGE_3, DONE, gap_s=0.02))
    result = replay(Endpoint(url, "m"), requests(23), concurrency=5, processes=processes)
    assert [one.sequence for one in result.measurements] == list(range(23))
    assert [one.request_id for one in result.measurements] == [f"r{i}" for i in range(23)]
    assert all(one.ok and one.output_tokens == 3 for one in result.measurements)
    assert result.client.processes == processes
    assert result.client.peak_in_flight == 5
    firsts = [one.scheduled_ns for one in result.measurements if one.scheduled_ns == 0]
    assert len(firsts) == 5  # one common time 0
    posts = [entry for entry in server.received("shared") if entry["method"] == "POST"]
    assert len(posts) == 23


def test_processes_keep_an_open_loop(server: ScriptedServer) -> None:
    url = server.play("shared", stream(*THREE, STOP, USAGE_3, DONE))
    load = arrivals.poisson(60, 30, seed=3)
    result = replay(Endpoint(url, "m"), requests(30), arrivals=load, processes=2)
    assert [one.scheduled_ns for one in result.measurements] == list(load.due_ns)
