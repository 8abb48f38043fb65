"""How to send: one HTTP client, which stamps bytes as they arrive and parses nothing.

Parsing between two reads would make the next time stamps late, so an answer stays a list of
``(perf_counter_ns, bytes)`` until ``runner.replay.count`` reads it after the trial.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter_ns
from types import SimpleNamespace, TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from runner.engines.base import Endpoint
from runner.traffic.request import Kind

READ_BUFFER_BYTES = 16 * 2**20
"""A 200 KB line, or a burst of packets, must never make the transport pause reading."""
READ_PIECE_BYTES = 64 * 2**10
CONNECT_TIMEOUT_S = 10.0
OPENING_TIMEOUT_S = 15.0
DRAIN_AFTER_DONE_S = 1.0
"""How long a body may stay open after its [DONE] before we call the answer complete."""
_LARGE_BODY_BYTES = 2**20
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


NO_SERVER = frozenset({End.NO_ANSWER, End.REFUSED, End.UNREACHABLE, End.CONNECT_TIMEOUT})


@dataclass(slots=True)
class Answer:
    """Raw time stamps (``perf_counter_ns``) and bytes of one exchange."""

    sequence: int
    scheduled_ns: int
    sent_ns: int = 0
    done_ns: int = 0
    status: int | None = None
    end: End = End.CLEAN
    packets: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(len(packet) for _, packet in self.packets)


def api_root(url: str) -> str:
    """The address that ends in ``/v1``: ``url`` is a server's root, with or without ``/v1``."""
    root = url.rstrip("/")
    return root if root.endswith("/v1") else f"{root}/v1"


class Client:
    """Keep-alive connections to one endpoint, as many as the load needs.

    ``limit=0``: a hidden cap on connections would make a queue in the client that looks like a
    slow server. No proxy and no ``.netrc`` from the environment: the address given is measured.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        root = api_root(endpoint.url)
        parts = urlsplit(root)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("An endpoint's url begins with http:// or https:// and has a host.")
        if endpoint.api_key and not endpoint.api_key.isprintable():
            raise ValueError("An API key is one line of printable characters.")
        self._models_url = f"{root}/models"
        self._urls = {kind: root + path for kind, path in _PATHS.items()}
        self._timeout_s = timeout_s
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(_stamp_sent)
        # Made now: aiohttp's own context reads SSL_CERT_FILE only once, when it is imported.
        tls = ssl.create_default_context() if parts.scheme == "https" else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0, ssl=tls),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            # Our own limit (asyncio.timeout) stands over each request; aiohttp would round it.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            read_bufsize=READ_BUFFER_BYTES,
            trust_env=False,
            trace_configs=[trace],
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def open_connections(self, count: int) -> None:
        """Open ``count`` connections before the clock starts, so that no TTFT holds a handshake.

        Best effort: a server that is not there shows itself in the first request.
        """

        async def touch() -> None:
            async with self._session.get(self._models_url, allow_redirects=False) as response:
                await response.read()

        try:
            async with asyncio.timeout(OPENING_TIMEOUT_S):
                await asyncio.gather(*(touch() for _ in range(count)), return_exceptions=True)
        except TimeoutError:
            return

    async def send(self, kind: Kind, body: bytes, answer: Answer) -> None:
        """Send one request and fill ``answer``. Raises nothing but cancellation."""
        # aiohttp warns of bytes this large; as a file they go out in pieces.
        data = body if len(body) < _LARGE_BODY_BYTES else io.BytesIO(body)
        answer.sent_ns = perf_counter_ns()
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(
                    self._urls[kind], data=data, allow_redirects=False, trace_request_ctx=answer
                ) as response,
            ):
                answer.status = response.status
                _read_in_small_pieces(response)
                await _read(response.content, answer)
        except aiohttp.ConnectionTimeoutError:
            answer.end = End.CONNECT_TIMEOUT
        except TimeoutError:
            answer.end = End.TIMEOUT
        except aiohttp.ClientSSLError:
            answer.end = End.UNREACHABLE
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            answer.end = End.REFUSED if refused else End.UNREACHABLE
        except (aiohttp.ClientError, OSError):
            answer.end = End.NO_ANSWER if answer.status is None else End.LOST
        answer.done_ns = perf_counter_ns()


async def _stamp_sent(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    parameters: aiohttp.TraceRequestChunkSentParams,
) -> None:
    """The request went to the socket now; with many sent at once this is ms after ``post``."""
    if isinstance(context.trace_request_ctx, Answer):
        context.trace_request_ctx.sent_ns = perf_counter_ns()


def _read_in_small_pieces(response: aiohttp.ClientResponse) -> None:
    """asyncio offers 256 KiB to each ``recv``; to allocate that costs 13 us a packet, to read 3."""
    transport = response.connection.transport if response.connection else None
    # The plain socket transport; TLS reads into one buffer of its own.
    if transport and hasattr(transport, "max_size"):
        transport.max_size = READ_PIECE_BYTES


async def _read(content: aiohttp.StreamReader, answer: Answer) -> None:
    append = answer.packets.append
    while packet := await content.readany():
        append((perf_counter_ns(), packet))
        if _says_done(packet):
            break
    else:
        return
    # Wait for the body's end, so that the connection can be used again; but not for ever.
    try:
        async with asyncio.timeout(DRAIN_AFTER_DONE_S):
            while packet := await content.readany():
                append((perf_counter_ns(), packet))
    except TimeoutError:
        return


def _says_done(packet: bytes) -> bool:
    """Is the packet's last line ``data: [DONE]``? A line of its own cannot be answer text."""
    last = packet[-24:].rstrip(b"\r\n")
    return last.endswith(b"[DONE]") and last.splitlines()[-1] in (b"data: [DONE]", b"data:[DONE]")
