"""The bytes of a known-delay answer, made before they are due: one piece for each token."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Literal

Kind = Literal["chat", "completion"]
Usage = Literal["none", "last", "every"]

MODEL = "ruler"
WORD = " tick"
"""The one token of every event."""

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    """``data`` as one chunk (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(document: dict[str, Any]) -> bytes:
    return chunk(b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n")


def _frame(kind: Kind, **more: Any) -> dict[str, Any]:
    name = "chat.completion.chunk" if kind == "chat" else "text_completion"
    return {"id": "ruler", "object": name, "created": 0, "model": MODEL, **more}


def _counts(prompt_tokens: int, written: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
    }


@lru_cache(maxsize=8)
def role_event() -> bytes:
    """What a chat server sends first of all: a delta that only names the role."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return _event(_frame("chat", choices=[choice]))


@lru_cache(maxsize=512)
def pieces(kind: Kind, tokens: int, prompt_tokens: int, usage: Usage) -> tuple[bytes, ...]:
    """``tokens`` pieces, ready for the socket; the last one also ends the answer.

    It carries the finish reason, then the usage event (``usage`` not "none"), ``[DONE]`` and the
    end of the chunked body. With "every", each event has the usage so far.
    """
    made = [_token(kind, number, tokens, prompt_tokens, usage) for number in range(1, tokens + 1)]
    if usage != "none":
        made[-1] += _event(_frame(kind, choices=[], usage=_counts(prompt_tokens, tokens)))
    made[-1] += chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return tuple(made)


def _token(kind: Kind, number: int, tokens: int, prompt_tokens: int, usage: Usage) -> bytes:
    choice: dict[str, Any] = {"index": 0}
    choice.update({"delta": {"content": WORD}} if kind == "chat" else {"text": WORD})
    choice["finish_reason"] = "length" if number == tokens else None
    more = {"usage": _counts(prompt_tokens, number)} if usage == "every" else {}
    return _event(_frame(kind, choices=[choice], **more))
