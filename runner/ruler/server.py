"""A server that answers when it says: first token after a set delay, then one every set gap.

    python -m runner.ruler.server --ttft-ms 50 --gap-ms 10 --tokens 100

Every event has a moment at which it is due, counted from when its request was read, so that one
late event makes no other late. It says itself how late it was: GET /lateness, from "due" to
"written"; DELETE /lateness forgets. Paths: /v1/chat/completions and /v1/completions (streams
only), /v1/models, /health, /lateness. Listens on 127.0.0.1 and ends with its standard input.

One timer serves all streams. The delays are the same for all, so what is due next is always at
the head of one of two queues, and one wake-up writes all that is due.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import sys
import time
from array import array
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from time import perf_counter_ns
from typing import Any

from calculator.measurement import NS_PER_MS, NS_PER_S
from runner.replay.health import WatchedSelector
from runner.ruler import script

BACKLOG = 4096
MAX_HEAD_BYTES = 64 * 2**10
MAX_BODY_BYTES = 64 * 2**20
MAX_TOKENS = 100_000
MOST_WRITES_AT_ONCE = 64
"""Then the sockets are looked at again, so that a request is not read late behind a burst."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*\r\n", re.IGNORECASE)


class Clock:
    """Writes each stream's pieces when they are due, and keeps how late that was."""

    def __init__(self, ttft_ns: int, gap_ns: int) -> None:
        self._ttft_ns = ttft_ns
        self._gap_ns = gap_ns
        # (due, stream), each in order of due: the same delay is added to rising moments.
        self._first: deque[tuple[int, Stream]] = deque()
        self._later: deque[tuple[int, Stream]] = deque()
        self._timer: asyncio.Handle | None = None
        self.first_late_ns = array("q")
        self.all_late_ns = array("q")

    def forget(self) -> None:
        """What was written until now no longer counts."""
        del self.first_late_ns[:], self.all_late_ns[:]

    def add(self, stream: Stream, read_ns: int) -> None:
        """The first token of ``stream`` is due ``ttft`` after ``read_ns``."""
        self._first.append((read_ns + self._ttft_ns, stream))
        if self._timer is None:
            self._wait()

    def _next(self) -> deque[tuple[int, Stream]] | None:
        """The queue with what is due next."""
        first, later = self._first, self._later
        if not (first and later):
            return first or later or None
        return first if first[0][0] <= later[0][0] else later

    def _wait(self) -> None:
        queue = self._next()
        self._timer = None
        if queue:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                max(0, queue[0][0] - perf_counter_ns()) / NS_PER_S, self._write_due
            )

    def _write_due(self) -> None:
        """All that is due, up to MOST_WRITES_AT_ONCE of them."""
        now_ns = perf_counter_ns()
        for _ in range(MOST_WRITES_AT_ONCE):
            queue = self._next()
            if queue is None or queue[0][0] > now_ns:
                break
            due_ns, stream = queue.popleft()
            if stream.gone:
                continue
            first = stream.place == 0
            more = stream.write_next()
            now_ns = perf_counter_ns()
            self.all_late_ns.append(now_ns - due_ns)
            if first:
                self.first_late_ns.append(now_ns - due_ns)
            if more:
                self._later.append((due_ns + self._gap_ns, stream))
        self._wait()

    def report(self) -> dict[str, Any]:
        """Milliseconds late, of all events and of the first ones."""
        return {
            "events": _summary_ms(self.all_late_ns),
            "first_tokens": _summary_ms(self.first_late_ns),
        }


