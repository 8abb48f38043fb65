"""As much HTTP/1.1 as the simulator needs: keep-alive, bodies with a length, chunked answers.

Written on bare asyncio streams because its own time counts: a web framework's share of a step
would be a part of every latency that the simulator claims to know.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

MAX_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes


class HttpError(Exception):
    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None when the client closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.LimitOverrunError:
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "header too long") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise HttpError(HTTPStatus.BAD_REQUEST, "no request line")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise HttpError(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length")
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no usable Content-Length")
    try:
        body = await reader.readexactly(int(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Request(words[0], words[1].split("?")[0], body)


def write_response(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    body: bytes,
    *,
    content_type: str = "application/json",
    extra: str = "",
) -> None:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}\r\n"
    )
    writer.write(head.encode() + body)


def write_json(
    writer: asyncio.StreamWriter, document: dict[str, Any], status: HTTPStatus = HTTPStatus.OK
) -> None:
    write_response(writer, status, json.dumps(document).encode())


def write_error(writer: asyncio.StreamWriter, status: HTTPStatus, text: str) -> None:
    error = {"message": text, "type": status.phrase, "code": status.value}
    extra = "Retry-After: 1\r\n" if status is HTTPStatus.TOO_MANY_REQUESTS else ""
    write_response(writer, status, json.dumps({"error": error}).encode(), extra=extra)


def begin_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


def write_event(writer: asyncio.StreamWriter, data: str) -> None:
    """One event in one chunk, so that it arrives in one packet."""
    event = f"data: {data}\n\n".encode()
    writer.write(b"%x\r\n%b\r\n" % (len(event), event))


def end_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
