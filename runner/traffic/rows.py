"""What every format reader shares: the outcome of one row, and the house rules for its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.traffic.request import NormalisedRequest

MAX_ID_CHARS = 160
MAX_CATEGORY_CHARS = 80

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

NUMBER_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
OTHER_FIELDS: dict[str, type | tuple[type, ...]] = {
    "stop": (str, list),
    "stop_token_ids": list,
    "logit_bias": dict,
    "tools": list,
    "tool_choice": (str, dict),
    "parallel_tool_calls": bool,
    "response_format": dict,
    "reasoning_effort": str,
    "chat_template_kwargs": dict,
    "structured_outputs": dict,
}
REFUSED_BY_SPECULATION = frozenset({"min_p", "logit_bias"})
# Read elsewhere, or of no effect on the text: dropped without a word. `user` is personal data.
QUIET_FIELDS = frozenset(
    {
        *("id", "custom_id", "model", "messages", "prompt", "category", "metadata", "user"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "output_tokens"),
        *("output", "completion", "stream", "stream_options", "store", "service_tier"),
        *("safety_identifier", "prompt_cache_key"),
    }
)
_NOT_TEXT_PARTS = ("image_url", "input_image", "image", "input_audio", "file", "video_url")


class RowError(Exception):
    """This row can't be used. ``reason`` names the field, never its text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Skip:
    """The row is understood but is nothing to replay."""

    reason: str


@dataclass(slots=True)
class Row:
    """One parsed row and the notes taken while it is read."""

    line: int
    data: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    """Keys of ``runner.traffic.read.NOTES``."""
    dropped: set[str] = field(default_factory=set)
    """Names of fields that are not sent on."""


Outcome = list[NormalisedRequest] | Skip


@dataclass(frozen=True, slots=True)
class Format:
    """One file format: how a row is recognised and how it is read."""

    name: str
    label: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Row], Outcome]


def number(row: Row, name: str, value: Any) -> int | float:
    """A finite number; a number written as text is accepted and noted."""
    if isinstance(value, str):
        try:
            value = float(value) if not value.strip().lstrip("+-").isdigit() else int(value)
        except ValueError:
            raise RowError(f'field "{name}": expected a number') from None
        row.notes.append("number_as_text")
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise RowError(f'field "{name}": expected a finite number')
    return value


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of more digits than any float has
        return False


def positive_count(row: Row, name: str, value: Any) -> int | None:
    """A whole number >= 1 (7.0 is 7); None stays None."""
    if value is None:
        return None
    found = number(row, name, value)
    if found != int(found):
        raise RowError(f'field "{name}": expected a whole number')
    if found < 1:
        raise RowError(f'field "{name}": expected a whole number of at least 1')
    return int(found)


def label(value: Any, limit: int) -> str | None:
    """A short printable label from text or a number; None when there is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = "".join(c for c in str(value) if c.isprintable()).strip()
    return text[:limit] or None


def row_id(*candidates: Any, line: int) -> str:
    """The first usable id, else one made from the line."""
    for candidate in candidates:
        found = label(candidate, MAX_ID_CHARS)
        if found is not None:
            return found
    return f"line-{line}"


def category(*sources: Mapping[str, Any]) -> str | None:
    """``category`` of the row or of its ``metadata``, whichever is found first."""
    for source in sources:
        metadata = source.get("metadata")
        for holder in (source, metadata if isinstance(metadata, Mapping) else {}):
            found = label(holder.get("category"), MAX_CATEGORY_CHARS)
            if found is not None:
                return found
    return None


def sampling(
    row: Row, body: Mapping[str, Any], *, ignore: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The fields that are sent on as they stand. A null is as good as absent; 0 is kept."""
    found: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in QUIET_FIELDS or name in ignore:
            continue
        if name in REFUSED_BY_SPECULATION and value:
            row.notes.append("refused_by_speculation")
        if name in NUMBER_FIELDS:
            found[name] = number(row, name, value)
        elif name in OTHER_FIELDS:
            if not isinstance(value, OTHER_FIELDS[name]):
                raise RowError(f'field "{name}": unexpected type')
            found[name] = value
        elif name == "n":
            if positive_count(row, "n", value) != 1:
                row.notes.append("several_answers")
        else:
            row.dropped.add(name[:40])
    return found


def max_tokens(row: Row, body: Mapping[str, Any], *names: str) -> int | None:
    """The first of ``names`` that is given."""
    for name in names:
        found = positive_count(row, name, body.get(name))
        if found is not None:
            return found
    return None


def messages(row: Row, value: Any) -> tuple[dict[str, Any], ...]:
    """Chat messages as given, after a check that a text-only engine can take them."""
    if not isinstance(value, list) or not value:
        raise RowError('field "messages": expected a list with at least one message')
    texts = 0
    for position, message in enumerate(value, start=1):
        texts += _check_message(position, message)
    if not texts:
        raise RowError('field "messages": no message holds any text')
    if value[-1]["role"] == "assistant":
        row.notes.append("ends_with_assistant")
    return tuple(value)


def _check_message(position: int, message: Any) -> int:
    where = f'field "messages": message {position}'
    if not isinstance(message, dict):
        raise RowError(f"{where} is not an object")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RowError(f"{where} has no role of {', '.join(sorted(ROLES))}")
    content = message.get("content")
    if content is None:
        return 1 if message.get("tool_calls") or message.get("function_call") else 0
    if isinstance(content, str):
        return 1 if content.strip() else 0
    if not isinstance(content, list):
        raise RowError(f"{where}: content is neither text nor a list of parts")
    return sum(_check_part(where, part) for part in content)


def _check_part(where: str, part: Any) -> int:
    if not isinstance(part, dict):
        raise RowError(f"{where}: a content part is not an object")
    if part.get("type") in _NOT_TEXT_PARTS:
        raise RowError(f"{where} has an image, sound or file, which a text-only run can't replay")
    if part.get("type") not in ("text", "input_text", "output_text", "refusal"):
        raise RowError(f"{where}: a content part is of an unknown type")
    text = part.get("text", part.get("refusal"))
    if not isinstance(text, str):
        raise RowError(f"{where}: a text part holds no text")
    return 1 if text.strip() else 0
