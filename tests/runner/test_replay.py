"""What the load generator makes of servers that break naive ones. Real server processes."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from calculator.measurement import Measurement, Outcome
from runner.engines.base import Endpoint
from runner.replay import ReplayResult, ServerGone, replay
from runner.traffic.request import NormalisedRequest
from tests.runner.replay_cases import CASES, REAL_ERROR, ROLE, STOP, THREE, USAGE_3, Case
from tests.runner.scripted_server import ScriptedServer, Step
from tests.runner.streams import DONE, chunk, event, head, stream, text, usage


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as started:
        yield started


def requests(count: int) -> list[NormalisedRequest]:
    return [
        NormalisedRequest(
            id=f"r{i}", kind="chat", line=i, messages=({"role": "user", "content": f"q{i}"},)
        )
        for i in range(count)
    ]


def measure(
    server: ScriptedServer, steps: list[Step], end: str = "keep", **options: Any
) -> Measurement:
    url = server.play("case", steps, end)
    return replay(Endpoint(url, "m"), requests(1), concurrency=1, **options).measurements[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reading(server: ScriptedServer, case: Case) -> None:
    found = measure(server, case.steps, case.end)
    expected = case.defaults | case.expected
    assert {name: getattr(found, name) for name in expected} == expected
    assert 0 <= found.scheduled_ns <= found.sent_ns <= found.done_ns


def test_first_token_is_no_role_and_last_token_no_final_event(server: ScriptedServer) -> None:
    steps = [
        (0.0, head()),
        (0.05, chunk(ROLE)),
        (0.05, chunk(text(""))),
        (0.2, chunk(text("a"))),
        (0.1, chunk(text("b"))),
        (0.2, chunk(STOP)),
        (0.0, chunk(event(usage=usage(2)) + DONE) + b"0\r\n\r\n"),
    ]
    found = measure(server, steps)
    assert found.first_byte_ns is not None
    assert 0.05e9 <= found.first_byte_ns - found.sent_ns < 0.3e9
    assert found.ttft_ms is not None
    assert found.e2e_ms is not None
    assert found.tpot_ms is not None
    assert found.ttft_ms >= 300
    assert found.e2e_ms >= 400
    assert found.done_ns - found.sent_ns - found.e2e_ms * 1e6 > 0.05e9
    assert found.tpot_ms == pytest.approx(found.e2e_ms - found.ttft_ms)


def test_a_body_left_open_after_done_ends_the_answer(server: ScriptedServer) -> None:
    found = measure(server, stream(*THREE, STOP, USAGE_3, DONE, end=b""), "hang")
    assert found.outcome is Outcome.OK


def test_timeout_keeps_what_came(server: ScriptedServer) -> None:
    found = measure(server, stream(*THREE, end=b""), "hang", timeout_s=0.3)
    assert (found.outcome, found.error_kind, found.chunks) == (Outcome.TIMEOUT, "timeout", 3)
    assert 0.3e9 <= found.done_ns - found.sent_ns < 5e9


def test_inter_token_latency_is_shared_out_over_tokens(server: ScriptedServer) -> None:
    steps = stream(*(text("w", usage=usage(n)) for n in (1, 5, 6)), STOP, DONE, gap_s=0.1)
    url = server.play("case", steps)
    result = replay(Endpoint(url, "m"), requests(1), concurrency=1, usage_per_event=True)
    assert result.itl_ms is not None
    assert len(result.itl_ms) == 5
    assert len(set(result.itl_ms[:4])) == 1
    assert sum(result.itl_ms) > 100
    sent = server.received("case")[-1]["body"]["stream_options"]
    assert sent == {"include_usage": True, "continuous_usage_stats": True}
    unknown = server.play("case", stream(text("w w"), text("w"), STOP, USAGE_3, DONE))
    assert replay(Endpoint(unknown, "m"), requests(1), concurrency=1).itl_ms is None


def test_what_is_sent(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    url = server.play("prefix", stream(*THREE, STOP, USAGE_3, DONE))
    chat = NormalisedRequest(
        id="a",
        kind="chat",
        line=1,
        messages=({"role": "user", "content": "hé"},),
        sampling={"temperature": 0.5},
        max_output_tokens=40,
    )
    plain = NormalisedRequest(id="b", kind="completion", line=2, prompt=(3, 4))
    endpoint = Endpoint(url + "/sub/v1/", "m", api_key="key")
    replay(endpoint, [chat, plain], concurrency=1, cache_salt="s", max_output_tokens=30)
    replay(Endpoint(url, "m"), [chat], concurrency=1)
    posts = [entry for entry in server.received("prefix") if entry["method"] == "POST"]
    common = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    messages = {"temperature": 0.5, "messages": [{"role": "user", "content": "hé"}]}
    assert [(entry["path"], entry["body"]) for entry in posts] == [
        ("/sub/v1/chat/completions", common | messages | {"max_tokens": 30, "cache_salt": "s"}),
        ("/sub/v1/completions", common | {"prompt": [3, 4], "max_tokens": 30, "cache_salt": "s"}),
        ("/v1/chat/completions", common | messages | {"max_tokens": 40}),
    ]
    assert posts[0]["headers"]["authorization"] == "Bearer key"
    assert "authorization" not in posts[2]["headers"]


def test_connections_are_opened_before_the_window_and_kept(server: ScriptedServer) -> None:
    url = server.play("case", stream(*THREE, STOP, USAGE_3, DONE, gap_s=0.02))
    result = replay(Endpoint(url, "m"), requests(24), concurrency=8)
    log = server.received("case")
    assert [entry["method"] for entry in log] == ["GET"] * 8 + ["POST"] * 24
    opened = {entry["port"] for entry in log[:8]}
    assert len(opened) == 8
    assert {entry["port"] for entry in log} == opened
    assert result.client.peak_in_flight == 8
    assert [one.sequence for one in result.measurements] == list(range(24))
    assert [one.request_id for one in result.measurements] == [f"r{i}" for i in range(24)]
    assert all(one.ok for one in result.measurements)
    assert result.duration_s >= 3 * 0.1
    assert 0 < result.client.overhead_share < 1
    assert result.client.cpu_s > 0


def test_a_slot_is_due_when_its_last_answer_ended(server: ScriptedServer) -> None:
    url = server.play("case", stream(*THREE, STOP, USAGE_3, DONE, gap_s=0.01))
    found = replay(Endpoint(url, "m"), requests(3), concurrency=1).measurements
    assert [one.scheduled_ns for one in found] == [0, found[0].done_ns, found[1].done_ns]


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = Endpoint(f"http://127.0.0.1:{free.getsockname()[1]}", "m")
        with pytest.raises(ServerGone) as gone:
            replay(endpoint, requests(500), concurrency=16, give_up_after_s=1)
    found = gone.value.result.measurements
    assert 16 <= len(found) <= 40  # the rest was not hammered
    assert {(one.outcome, one.error_kind) for one in found} == {
        (Outcome.REFUSED, "connection_refused")
    }
    assert f"{len(found)} requests in a row" in gone.value.reason


def test_a_server_that_comes_back_is_measured_on() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = json.dumps({"model": "m", "behaviour": {"start_delay_s": 1, "output_tokens": 2}})
    command = [sys.executable, "-m", "runner.engines.simulator_server", "--config", config]
    with subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL) as late:
        try:
            endpoint = Endpoint(f"http://127.0.0.1:{port}", "m")
            result = replay(endpoint, requests(30), concurrency=3)
        finally:
            late.kill()
    kinds = [one.error_kind for one in result.measurements]
    assert 5 <= kinds.count("connection_refused") < 20
    assert kinds.count(None) == 30 - kinds.count("connection_refused")


def test_refusals_are_counted_once_each_and_not_retried(server: ScriptedServer) -> None:
    url = server.play("case", [(0.0, head("429 No")), (0.0, b"0\r\n\r\n")])
    result = replay(Endpoint(url, "m"), requests(8), concurrency=4)
    assert [one.error_kind for one in result.measurements] == ["http_429"] * 8
    posts = [entry for entry in server.received("case") if entry["method"] == "POST"]
    assert len(posts) == 8


def test_large_prompt(server: ScriptedServer) -> None:
    url = server.play("case", stream(*THREE, STOP, DONE))
    request = NormalisedRequest(id="a", kind="completion", line=1, prompt="word " * 300_000)
    assert replay(Endpoint(url, "m"), [request], concurrency=1).measurements[0].ok


def _certificate(path: Path) -> Path:
    """A certificate of 127.0.0.1 that signs itself, and its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    coding = serialization.Encoding.PEM
    key_text = key.private_bytes(
        coding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(key_text + certificate.public_bytes(coding))
    return path


def test_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = _certificate(tmp_path / "server.pem")
    with ScriptedServer(certificate) as secure:
        url = secure.play("case", stream(*THREE, STOP, USAGE_3, DONE))
        with pytest.raises(ServerGone) as unknown:
            replay(Endpoint(url, "m"), requests(9), concurrency=1, give_up_after_s=0)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        result = replay(Endpoint(url, "m"), requests(4), concurrency=2)
    kinds = {one.error_kind for one in unknown.value.result.measurements}
    assert kinds == {"connection_failed"}
    assert [one.output_tokens for one in result.measurements] == [3] * 4


def test_what_answers_is_no_http(server: ScriptedServer) -> None:
    url = server.play("case", [(0.0, b"SSH-2.0-server\r\n\r\n")], "close")
    with pytest.raises(ServerGone) as gone:
        replay(Endpoint(url, "m"), requests(9), concurrency=1, give_up_after_s=0)
    kinds = [one.error_kind for one in gone.value.result.measurements]
    assert kinds == ["no_answer"] * 5


def test_arguments_that_make_no_trial() -> None:
    endpoint = Endpoint("http://127.0.0.1:9", "m")
    for given, concurrency in (([], 1), (requests(1), 0), (requests(1) * 2, 1)):
        with pytest.raises(ValueError, match="A trial"):
            replay(endpoint, given, concurrency=concurrency)
    with pytest.raises(ValueError, match="one line"):
        replay(Endpoint("http://127.0.0.1:9", "m", "a\r\nb"), requests(1), concurrency=1)
    with pytest.raises(ValueError, match="http://"):
        replay(Endpoint("127.0.0.1:9", "m"), requests(1), concurrency=1)


def test_result_is_plain_data(server: ScriptedServer) -> None:
    url = server.play("case", stream(REAL_ERROR, DONE))
    result = replay(Endpoint(url, "m"), requests(1), concurrency=1)
    assert isinstance(result, ReplayResult)
    assert "quoted prompt" not in repr(result)
