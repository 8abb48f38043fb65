"""Builds what a scripted server sends: status lines, chunked bodies, completion events."""

from __future__ import annotations

import json
from typing import Any

from tests.runner.scripted_server import Step

DONE = b"data: [DONE]\n\n"


def head(status: str = "200 OK", *extra: str) -> bytes:
    """A response head that announces a chunked event stream."""
    lines = ["HTTP/1.1 " + status, "Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
    return "\r\n".join([*lines, *extra, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def event(delta: dict[str, Any] | None = None, *, finish: str | None = None, **extra: Any) -> bytes:
    """One chat event; ``delta`` None: no choice in it."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **extra}).encode() + b"\n\n"


def text(words: str, **extra: Any) -> bytes:
    return event({"content": words}, **extra)


def usage(output: Any, prompt: int = 5, **details: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, **details}


def stream(*packets: bytes, gap_s: float = 0.0, end: bytes = LAST_CHUNK) -> list[Step]:
    """A chunked answer, each packet ``gap_s`` after the one before and in a chunk of its own."""
    return [(0.0, head()), *((gap_s, chunk(packet)) for packet in packets), (0.0, end)]
