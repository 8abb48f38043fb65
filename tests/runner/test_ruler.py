"""The known-delay server's promises but for its speed, and what the check reads off it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from runner.engines.base import Endpoint
from runner.replay import ReplayStopped, replay
from runner.ruler import KnownDelayServer, Promise, check, check_once
from runner.traffic.request import Kind, NormalisedRequest
from runner.traffic.request import NormalisedRequest as Request

QUICK = Promise(ttft_ms=20.0, gap_ms=2.0, tokens=6)


@pytest.fixture(scope="module")
def server() -> Iterator[KnownDelayServer]:
    with KnownDelayServer(QUICK, role_event=True) as started:
        yield started


def requests(count: int, kind: Kind = "completion", limit: int | None = None) -> list[Request]:
    return [
        NormalisedRequest(
            id=f"r{n}", kind=kind, line=n + 1, max_output_tokens=limit,
            prompt="one two three" if kind == "completion" else "",
            messages=({"role": "user", "content": "one two three"},) if kind == "chat" else (),
        )
        for n in range(count)
    ]  # fmt: skip


def port_of(endpoint: Endpoint) -> int:
    return int(endpoint.url.rpartition(":")[2])


def raw(server: KnownDelayServer, request: bytes, until: bytes) -> bytes:
    """What the server sends up to ``until``."""
    with socket.create_connection(("127.0.0.1", port_of(server.endpoint)), timeout=10) as line:
        line.sendall(request)
        found = b""
        while until not in found:
            piece = line.recv(65536)
            assert piece, found
            found += piece
        return found


def post(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: here\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def events(answer: bytes) -> list[Any]:
    """The data of each event; [DONE] as a string."""
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: ")]
    texts = [line.removeprefix(b"data: ").decode().strip() for line in lines]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_our_own_client_finds_every_token_in_time(server: KnownDelayServer, kind: Kind) -> None:
    found = replay(server.endpoint, requests(40, kind), concurrency=10).measurements
    assert all(one.ok and one.finish_reason == "length" for one in found)
    assert {(one.output_tokens, one.chunks, one.prompt_tokens) for one in found} == {(6, 6, 3)}
    for one in found:
        assert one.ttft_ms is not None
        assert one.tpot_ms is not None
        assert one.ttft_ms >= QUICK.ttft_ms, "the role comes at once and is no token"
        # Dates are kept: a late event is followed sooner by the next, but none comes early.
        assert one.e2e_ms is not None
        assert one.e2e_ms >= QUICK.answer_s * 1000


def test_a_request_s_own_limit_is_kept(server: KnownDelayServer) -> None:
    (one,) = replay(server.endpoint, requests(1, limit=3), concurrency=1).measurements
    assert (one.output_tokens, one.chunks) == (3, 3)


def test_a_chat_stream_has_the_protocol_s_form(server: KnownDelayServer) -> None:
    asked = {
        "stream": True,
        "messages": [{"role": "user", "content": "one two"}],
        "max_completion_tokens": 2,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    answer = raw(server, post("chat/completions", asked), b"\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    role, first, last, usage, done = events(answer)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [one["choices"][0]["finish_reason"] for one in (role, first, last)] == [
        None, None, "length",
    ]  # fmt: skip
    counts = [one["usage"]["completion_tokens"] for one in (first, last, usage)]
    assert counts == [1, 2, 2]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert done == "[DONE]"


def test_usage_comes_only_when_it_is_asked_for(server: KnownDelayServer) -> None:
    answer = raw(server, post("completions", {"stream": True, "prompt": "one"}), b"\r\n0\r\n\r\n")
    *tokens, done = events(answer)
    assert [one["choices"][0]["text"] for one in tokens] == [" tick"] * QUICK.tokens
    assert not any("usage" in one for one in tokens)
    assert done == "[DONE]"


def test_a_request_in_pieces_and_one_behind_it_are_answered_in_turn(
    server: KnownDelayServer,
) -> None:
    one = post("completions", {"stream": True, "prompt": "one", "max_tokens": 2})
    with socket.create_connection(("127.0.0.1", port_of(server.endpoint)), timeout=10) as line:
        line.sendall(one[:25])
        line.sendall(one[25:] + one)
        found = b""
        while found.count(b"[DONE]") < 2:
            found += line.recv(65536)
    assert len(events(found)) == 2 * (2 + 1)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", b"404"),
        (b"nonsense\r\n\r\n", b"400"),
        (post("completions", {"prompt": "not streamed"}), b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, b"431"),
    ],
)
def test_what_it_does_not_serve_is_refused_and_it_goes_on(
    server: KnownDelayServer, request_bytes: bytes, status: bytes
) -> None:
    assert raw(server, request_bytes, b"\r\n\r\n").startswith(b"HTTP/1.1 " + status)
    assert raw(server, b"GET /health HTTP/1.1\r\n\r\n", b"{}").startswith(b"HTTP/1.1 200")


def test_it_counts_what_it_wrote_and_forgets_when_told(server: KnownDelayServer) -> None:
    server.forget_lateness()
    assert server.lateness().events.p50_ms is None
    replay(server.endpoint, requests(7), concurrency=7)
    late = server.lateness()
    assert (late.events.count, late.first_tokens.count) == (7 * QUICK.tokens, 7)
    for one in (late.events, late.first_tokens):
        assert one.p50_ms is not None
        assert one.p99_ms is not None
        assert one.max_ms is not None
        assert 0 < one.p50_ms <= one.p99_ms <= one.max_ms
    assert late.cpu_s > 0


def test_a_client_that_hangs_up_holds_up_nobody(server: KnownDelayServer) -> None:
    for _ in range(3):
        raw(server, post("completions", {"stream": True, "max_tokens": 1000}), b"tick")
    (one,) = replay(server.endpoint, requests(1), concurrency=1).measurements
    assert one.ok


def test_check_gives_each_level_with_what_was_asked() -> None:
    one, many = check([1, 30], promise=QUICK, rounds=4)
    assert (one.concurrency, one.requests, one.asked_ttft_ms) == (1, 4, 20.0)
    assert (many.concurrency, many.requests, many.processes) == (30, 120, 1)
    assert one.ttft_p99_error_ms is None, "four requests have no p99"
    assert one.ttft_p50_error_ms is not None
    assert many.ttft_p99_error_ms is not None
    assert many.tpot_error_share is not None
    # No bar, as other tests may run beside it: what a client that is no bottleneck is far below.
    assert -1 < one.ttft_p50_error_ms < 100
    assert -0.1 < many.tpot_error_share < 10


def test_check_stops_when_it_is_told_to() -> None:
    with pytest.raises(ReplayStopped):
        check([1], promise=Promise(tokens=10_000), should_stop=lambda: True)


def test_check_once_measures_a_level_once() -> None:
    first = check_once([1], lambda: False)
    again = check_once({1}, lambda: False)
    assert again == first
    assert again[0] is first[0]
