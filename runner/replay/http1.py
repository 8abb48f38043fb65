"""HTTP/1.1 as the load generator needs it: stamp first, un-frame, parse nothing else.

A general client wakes a task and runs a stream reader for every packet, so that a stamp waits for
the tasks before it. Here the socket's callback takes the stamp (RFC 9112 for the framing;
``docs/decisions/0020-http-client.md`` says why this is our own).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter_ns
from typing import Protocol

READ_PIECE_BYTES = 64 * 2**10
MAX_HEAD_BYTES = 64 * 2**10
MAX_ANSWER_BYTES = 64 * 2**20
"""A hundred times the longest honest answer: a server without an end must not fill our memory."""
MAX_CHUNK_LINE_BYTES = 4 * 2**10
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}[ \t]*(?:;|$)")
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-5]\d\d)(?: |$)")


class FramingError(Exception):
    """What came is no HTTP/1.1 response."""


class ResponseReader:
    """Finds the status and the end of one response in its bytes, and takes the framing off."""

    # Slots here and below: hundreds of streams take turns in the processor's caches.
    __slots__ = (
        "_at_border", "_closes", "_head", "_in_trailer", "_left", "_line_end", "_rest",
        "_take_body", "ended", "fields", "keep_alive", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status: int | None = None
        self.ended = False
        self.keep_alive = True
        self.fields: dict[str, str] = {}
        """Header fields, names in lower case."""
        self._head = bytearray()
        self._take_body: Callable[[bytes], bytes] = self._until_close
        self._closes = False
        self._left = 0
        self._line_end = 0  # bytes of the CRLF behind a chunk that are still to come
        self._rest = b""
        self._in_trailer = False
        self._at_border = False  # the next byte begins a chunk

    def feed(self, data: bytes) -> bytes:
        """The body bytes in ``data``, which may be none. Raises FramingError."""
        if self._at_border:
            # Nearly every packet of a stream is one whole chunk.
            border = data.find(b"\r\n", 1, 8)
            size = _chunk_size(data[:border]) if border > 0 else None
            if size and border + size + 4 == len(data) and data.endswith(b"\r\n"):
                return data[border + 2 : -2]
        if self.status is None:
            self._head += data
            while self.status is None:
                end = self._head.find(b"\r\n\r\n")
                if end < 0:
                    if len(self._head) > MAX_HEAD_BYTES:
                        raise FramingError
                    return b""
                self._read_head(self._head[:end].decode("latin-1"))
                del self._head[: end + 4]
            data = bytes(self._head)
        if self.ended:
            self.keep_alive = self.keep_alive and not data
            return b""
        return self._take_body(data)

    def closed(self) -> bool:
        """The connection ended; was that the proper end of this response?"""
        self.keep_alive = False
        self.ended = self.ended or (self.status is not None and self._closes)
        return self.ended

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        match = _STATUS_LINE.match(first)
        if match is None:
            raise FramingError
        status = int(match.group(2))
        if status < 200:
            return  # an interim answer; the real one follows
        self.fields = {}
        for line in lines:
            name, _, value = line.partition(":")
            self.fields[name.strip().lower()] = value.strip()
        fields = self.fields
        closes = "close" in fields.get("connection", "").lower()
        self.keep_alive = not closes and match.group(1) == "1"
        length = fields.get("content-length")
        if "chunked" in fields.get("transfer-encoding", "").lower():
            self._take_body = self._chunks
        elif status in (204, 304):
            self.ended = True
        elif length is not None:
            if not (length.isascii() and length.isdecimal()):
                raise FramingError
            self._left = int(length)
            self.ended = self._left == 0
            self._take_body = self._counted
        else:
            self._closes = True
            self.keep_alive = False
        self.status = status

    def _until_close(self, data: bytes) -> bytes:
        return data

    def _counted(self, data: bytes) -> bytes:
        body = data[: self._left]
        self._left -= len(body)
        self.ended = self._left == 0
        self.keep_alive = self.keep_alive and len(body) == len(data)
        return body

    def _chunks(self, data: bytes) -> bytes:
        if self._rest:
            data, self._rest = self._rest + data, b""
        parts: list[bytes] = []
        place, size = 0, len(data)
        while place < size and not self.ended:
            if self._left:
                part = data[place : place + self._left]
                parts.append(part)
                place += len(part)
                self._left -= len(part)
                self._line_end = 0 if self._left else 2
            elif self._line_end:
                skip = min(self._line_end, size - place)
                place += skip
                self._line_end -= skip
            else:
                place = self._chunk_line(data, place)
        if self.ended and place < size:
            self.keep_alive = False
        self._at_border = not (self._rest or self._left or self._line_end or self._in_trailer)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _chunk_line(self, data: bytes, place: int) -> int:
        end = data.find(b"\r\n", place)
        if end < 0:
            self._rest = data[place:]
            if len(self._rest) > MAX_CHUNK_LINE_BYTES:
                raise FramingError
            return len(data)
        if self._in_trailer:
            self.ended = end == place
        else:
            size = _chunk_size(data[place:end])
            if size is None:
                raise FramingError
            self._left = size
            self._in_trailer = size == 0
        return end + 2


@lru_cache(maxsize=4096)
def _chunk_size(line: bytes) -> int | None:
    """What the line before a chunk says; None: it is no such line."""
    match = _CHUNK_SIZE.match(line)
    return int(match.group().rstrip(b"; \t"), 16) if match else None


class Exchange:
    """One request's answer as it arrives: stamped packets of body, and the future of its end."""

    __slots__ = ("_drain", "_drain_s", "ended", "packets", "reader", "size_bytes")

    def __init__(self, packets: list[tuple[int, bytes]], drain_after_done_s: float) -> None:
        self.reader = ResponseReader()
        self.packets = packets
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True: a proper end. False: the connection was lost, or what came was no HTTP."""
        self.size_bytes = 0
        self._drain_s = drain_after_done_s
        self._drain: asyncio.TimerHandle | None = None

    def take(self, data: bytes, arrived_ns: int) -> bool:
        """Bytes of the answer, and when they came. Returns whether this was all of it."""
        try:
            body = self.reader.feed(data)
        except FramingError:
            self.end(False)
            return True
        if body:
            self.packets.append((arrived_ns, body))
            self.size_bytes += len(body)
        if self.size_bytes > MAX_ANSWER_BYTES:
            self.end(False)
        elif self.reader.ended:
            self.end(True)
        elif self._drain is None and b"[DONE]" in body[-24:] and _says_done(body):
            # The body's end should follow; a server that never sends it must not hold us.
            loop = asyncio.get_running_loop()
            self._drain = loop.call_later(self._drain_s, self.end, True)
            return True  # the loop has a timer now
        else:
            return False
        return True

    @property
    def too_large(self) -> bool:
        return self.size_bytes > MAX_ANSWER_BYTES

    def end(self, clean: bool) -> None:
        if self._drain is not None:
            self._drain.cancel()
        if not self.ended.done():
            self.ended.set_result(clean)


def _says_done(packet: bytes) -> bool:
    """Is the last line ``data: [DONE]``? Answer text holds no raw line end, so none looks so."""
    lines = packet.rstrip(b"\r\n")
    start = max(lines.rfind(b"\n"), lines.rfind(b"\r")) + 1
    return lines[start:] in (b"data: [DONE]", b"data:[DONE]")


class Readers(Protocol):
    """Who tells that a socket has something, with less ado than the event loop."""

    def serve(self, descriptor: int, read: Callable[[], bool]) -> None: ...
    def leave(self, descriptor: int) -> None: ...


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time.

    With ``readers`` it reads its socket itself when they say so, and the transport only connects,
    writes and closes. TLS stays with asyncio.
    """

    __slots__ = ("_descriptor", "_exchange", "_readers", "_transport")

    def __init__(self, readers: Readers | None = None) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._readers = readers
        self._descriptor = -1

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, exchange: Exchange) -> int:
        """Hand ``request`` to the socket; returns the time stamp taken just before."""
        assert self._transport is not None
        self._exchange = exchange
        sent_ns = perf_counter_ns()
        self._transport.write(request)
        return sent_ns

    def finish(self) -> bool:
        """The exchange is over; can the connection take another?"""
        exchange, self._exchange = self._exchange, None
        reader = exchange.reader if exchange else None
        if not (reader and reader.ended and reader.keep_alive and self.usable):
            self.abort()
            return False
        return True

    def abort(self) -> None:
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._readers is not None and transport.get_extra_info("sslcontext") is None:
            transport.pause_reading()
            self._descriptor = transport.get_extra_info("socket").fileno()
            self._readers.serve(self._descriptor, self._read)

    def _leave(self) -> None:
        if self._readers is not None and self._descriptor >= 0:
            self._readers.leave(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bool:
        """Read what is there; whether the loop has work now."""
        try:
            data = os.read(self._descriptor, READ_PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.connection_lost(error)
            self.abort()
            return True
        arrived_ns = perf_counter_ns()  # before anything else
        if not data:
            self.connection_lost(None)
            self.abort()
            return True
        if self._exchange is None:
            self.abort()  # nobody asked
            return True
        return self._exchange.take(data, arrived_ns)

    def data_received(self, data: bytes) -> None:
        arrived_ns = perf_counter_ns()  # before anything else
        if self._exchange is not None:
            self._exchange.take(data, arrived_ns)
        else:
            self.abort()  # nobody asked

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        exchange = self._exchange
        if exchange is not None:
            exchange.end(exchange.reader.closed() if error is None else exchange.reader.ended)
