"""From a file of traffic to normalised requests, with every row accounted for.

Rows = rows that gave requests + trace-only + skipped + rejected. One row may give several
requests. A rejected row is named by its line and the reason; its text is never quoted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from runner.traffic.detect import format_of, vote
from runner.traffic.lines import Line, ReadLimits, TrafficError, read_lines
from runner.traffic.request import NormalisedRequest
from runner.traffic.rows import Format, Row, RowError, Skip

__all__ = ["ReadLimits", "ReadResult", "Rejected", "TrafficError", "read_file"]

MAX_NAMED_REJECTIONS = 50
_VOTING_ROWS = 200
_VOTING_BYTES = 32 * 1024 * 1024
_NAMED_LINES = 8

NOTES = {
    "number_as_text": "numbers written as text were read as numbers",
    "several_answers": "n asks for several answers; one answer is measured",
    "ends_with_assistant": "ends with an answer and is sent on as it stands; cut answers off a log",
    "prompt_as_it_stands": "prompts are sent as they stand, without a chat template",
    "refused_by_speculation": (
        "min_p and logit_bias are refused by vLLM while it speculates (HTTP 400); without them "
        "these requests could be measured"
    ),
    "surrogate": "half characters that no server accepts were replaced",
}
_WHOLE_FILE = frozenset({"prompt_as_it_stands"})


@dataclass(frozen=True, slots=True)
class Rejected:
    """``line`` is the 1-based physical line."""

    line: int
    reason: str


@dataclass(slots=True)
class ReadResult:
    """What was understood of one file."""

    format: str = ""
    """Name of the format: openai_chat, openai_batch or prompt."""
    rows: int = 0
    requests: list[NormalisedRequest] = field(default_factory=list)
    different_prompts: int = 0
    """Of the requests; a run sends no prompt twice."""
    trace_only: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    """The first 50; ``rejected_count`` counts all."""
    rejected_count: int = 0
    warnings: list[str] = field(default_factory=list)


def read_file(path: Path | str, *, limits: ReadLimits | None = None) -> ReadResult:
    """Read ``path`` (JSONL, or gzip of it) into requests.

    Raises TrafficError when the file is broken, over the limits, or holds nothing usable.
    """
    reader = _Reader(limits or ReadLimits())
    for line in read_lines(Path(path), reader.limits):
        reader.take(line)
    return reader.finish()


class _Reader:
    def __init__(self, limits: ReadLimits) -> None:
        self.limits = limits
        self.result = ReadResult()
        self._format: Format | None = None
        self._waiting: list[tuple[int, dict[str, Any]]] = []
        self._waiting_bytes = 0
        self._surrogates: list[int] = []
        self._notes: dict[str, list[int]] = {}
        self._dropped: Counter[str] = Counter()
        self._ids: set[str] = set()
        self._renamed: list[int] = []
        self._seen: dict[str, list[int]] = {}

    def take(self, line: Line) -> None:
        if line.text is not None and not line.text.strip():
            return
        self.result.rows += 1
        if self.result.rows > self.limits.max_rows:
            raise TrafficError(
                f"the file has more than {self.limits.max_rows:,} rows; upload a part of it"
            )
        try:
            data = self._parse(line)
        except RowError as error:
            self._reject(line.number, error.reason)
            return
        if self._format is not None:
            self._read(line.number, data)
            return
        self._waiting.append((line.number, data))
        self._waiting_bytes += len(line.text or b"")
        if len(self._waiting) >= _VOTING_ROWS or self._waiting_bytes > _VOTING_BYTES:
            self._decide()

    def finish(self) -> ReadResult:
        if self._format is None and self._waiting:
            self._decide()
        result = self.result
        result.rejected.sort(key=lambda item: item.line)
        if not result.requests and not result.trace_only:
            self._refuse()
        result.different_prompts = len(self._seen)
        result.warnings.extend(self._warnings())
        return result

    def _decide(self) -> None:
        self._format = vote(data for _, data in self._waiting)
        if self._format is None:
            raise TrafficError(
                'unknown format: no row has "messages", "prompt" or "custom_id" with "body"',
                self._waiting[0][0],
            )
        self.result.format = self._format.name
        for number, data in self._waiting:
            self._read(number, data)
        self._waiting.clear()

    def _parse(self, line: Line) -> dict[str, Any]:
        if line.text is None:
            raise RowError(f"longer than {self.limits.max_line_bytes:,} bytes")
        data = parse_json(line.text, self.limits.max_depth)
        if not isinstance(data, dict):
            raise RowError("not a JSON object; one object a line is needed")
        fields: dict[str, Any] = data
        if b"\\u" in line.text and _has_surrogates(fields):
            fields = _without_surrogates(fields)
            self._surrogates.append(line.number)
        return fields

    def _read(self, number: int, data: dict[str, Any]) -> None:
        assert self._format is not None
        row = Row(number, data)
        try:
            if not self._format.matches(data):
                raise RowError(_mismatch(self._format, data))
            outcome = self._format.read(row)
        except RowError as error:
            self._reject(number, error.reason)
            return
        if isinstance(outcome, Skip):
            self.result.skipped[outcome.reason] = self.result.skipped.get(outcome.reason, 0) + 1
            return
        for note in dict.fromkeys(row.notes):
            self._notes.setdefault(note, []).append(number)
        self._dropped.update(row.dropped)
        for request in outcome:
            self._keep(request)

    def _keep(self, request: NormalisedRequest) -> None:
        unique = request.id
        copy = 1
        while unique in self._ids:
            copy += 1
            unique = f"{request.id}#{copy}"
        if copy > 1:
            self._renamed.append(request.line)
            request = replace(request, id=unique)
        self._ids.add(unique)
        self._seen.setdefault(request.prompt_key, []).append(request.line)
        self.result.requests.append(request)

    def _reject(self, number: int, reason: str) -> None:
        self.result.rejected_count += 1
        self.result.rejected.append(Rejected(number, reason))
        if len(self.result.rejected) > 2 * MAX_NAMED_REJECTIONS:
            self._trim()

    def _trim(self) -> None:
        # Rows wait for the format vote, so that rejections do not arrive in line order.
        self.result.rejected.sort(key=lambda item: item.line)
        del self.result.rejected[MAX_NAMED_REJECTIONS:]

    def _refuse(self) -> NoReturn:
        result = self.result
        if not result.rows:
            raise TrafficError("the file is empty")
        if result.rejected:
            first = result.rejected[0]
            raise TrafficError(f"no row can be used; the first one: {first.reason}", first.line)
        reasons = ", ".join(f"{count} {reason}" for reason, count in result.skipped.items())
        raise TrafficError(f"no row can be replayed: {reasons}")

    def _warnings(self) -> Iterator[str]:
        self._trim()
        if self._renamed:
            yield f"ids used more than once were numbered (#2, #3): {_lines(self._renamed)}"
        copies = [lines for lines in self._seen.values() if len(lines) > 1]
        if copies:
            share = sum(len(lines) for lines in copies)
            where = _lines(sorted(line for lines in copies for line in lines))
            total = len(self.result.requests)
            yield (
                f"{share} of {total} requests share their prompt with another, of which a run "
                f"sends one only: {where}"
            )
        if self._surrogates:
            yield f"{NOTES['surrogate']}: {_lines(self._surrogates)}"
        for note, lines in self._notes.items():
            yield NOTES[note] if note in _WHOLE_FILE else f"{NOTES[note]}: {_lines(lines)}"
        if self._dropped:
            names = ", ".join(f'"{name}"' for name, _ in self._dropped.most_common(_NAMED_LINES))
            yield f"fields that are not sent on: {names}"


def parse_json(text: bytes, max_depth: int) -> Any:
    """Strict JSON: UTF-8, finite numbers, bounded depth. Raises RowError."""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        raise RowError("not valid UTF-8") from None
    try:
        data = json.loads(decoded, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise RowError(f"nested deeper than {max_depth} levels") from None
    except RowError:
        raise
    except ValueError as error:
        if text.strip() in (b"[", b"{", b"[{"):
            raise RowError("JSON that spans lines; one whole object a line is needed") from None
        column = getattr(error, "colno", None)
        raise RowError(f"not valid JSON{f' at column {column}' if column else ''}") from None
    # A row with fewer brackets than the limit can't be too deep; most rows end here.
    if text.count(b"[") + text.count(b"{") > max_depth and _depth(data) > max_depth:
        raise RowError(f"nested deeper than {max_depth} levels")
    return data


def _no_constant(name: str) -> NoReturn:
    raise RowError(f"{name} is not a number that JSON knows")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RowError("a number is too large")
    return value


def _depth(data: Any) -> int:
    deepest = 0
    stack = [(data, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, dict | list):
            deepest = max(deepest, depth)
            children = value.values() if isinstance(value, dict) else value
            stack.extend((child, depth + 1) for child in children)
    return deepest


def _is_broken(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _has_surrogates(value: Any) -> bool:
    if isinstance(value, str):
        return _is_broken(value)
    if isinstance(value, dict):
        return any(_is_broken(key) or _has_surrogates(item) for key, item in value.items())
    return isinstance(value, list) and any(_has_surrogates(item) for item in value)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in value)
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def _mismatch(chosen: Format, data: dict[str, Any]) -> str:
    other = format_of(data)
    if other is not None:
        return f"looks like {other.label}, but the file is read as {chosen.label}"
    missing = {"prompt": '"prompt"', "openai_chat": '"messages"', "openai_batch": '"custom_id"'}
    return f"no field {missing[chosen.name]}"


def _lines(numbers: list[int]) -> str:
    unique = list(dict.fromkeys(numbers))
    shown = ", ".join(str(number) for number in unique[:_NAMED_LINES])
    more = len(unique) - _NAMED_LINES
    return f"line{'s' if len(unique) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"
