"""How to send: connections that stay open, requests written in one piece, bytes kept as they came.

Parsing between two reads would make the next time stamps late, so an answer stays a list of
``(perf_counter_ns, bytes)`` until ``runner.replay.count`` reads it after the trial.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter_ns
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit

from runner.engines.base import Endpoint
from runner.replay.http1 import Connection, Exchange, Readers
from runner.traffic.request import Kind

CONNECT_TIMEOUT_S = 10.0
OPENING_TIMEOUT_S = 15.0
OPENING_AT_ONCE = 64
"""Half of the smallest backlog in use: more at once would wait a second for a second SYN."""
SPARE_CONNECTIONS = 4
"""Kept open beside those in use, so that an open loop finds one that is ready."""
DRAIN_AFTER_DONE_S = 1.0
"""How long a body may stay open after its [DONE] before we call the answer complete."""
_PATHS: dict[Kind, str] = {"chat": "/chat/completions", "completion": "/completions"}


class End(StrEnum):
    """How the exchange ended for the transport; ``count`` turns it into an Outcome."""

    CLEAN = "clean"
    LOST = "connection_lost"  # in the middle of the body
    NO_ANSWER = "no_answer"  # connected, and closed before any status line
    REFUSED = "connection_refused"
    UNREACHABLE = "connection_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    TIMEOUT = "timeout"
    TOO_LARGE = "answer_too_large"


NO_SERVER = frozenset({End.NO_ANSWER, End.REFUSED, End.UNREACHABLE, End.CONNECT_TIMEOUT})


@dataclass(slots=True)
class Answer:
    """Raw time stamps (``perf_counter_ns``) and bytes of one exchange."""

    sequence: int
    scheduled_ns: int
    sent_ns: int = 0
    done_ns: int = 0
    status: int | None = None
    retry_after: str | None = None
    """The header's value as it came."""
    end: End = End.CLEAN
    packets: list[tuple[int, bytes]] = field(default_factory=list)
    size_bytes: int = 0
    """Of all packets."""


def api_root(url: str) -> str:
    """The address that ends in ``/v1``: ``url`` is a server's root, with or without ``/v1``."""
    root = url.rstrip("/")
    return root if root.endswith("/v1") else f"{root}/v1"


class Client:
    """Keep-alive connections to one endpoint, as many as the load needs.

    No cap on connections: a hidden one would make a queue in the client that looks like a slow
    server. No proxy from the environment and no redirect: the address given is measured. Nothing
    bounds what is read, so that a long line never makes the transport pause.
    """

    def __init__(
        self, endpoint: Endpoint, *, timeout_s: float, readers: Readers | None = None
    ) -> None:
        parts = urlsplit(api_root(endpoint.url))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("An endpoint's url begins with http:// or https:// and has a host.")
        if endpoint.api_key and not endpoint.api_key.isprintable():
            raise ValueError("An API key is one line of printable characters.")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._timeout_s = timeout_s
        self._readers = readers
        self._heads, self._get_models = _heads(parts.path, parts.netloc, endpoint.api_key)
        self._addresses: list[tuple[str, int]] = []
        self._idle: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in self._idle:
            connection.abort()
        await asyncio.sleep(0)  # lets the transports close their sockets

    async def open_connections(self, count: int) -> None:
        """Open ``count`` connections before the clock starts, so that no TTFT holds a handshake.

        Each asks for the list of models, so that the server has taken it in. Best effort: a server
        that is not there shows itself in the first request.
        """
        turns = asyncio.Semaphore(OPENING_AT_ONCE)
        opened: list[Connection] = []

        async def touch() -> None:
            async with turns:
                connection = await self._connect()
            answer = Answer(0, 0)
            await self._exchange(self._get_models, answer, connection, opened)

        try:
            async with asyncio.timeout(OPENING_TIMEOUT_S):
                await asyncio.gather(*(touch() for _ in range(count)), return_exceptions=True)
        except TimeoutError:
            pass
        self._idle.extend(opened)

    async def send(self, kind: Kind, body: bytes, answer: Answer) -> None:
        """Send one request and fill ``answer``. Raises nothing but cancellation."""
        request = b"%bContent-Length: %d\r\n\r\n%b" % (self._heads[kind], len(body), body)
        answer.sent_ns = perf_counter_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._take_idle() or await self._connect()
                await self._exchange(request, answer, connection, self._idle)
        except _ConnectTimeout:
            answer.end = End.CONNECT_TIMEOUT
        except TimeoutError:
            answer.end = End.TIMEOUT
        except ConnectionRefusedError:
            answer.end = End.REFUSED
        except OSError:
            answer.end = End.UNREACHABLE
        answer.done_ns = perf_counter_ns()

    def open_spare(self) -> None:
        """Open one more connection beside the work where few are idle; for open loops."""
        if len(self._idle) + len(self._opening) < SPARE_CONNECTIONS:
            task = asyncio.ensure_future(self._open_one())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_one(self) -> None:
        try:
            self._idle.append(await self._connect())
        except (OSError, _ConnectTimeout):
            return  # the request that needs it will say so

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _exchange(
        self, request: bytes, answer: Answer, connection: Connection, kept: list[Connection]
    ) -> None:
        """``connection`` goes to ``kept`` afterwards, if it can be used again."""
        exchange = Exchange(answer.packets, DRAIN_AFTER_DONE_S)
        try:
            answer.sent_ns = connection.send(request, exchange)
            clean = await exchange.ended
        finally:
            answer.status = exchange.reader.status
            answer.size_bytes = exchange.size_bytes
            answer.retry_after = exchange.reader.fields.get("retry-after")
            if connection.finish():
                kept.append(connection)
        if exchange.too_large:
            answer.end = End.TOO_LARGE
        elif not clean:
            answer.end = End.NO_ANSWER if answer.status is None else End.LOST

    async def _connect(self) -> Connection:
        """A new connection, by the first of the host's addresses that takes one."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if not self._addresses:
                    found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                    self._addresses = [(str(one[4][0]), self._port) for one in found]
                return await self._connect_to_any(loop)
        except TimeoutError:
            raise _ConnectTimeout from None

    async def _connect_to_any(self, loop: asyncio.AbstractEventLoop) -> Connection:
        name = self._host if self._tls else None
        for place, (address, port) in enumerate(self._addresses):
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(self._readers),
                    address, port, ssl=self._tls, server_hostname=name,
                )  # fmt: skip
            except OSError:
                if place == len(self._addresses) - 1:
                    raise
            else:
                return connection
        raise OSError("the host has no address")


class _ConnectTimeout(Exception):
    pass


def _heads(path: str, netloc: str, api_key: str | None) -> tuple[dict[Kind, bytes], bytes]:
    """The beginnings of all requests, which do not change: those of each kind, and /models."""
    fields = [f"Host: {netloc.rpartition('@')[2]}", "Accept-Encoding: identity"]
    if api_key:
        fields.append(f"Authorization: Bearer {api_key}")
    shared = "\r\n".join(fields)
    root = quote(path, safe="/%:@!$&'()*+,;=~")
    posts: dict[Kind, bytes] = {
        kind: f"POST {root}{place} HTTP/1.1\r\n{shared}\r\nAccept: text/event-stream\r\n"
        "Content-Type: application/json\r\n".encode()
        for kind, place in _PATHS.items()
    }
    return posts, f"GET {root}/models HTTP/1.1\r\n{shared}\r\n\r\n".encode()
