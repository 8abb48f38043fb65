"""The real engine: it starts, drafts, refuses, dies and stops as ``engines.base`` promises."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import counters
from runner.engines.base import EngineError, EngineRefused, EngineStopped
from runner.engines.vllm_process import VllmProcess
from runner.models import demo
from runner.models.tiny import TinyPair
from runner.plan import Arm, Target
from tests.engine.conftest import Server, serving

pytestmark = pytest.mark.engine

NGRAM = Arm(
    "ngram",
    "ngram",
    {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
)


@pytest.fixture(scope="module")
def ngram(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(target, NGRAM, tmp_path_factory.mktemp("ngram")) as server:
        yield server


def group_members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def test_ngram_drafts_are_accepted_by_the_engines_own_count(
    ngram: Server, requests: list[str]
) -> None:
    before = ngram.metrics()
    answers = [ngram.chat(text, max_tokens=64) for text in requests]
    counted = counters.difference(before, ngram.metrics())
    assert counted.drafts
    assert counted.accepted_tokens
    assert counted.draft_tokens
    assert 0 < counted.accepted_tokens <= counted.draft_tokens
    assert len(counted.accepted_per_position) == 4
    assert counted.generation_tokens == sum(a["usage"]["completion_tokens"] for a in answers)


def test_answers_end_by_themselves_and_say_something(ngram: Server, requests: list[str]) -> None:
    answers = [ngram.chat(text, max_tokens=128)["choices"][0] for text in requests[:5]]
    assert any(answer["finish_reason"] == "stop" for answer in answers)
    assert all(answer["message"]["content"].strip() for answer in answers)


def test_the_tiny_model_sees_bos_once_and_first(ngram: Server) -> None:
    assert_bos_once_and_first(ngram)


def assert_bos_once_and_first(server: Server) -> None:
    """For a plain prompt and for a chat, as the server itself tokenises them."""
    bos = server.post("/tokenize", {"prompt": ""})["tokens"]
    assert len(bos) == 1
    plain = server.post(
        "/v1/completions", {"prompt": "Hello there", "max_tokens": 1, "return_token_ids": True}
    )["choices"][0]["prompt_token_ids"]
    chat = server.chat("Hello there", max_tokens=1, return_token_ids=True)["prompt_token_ids"]
    for ids in (plain, chat):
        assert len(ids) > 1
        assert ids[0] == bos[0]
        assert ids.count(bos[0]) == 1


def test_the_server_answers_only_those_who_know_its_key(ngram: Server) -> None:
    import http.client

    host, _, port = ngram.endpoint.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == 401
    connection.close()


def test_the_fingerprint_tells_what_runs_and_no_secret(ngram: Server) -> None:
    found = ngram.engine.fingerprint()
    assert found["engine"] == "vllm"
    assert found["engine_version"]
    assert found["model_revision"]
    effective = found["effective"]
    assert effective["dtype"] == "float32"
    assert effective["max_model_len"] == 512
    assert effective["enforce_eager"] is True
    assert effective["async_scheduling"] is False
    assert effective["runner"] == "V1"
    assert "ngram" in effective["speculation"]
    assert effective["kv_cache_blocks"] > 0
    key = ngram.endpoint.api_key
    assert key
    assert key not in repr(found)
    assert key not in "\n".join(ngram.engine.log_tail(10_000))


def test_kill_minus_nine_leaves_no_child_and_alive_says_so(ngram: Server) -> None:
    """Last user of the shared server: it does not come back."""
    engine = ngram.engine
    assert engine.alive()
    assert engine.pid
    assert engine.group
    os.kill(engine.pid, signal.SIGKILL)
    deadline = time.monotonic() + 15
    while engine.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not engine.alive()
    assert engine.metrics_text() == ""
    engine.stop()
    assert group_members(engine.group) == []


def test_a_draft_model_is_accepted_by_the_engines_own_count(
    target: Target, pair: TinyPair, requests: list[str], tmp_path: Path
) -> None:
    arm = Arm("draft", "draft_model", {"model": str(pair.draft), "num_speculative_tokens": 3})
    with serving(target, arm, tmp_path) as server:
        before = server.metrics()
        for text in requests[:5]:
            server.chat(text, max_tokens=64)
        counted = counters.difference(before, server.metrics())
        group = server.engine.group
    assert counted.accepted_tokens
    assert counted.draft_tokens
    assert counted.accepted_tokens / counted.draft_tokens > 0.3
    assert group
    assert group_members(group) == []


@pytest.mark.skipif(not demo.is_ready(), reason="python -m runner models demo was not run")
def test_the_demo_model_sees_bos_once_and_first_and_stops_at_a_heading(tmp_path: Path) -> None:
    served = Target(
        "vllm", str(demo.demo_folder()), dtype="float32", max_model_len=512, enforce_eager=True
    )
    with serving(served, Arm("baseline"), tmp_path) as server:
        assert_bos_once_and_first(server)
        answer = server.chat("Write a short reply that thanks a customer.", max_tokens=48)
        assert "###" not in answer["choices"][0]["message"]["content"]
        found = counters.difference(server.metrics(), server.metrics())
        assert found.drafts is None, "a baseline has no speculation to count"


def test_the_engines_own_refusal_becomes_one_sentence(
    target: Target, other_vocabulary: Path, tmp_path: Path
) -> None:
    arm = Arm("draft", "draft_model", {"model": str(other_vocabulary)})
    engine = VllmProcess(target, arm, tmp_path)
    with pytest.raises(EngineRefused) as refusal:
        engine.start(lambda: False)
    assert "vocabulary" in refusal.value.reason
    assert "Traceback" not in refusal.value.reason
    assert refusal.value.log_tail
    assert not engine.alive()


def test_stopping_while_it_starts_leaves_nothing(target: Target, tmp_path: Path) -> None:
    engine = VllmProcess(target, Arm("baseline"), tmp_path)
    began = time.monotonic()
    with pytest.raises(EngineStopped):
        engine.start(lambda: time.monotonic() - began > 3)
    assert engine.group
    assert group_members(engine.group) == []


def test_a_start_that_takes_too_long_is_given_up(target: Target, tmp_path: Path) -> None:
    engine = VllmProcess(target, Arm("baseline"), tmp_path, start_limit_s=2)
    with pytest.raises(EngineError, match="not ready within 2 seconds") as failure:
        engine.start(lambda: False)
    assert failure.value.code == "start_timeout"
    assert not engine.alive()


def test_a_port_that_is_taken_is_named(target: Target, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        engine = VllmProcess(target, Arm("baseline"), tmp_path, port=port)
        with pytest.raises(EngineError, match=str(port)) as failure:
            engine.start(lambda: False)
    assert failure.value.code == "port_in_use"
