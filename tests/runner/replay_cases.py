"""Servers that break naive load generators, each with the right outcome: golden rows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from calculator.measurement import Outcome
from tests.runner.scripted_server import Step
from tests.runner.streams import DONE, chunk, event, head, stream, text, usage

ROLE = event({"role": "assistant", "content": ""})
STOP = event({"content": ""}, finish="stop")
USAGE_3 = event(usage=usage(3))


@dataclass
class Case:
    name: str
    steps: list[Step]
    expected: dict[str, Any]
    end: str = "keep"
    defaults: dict[str, Any] = field(
        default_factory=lambda: {"outcome": Outcome.OK, "error_kind": None}
    )


GOOD = {"output_tokens": 3, "prompt_tokens": 5, "chunks": 3, "finish_reason": "stop"}
LOST = {"outcome": Outcome.CUT, "error_kind": "connection_lost"}
REAL_ERROR = event(error={"message": "quoted prompt", "code": 500})
THREE = (text("a"), text("b"), text("c"))
LONG = text("x" * 200_000)
ODD_TEXT = json.dumps(
    {"choices": [{"delta": {"content": "\u2028 \U0001f642"}}]}, ensure_ascii=False
).encode()

CASES = [
    Case("plain", stream(ROLE, *THREE, STOP, USAGE_3, DONE), GOOD),
    Case("no [DONE] but a clean end", stream(*THREE, STOP, USAGE_3), GOOD),
    Case(
        "keep-alive comment alone", stream(b": ping\n\n", *THREE, b":\n", STOP, USAGE_3, DONE), GOOD
    ),
    Case("empty event", stream(b"data:\n\n", *THREE, STOP, USAGE_3, DONE), GOOD),
    Case(
        "CRLF, two events in a packet",
        stream(
            *(
                packet.replace(b"\n", b"\r\n")
                for packet in (ROLE + text("a"), text("b") + text("c"), STOP + USAGE_3, DONE)
            )
        ),
        GOOD,
    ),
    Case(
        "cut inside a line and inside a character",
        stream(
            text("a"),
            b"data: " + ODD_TEXT[:-20],
            ODD_TEXT[-20:-16],
            ODD_TEXT[-16:] + b"\n",
            b"\n",
            text("c"),
            STOP,
            USAGE_3,
            DONE,
        ),
        GOOD,
    ),
    Case(
        "200 KB line",
        stream(text("a"), LONG[:100], LONG[100:], text("c"), STOP, USAGE_3, DONE),
        GOOD,
    ),
    Case(
        "several tokens an event",
        stream(*(text("w " * n) for n in (4, 1, 5, 3, 5, 2)), STOP, event(usage=usage(20)), DONE),
        {"output_tokens": 20, "chunks": 6, "first_event_tokens": None},
    ),
    Case(
        "several tokens an event, counted by the server",
        stream(
            event({"role": "assistant", "content": ""}, usage=usage(0)),
            text("w w w w", usage=usage(4)),
            text("w", usage=usage(5)),
            event({"content": ""}, finish="stop", usage=usage(20)),
            DONE,
        ),
        {"output_tokens": 20, "chunks": 2, "first_event_tokens": 4},
    ),
    Case(
        "token ids",
        stream(
            b'data: {"choices": [{"delta": {"content": "a b"}, "token_ids": [7, 8]}]}\n\n',
            text("c"),
            STOP,
            event(usage=usage(4)),
            DONE,
        ),
        {"output_tokens": 4, "first_event_tokens": 2, "chunks": 2},
    ),
    Case(
        "reasoning only, until the limit",
        stream(
            ROLE,
            event({"reasoning": "hm"}),
            event({"reasoning_content": "hm"}, finish="length"),
            event(usage=usage(2)),
            DONE,
        ),
        {
            "chunks": 2,
            "finish_reason": "length",
            "output_tokens": 2,
            "first_answer_ns": None,
            "ttfa_ms": None,
            "marks": ("only_reasoning",),
        },
    ),
    Case(
        "one event with reasoning and content",
        stream(event({"reasoning": "hm", "content": "a"}), text("b"), STOP, DONE),
        {"chunks": 2, "output_tokens": None},
    ),
    Case(
        "tool call",
        stream(
            event({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}),
            event({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}),
            event({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
            event({}, finish="tool_calls"),
            DONE,
        ),
        {"chunks": 2, "finish_reason": "tool_calls"},
    ),
    Case(
        "text completion",
        stream(
            b'data: {"choices": [{"text": "a"}]}\n\n',
            b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n',
            DONE,
        ),
        {"chunks": 1},
    ),
    Case("usage missing", stream(*THREE, STOP, DONE), {"output_tokens": None, "chunks": 3}),
    Case(
        "usage null on every event but the last choice",
        stream(
            text("a", usage=None),
            text("b", usage=None),
            text("c", finish="stop", usage=usage(3)),
            DONE,
        ),
        GOOD,
    ),
    Case(
        "usage on every event",
        stream(*(text("w", usage=usage(n)) for n in (1, 2, 3)), STOP, DONE),
        GOOD | {"first_event_tokens": 1},
    ),
    Case(
        "a smaller usage is no cumulative count",
        stream(*THREE, STOP, USAGE_3, event(usage=usage(1)), DONE),
        GOOD,
    ),
    Case(
        "usage that cannot be: more reasoning than tokens",
        stream(
            *THREE,
            STOP,
            event(usage=usage(3, completion_tokens_details={"reasoning_tokens": 9})),
            DONE,
        ),
        {"output_tokens": None, "marks": ("usage_impossible",)},
    ),
    Case(
        "usage that cannot be: no token, true, text, below 0",
        stream(*THREE, STOP, *(event(usage=usage(n)) for n in (0, True, "3", -3)), DONE),
        {"output_tokens": None},
    ),
    Case(
        "cached tokens",
        stream(
            *THREE, STOP, event(usage=usage(3, prompt_tokens_details={"cached_tokens": 4})), DONE
        ),
        GOOD | {"cached_tokens": 4},
    ),
    Case(
        "no text at all",
        stream(ROLE, STOP, event(usage=usage(1)), DONE),
        {"first_token_ns": None, "last_token_ns": None, "chunks": 0, "output_tokens": 1},
    ),
    Case(
        "error object inside the 200",
        stream(*THREE, REAL_ERROR, DONE),
        {"outcome": Outcome.ERROR, "error_kind": "error_in_stream", "chunks": 3},
    ),
    Case(
        "error event by name",
        stream(text("a"), b'event: error\ndata: {"message": "no"}\n\n'),
        {"outcome": Outcome.ERROR, "error_kind": "error_in_stream"},
    ),
    Case("socket closes inside a chunked body", stream(*THREE, end=b""), LOST, "close"),
    Case("finish, but no [DONE] and no clean end", stream(*THREE, STOP, end=b""), LOST, "close"),
    Case(
        "all said before the socket closes",
        stream(*THREE, STOP, USAGE_3, DONE, end=b""),
        GOOD,
        "close",
    ),
    Case(
        "socket closes, body without chunks",
        [(0.0, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"), (0.0, b"".join(THREE))],
        {"outcome": Outcome.CUT, "error_kind": "no_finish_reason", "chunks": 3},
        "close",
    ),
    Case(
        "half an event at the end of a body without chunks",
        [(0.0, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"), (0.0, THREE[0] + THREE[1][:30])],
        {"outcome": Outcome.CUT, "error_kind": "no_finish_reason", "chunks": 1},
        "close",
    ),
    Case(
        "[DONE] without a finish reason",
        stream(*THREE, DONE),
        {"outcome": Outcome.ERROR, "error_kind": "no_finish_reason"},
    ),
    Case(
        "last event without a blank line",
        stream(*THREE, STOP, USAGE_3.rstrip(), b"\n"),
        GOOD,
    ),
    Case(
        "an event that is no JSON",
        stream(text("a"), b"data: <html>\n\n", STOP, DONE),
        {"outcome": Outcome.ERROR, "error_kind": "unreadable_event"},
    ),
    Case(
        "a whole answer instead of a stream",
        stream(b'{"choices": []}'),
        {"outcome": Outcome.ERROR, "error_kind": "not_an_event_stream"},
    ),
    Case("empty body", stream(), {"outcome": Outcome.CUT, "error_kind": "no_finish_reason"}),
    Case(
        "429",
        [(0.0, head("429 Too Many Requests", "Retry-After: 9")), (0.0, b"0\r\n\r\n")],
        {"outcome": Outcome.REFUSED, "error_kind": "http_429", "retry_after_s": 9.0},
    ),
    Case(
        "503",
        [(0.0, head("503 Service Unavailable")), (0.0, b"0\r\n\r\n")],
        {"outcome": Outcome.REFUSED, "error_kind": "http_503", "retry_after_s": None},
    ),
    Case(
        "500",
        [(0.0, head("500 Oops")), (0.0, chunk(REAL_ERROR) + b"0\r\n\r\n")],
        {"outcome": Outcome.ERROR, "error_kind": "http_500", "chunks": 0},
    ),
    Case(
        "redirect is not followed",
        [(0.0, head("307 Temporary Redirect", "Location: /case")), (0.0, b"0\r\n\r\n")],
        {"outcome": Outcome.ERROR, "error_kind": "http_307"},
    ),
    Case(
        "closed before a status line",
        [],
        {"outcome": Outcome.CUT, "error_kind": "no_answer"},
        "close",
    ),
]