def _summary_ms(late_ns: Sequence[int]) -> dict[str, float | int | None]:
    """Nearest ranks; None without values."""
    ordered = sorted(late_ns)
    count = len(ordered)

    def rank(percent: int) -> float | None:
        return ordered[max(0, -(-count * percent // 100) - 1)] / NS_PER_MS if count else None

    return {"count": count, "p50_ms": rank(50), "p99_ms": rank(99), "max_ms": rank(100)}


class Stream:
    """One answer on its way out."""

    __slots__ = ("_connection", "_pieces", "gone", "place")

    def __init__(self, connection: Connection, pieces: Sequence[bytes]) -> None:
        self._connection = connection
        self._pieces = pieces
        self.place = 0
        self.gone = False
        """The client hung up."""

    def write_next(self) -> bool:
        """Write the next piece; whether there are more."""
        piece = self._pieces[self.place]
        self.place += 1
        more = self.place < len(self._pieces)
        if not more:
            self._connection.answered()
        self._connection.write(piece)
        return more


class Server:
    """What all connections share."""

    def __init__(self, clock: Clock, tokens: int, role_event: bool) -> None:
        self.clock = clock
        self._tokens = tokens
        self._role_event = role_event

    def answer(self, method: str, path: str, body: bytes, connection: Connection) -> None:
        """Answer one request that was just read."""
        read_ns = perf_counter_ns()
        if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            self._stream("chat" if "chat" in path else "completion", body, connection, read_ns)
        elif method == "GET" and path == "/v1/models":
            connection.reply({"object": "list", "data": [{"id": script.MODEL, "object": "model"}]})
        elif method == "GET" and path == "/health":
            connection.reply({})
        elif method == "GET" and path == "/lateness":
            connection.reply({**self.clock.report(), "cpu_s": time.process_time()})
        elif method == "DELETE" and path == "/lateness":
            self.clock.forget()
            connection.reply({})
        else:
            connection.refuse(HTTPStatus.NOT_FOUND, "no such path")

    def _stream(self, kind: script.Kind, body: bytes, connection: Connection, read_ns: int) -> None:
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict) or asked.get("stream") is not True:
            connection.refuse(HTTPStatus.BAD_REQUEST, "a JSON object with stream: true is needed")
            return
        pieces = script.pieces(
            kind, _token_limit(asked, self._tokens), _prompt_tokens(asked), _usage(asked)
        )
        stream = Stream(connection, pieces)
        connection.begin(stream)
        if kind == "chat" and self._role_event:
            connection.write(script.HEAD + script.role_event())
        else:
            connection.write(script.HEAD)
        self.clock.add(stream, read_ns)


def _token_limit(asked: dict[str, Any], tokens: int) -> int:
    """The request's own limit where it has one, else ``tokens``."""
    for name in ("max_completion_tokens", "max_tokens"):
        limit = asked.get(name)
        if isinstance(limit, int) and 0 < limit <= MAX_TOKENS:
            return limit
    return tokens


def _prompt_tokens(asked: dict[str, Any]) -> int:
    """Words, as a tokeniser of our own would count them."""
    texts = [asked.get("prompt")]
    messages = asked.get("messages")
    if isinstance(messages, list):
        texts += [message.get("content") for message in messages if isinstance(message, dict)]
    return sum(len(text.split()) for text in texts if isinstance(text, str))


def _usage(asked: dict[str, Any]) -> script.Usage:
    options = asked.get("stream_options")
    if not isinstance(options, dict) or not options.get("include_usage"):
        return "none"
    return "every" if options.get("continuous_usage_stats") else "last"


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if hasattr(transport, "max_size"):
            transport.max_size = MAX_HEAD_BYTES  # asyncio's 256 KiB cost more than the read

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        if self._stream is not None:
            return  # pipelined: it has its turn after this answer
        self._read()

    def _read(self) -> None:
        received = self._received
        end = received.find(b"\r\n\r\n")
        if end < 0:
            if len(received) > MAX_HEAD_BYTES:
                self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long")
            return
        head = received[: end + 2]
        found = _LENGTH.search(head)
        size = int(found[1]) if found else 0
        if size > MAX_BODY_BYTES or (found is None and b"chunked" in head.lower()):
            self.refuse(HTTPStatus.LENGTH_REQUIRED, "a Content-Length of at most 64 MiB is needed")
            return
        if len(received) < end + 4 + size:
            return
        line = head[: head.find(b"\r\n")].decode("latin-1").split(" ")
        if len(line) != 3:
            self.refuse(HTTPStatus.BAD_REQUEST, "no HTTP/1.1 request")
            return
        self._received = received[end + 4 + size :]
        body = received[end + 4 : end + 4 + size]
        self._server.answer(line[0], line[1].partition("?")[0], body, self)

    def begin(self, stream: Stream) -> None:
        self._stream = stream

    def answered(self) -> None:
        """The stream's last piece is on its way; another request may come."""
        self._stream = None
        if self._received:
            asyncio.get_running_loop().call_soon(self._read)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def reply(self, document: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        body = json.dumps(document).encode()
        self.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, status.phrase.encode(), len(body), body)
        )

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Say why not, and close: what follows may be no request."""
        self.reply({"error": {"message": message, "code": int(status)}}, status)
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._stream is not None:
            self._stream.gone = True


async def serve(options: argparse.Namespace) -> None:
    """Listen until standard input ends."""
    loop = asyncio.get_running_loop()
    clock = Clock(round(options.ttft_ms * NS_PER_MS), round(options.gap_ms * NS_PER_MS))
    shared = Server(clock, options.tokens, options.role_event)
    listening = await loop.create_server(
        lambda: Connection(shared), "127.0.0.1", options.port, backlog=BACKLOG
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, lambda: ended.set() if not os.read(0, 4096) else None)
    gc.collect()
    gc.freeze()
    gc.disable()  # nothing here makes cycles, and a collection would be somebody's late token
    await ended.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m runner.ruler.server", description=__doc__)
    add = parser.add_argument
    add("--ttft-ms", type=float, default=50.0, help="request to first token (default 50)")
    add("--gap-ms", type=float, default=10.0, help="from token to token (default 10)")
    add("--tokens", type=int, default=100, help="of an answer without a limit (default 100)")
    add("--port", type=int, default=0, help="default: a free one, which is printed")
    add("--role-event", action="store_true", help="chat answers begin with one, at once")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(WatchedSelector())) as loop:
        loop.run(serve(options))


if __name__ == "__main__":
    main()
