"""How to count: the raw packets of one answer become one Measurement, after the trial.

Rules (``calculator.measurement`` defines the metrics built on them):

* The first token is the first non-empty text, reasoning or tool-call piece. An event that only
  names the role, an empty string, the final empty event and a usage event move nothing.
* An event is dated by the packet that completed its last data line.
* ``usage`` counts wherever it sits; the last valid cumulative value wins. A value that cannot be
  (more reasoning than tokens, no token where text came) is not used: the count is unknown.
* Success takes a finish reason and then ``[DONE]`` or a clean end of the body.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calculator.measurement import Measurement, Outcome
from runner.replay.alike import Frame, frames
from runner.replay.client import Answer, End
from runner.replay.sse import Decoder, Event

REFUSING_STATUS = frozenset({429, 503})
_REASONING_FIELDS = ("reasoning", "reasoning_content")
_ANSWER_FIELDS = ("content", "refusal")
_MOST_GAP_US = 2**31 - 1
_OTHER_TEXT = b"-"
_FRAMES_TRIED = 16
"""In one answer: a text with escapes makes no frame, and in some streams no event does."""
_END_OUTCOMES = {
    End.LOST: Outcome.CUT,
    End.NO_ANSWER: Outcome.CUT,
    End.REFUSED: Outcome.REFUSED,
    End.UNREACHABLE: Outcome.REFUSED,
    End.CONNECT_TIMEOUT: Outcome.TIMEOUT,
    End.TIMEOUT: Outcome.TIMEOUT,
    End.TOO_LARGE: Outcome.ERROR,
}


@dataclass(slots=True)
class _Stream:
    """What the events of one answer said, in order."""

    events: int = 0
    done: bool = False
    error_kind: str | None = None
    finish_reason: str | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    first_reasoning_ns: int | None = None
    first_answer_ns: int | None = None
    texts: list[bytes] = field(default_factory=list)
    """The text of each token-bearing event, UTF-8."""
    token_ns: list[int] = field(default_factory=list)
    """Per token-bearing event: its time."""
    so_far: list[int | None] = field(default_factory=list)
    """Per token-bearing event: the tokens written until then, where the server says."""
    usage: _Usage | None = None
    usage_impossible: bool = False
    id_tokens: int | None = None
    """Tokens so far by ``token_ids`` (``return_token_ids``); None: not sent."""


@dataclass(frozen=True, slots=True)
class _Usage:
    output_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Counted:
    """A Measurement, and what only the replay itself needs."""

    measurement: Measurement
    text: str | None
    """The answer, where its tokens are still to be counted: it came whole and without usage."""


def count(
    answer: Answer,
    request_id: str,
    category: str | None,
    origin_ns: int,
    *,
    open_loop: bool = False,
) -> Counted:
    """The Measurement of one answer; its times are counted from ``origin_ns``."""
    stream = _Stream()
    if answer.status == 200:
        _read_packets(answer, stream)
    outcome, error_kind = _judge(answer, stream)
    usage = stream.usage
    if usage and usage.output_tokens == 0 and stream.token_ns:
        stream.usage_impossible = True
    if stream.usage_impossible:
        usage = None
    if usage and outcome is Outcome.OK and usage.output_tokens == len(stream.token_ns):
        # As many events as tokens: each carried one, whether the server said so or not.
        stream.so_far = list(range(1, usage.output_tokens + 1))

    def since_start(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - origin_ns

    began_ns = answer.scheduled_ns if open_loop else answer.sent_ns
    measurement = Measurement(
        request_id=request_id,
        sequence=answer.sequence,
        category=category,
        outcome=outcome,
        scheduled_ns=answer.scheduled_ns - origin_ns,
        sent_ns=answer.sent_ns - origin_ns,
        done_ns=answer.done_ns - origin_ns,
        first_byte_ns=since_start(answer.packets[0][0] if answer.packets else None),
        first_token_ns=since_start(stream.first_token_ns),
        last_token_ns=since_start(stream.last_token_ns),
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        first_event_tokens=stream.so_far[0] if stream.so_far else None,
        chunks=len(stream.token_ns),
        finish_reason=stream.finish_reason,
        error_kind=error_kind,
        first_reasoning_ns=since_start(stream.first_reasoning_ns),
        first_answer_ns=since_start(stream.first_answer_ns),
        retry_after_s=_retry_after_s(answer),
        open_loop=open_loop,
        marks=_marks(stream, outcome),
        chunk_gaps_us=_gaps_us(stream, began_ns),
        chunk_bytes=array("I", map(len, stream.texts)),
        chunk_tokens=_chunk_tokens(stream),
    )
    uncounted = outcome is Outcome.OK and usage is None and bool(stream.texts)
    return Counted(measurement, b"".join(stream.texts).decode() if uncounted else None)


def _marks(stream: _Stream, outcome: Outcome) -> tuple[str, ...]:
    found = []
    if stream.usage_impossible:
        found.append("usage_impossible")
    if outcome is Outcome.OK and stream.first_reasoning_ns and not stream.first_answer_ns:
        found.append("only_reasoning")
    return tuple(found)


def _gaps_us(stream: _Stream, began_ns: int) -> array[int]:
    dates_ns = np.array([began_ns, *stream.token_ns], dtype=np.int64)
    gaps_us = np.clip(np.diff(dates_ns) // 1000, 0, _MOST_GAP_US)
    return array("I", gaps_us.astype(np.uintc).tobytes())


def _chunk_tokens(stream: _Stream) -> array[int]:
    """The tokens of each event; empty where one of them is not known."""
    if None in stream.so_far:
        return array("I")
    tokens = np.diff(np.array([0, *stream.so_far], dtype=np.int64))
    return array("I", tokens.astype(np.uintc).tobytes() if (tokens > 0).all() else b"")


def _retry_after_s(answer: Answer) -> float | None:
    """Seconds of a Retry-After header; the date form, which no model server sends, is unknown."""
    text = answer.retry_after
    refused = answer.status in REFUSING_STATUS
    return float(text) if refused and text and text.isascii() and text.isdecimal() else None


def _read_packets(answer: Answer, stream: _Stream) -> None:
    decoder = Decoder()
    frame: Frame | None = None
    whole = False  # the next packet begins an event, and one that still counts
    tries = _FRAMES_TRIED
    for arrived_ns, packet in answer.packets:
        if whole and frame is not None and (text := frame.text(packet)) is not None:
            _take_alike(text, arrived_ns, stream)
            continue
        alone, before = decoder.between_events, len(stream.texts)
        for event in decoder.feed(packet, arrived_ns):
            _take_event(event, stream)
        whole = decoder.between_events and not (stream.done or stream.error_kind)
        known = frame is not None and frame.surrounds(packet)
        if whole and alone and tries and not known and len(stream.texts) == before + 1:
            tries -= 1
            frame = _frame(packet, stream)
    if answer.end is End.CLEAN and answer.packets:
        for event in decoder.finish(answer.packets[-1][0]):
            # Without chunked coding a cut looks like a clean end: half an event is a cut.
            if event.data.strip() == "[DONE]" or _document(event) is not None:
                _take_event(event, stream)


def _frame(packet: bytes, stream: _Stream) -> Frame | None:
    """The frame of ``packet``, the last one read: where another text in it has the same effect."""
    if stream.id_tokens is not None or stream.usage is not None:
        return None  # each event counts its tokens
    said = _alone(packet)
    for frame in frames(packet, stream.texts[-1]):
        if _alone(frame.head + _OTHER_TEXT + frame.tail) == replace(said, texts=[_OTHER_TEXT]):
            return frame
    return None


def _alone(packet: bytes) -> _Stream:
    stream = _Stream()
    for event in Decoder().feed(packet, 1):
        _take_event(event, stream)
    return stream


def _take_alike(text: bytes, arrived_ns: int, stream: _Stream) -> None:
    """As ``_take_event``, of an event in the frame of one that was read."""
    stream.events += 1
    stream.texts.append(text)
    stream.last_token_ns = arrived_ns
    stream.token_ns.append(arrived_ns)
    stream.so_far.append(None)


def _document(event: Event) -> dict[str, Any] | None:
    try:
        document = json.loads(event.data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _take_event(event: Event, stream: _Stream) -> None:
    if stream.done or stream.error_kind or not event.data.strip():
        return  # an empty event keeps a connection alive, no more
    stream.events += 1
    if event.data.strip() == "[DONE]":
        stream.done = True
        return
    document = _document(event)
    if document is None:
        stream.error_kind = "unreadable_event"
    elif document.get("error") or document.get("object") == "error" or event.name == "error":
        stream.error_kind = "error_in_stream"
    else:
        _take_usage(document.get("usage"), stream)
        _take_choices(document, event.arrived_ns, stream)


def _take_choices(document: dict[str, Any], arrived_ns: int, stream: _Stream) -> None:
    choices = document.get("choices")
    reasoning = answer = ""
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        if isinstance(choice.get("token_ids"), list):
            stream.id_tokens = (stream.id_tokens or 0) + len(choice["token_ids"])
        if isinstance(choice.get("finish_reason"), str):
            stream.finish_reason = choice["finish_reason"]
        delta = choice.get("delta")
        if isinstance(delta, dict):
            reasoning += _texts(delta, _REASONING_FIELDS)
            answer += _texts(delta, _ANSWER_FIELDS) + _call_text(delta)
        answer += _texts(choice, ("text",))
    if reasoning:
        stream.first_reasoning_ns = stream.first_reasoning_ns or arrived_ns
    if answer:
        stream.first_answer_ns = stream.first_answer_ns or arrived_ns
    if reasoning or answer:
        stream.texts.append((reasoning + answer).encode("utf-8", "replace"))
        _mark_token(document, arrived_ns, stream)


def _mark_token(document: dict[str, Any], arrived_ns: int, stream: _Stream) -> None:
    so_far = stream.id_tokens
    if so_far is None and document.get("usage") and stream.usage:
        so_far = stream.usage.output_tokens
    if stream.first_token_ns is None:
        stream.first_token_ns = arrived_ns
    stream.last_token_ns = arrived_ns
    stream.token_ns.append(arrived_ns)
    stream.so_far.append(so_far or None)


def _texts(document: dict[str, Any], names: tuple[str, ...]) -> str:
    return "".join(text for name in names if isinstance(text := document.get(name), str))


def _call_text(delta: dict[str, Any]) -> str:
    """Names and arguments of tool calls, and of the older function call."""
    calls = delta.get("tool_calls")
    functions = [
        call.get("function")
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, dict)
    ]
    functions.append(delta.get("function_call"))
    return "".join(
        _texts(function, ("name", "arguments"))
        for function in functions
        if isinstance(function, dict)
    )


def _take_usage(document: object, stream: _Stream) -> None:
    if not isinstance(document, dict):
        return
    output_tokens = _natural(document.get("completion_tokens"))
    if output_tokens is None:
        return
    if stream.usage and output_tokens < stream.usage.output_tokens:
        return  # not cumulative, so no count of the whole answer
    details = document.get("completion_tokens_details")
    reasoning = _natural(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    stream.usage_impossible = reasoning is not None and reasoning > output_tokens
    prompt_details = document.get("prompt_tokens_details")
    cached = prompt_details.get("cached_tokens") if isinstance(prompt_details, dict) else None
    stream.usage = _Usage(output_tokens, _natural(document.get("prompt_tokens")), _natural(cached))


def _natural(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


# The engine itself broke the answer off.
_GIVEN_UP = ("abort", "error")


def _judge(answer: Answer, stream: _Stream) -> tuple[Outcome, str | None]:
    if answer.status is not None and answer.status != 200:
        refused = answer.status in REFUSING_STATUS
        return (Outcome.REFUSED if refused else Outcome.ERROR), f"http_{answer.status}"
    if stream.error_kind and (answer.end is End.CLEAN or stream.error_kind == "error_in_stream"):
        return Outcome.ERROR, stream.error_kind
    if stream.finish_reason in _GIVEN_UP:
        return Outcome.ERROR, f"finish_{stream.finish_reason}"
    if stream.done and stream.finish_reason:
        return Outcome.OK, None  # whatever the connection did afterwards
    if answer.end is not End.CLEAN:
        return _END_OUTCOMES[answer.end], answer.end.value
    if stream.finish_reason:
        return Outcome.OK, None
    if stream.done:
        return Outcome.ERROR, "no_finish_reason"
    if answer.packets and not stream.events:
        return Outcome.ERROR, "not_an_event_stream"
    return Outcome.CUT, "no_finish_reason"
