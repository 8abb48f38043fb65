"""Engine counters from Prometheus text, and their differences over one trial.

Every engine process behind one address reports under labels of its own; a figure of the server is
the sum over them. A counter that fell was reset (a restart, a flush): the window is then worth
nothing and ``difference`` says so. A name that the engine does not expose is None, never 0: an
arm without drafts and an engine without draft counters are two findings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from calculator.measurement import SpeculationCounters

Labels = tuple[tuple[str, str], ...]


class CountersReset(Exception):
    """A counter fell, or one of its series went away, between two readings."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """One reading of ``/metrics``: value by name and sorted labels."""

    series: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Names:
    """One engine's names for the fields of SpeculationCounters; None: it has no such counter."""

    drafts: str | None = None
    draft_tokens: str | None = None
    accepted_tokens: str | None = None
    accepted_per_position: str | None = None
    """The counter with the label ``position``, from 0."""
    generation_tokens: str | None = None
    prompt_tokens: str | None = None
    requests_finished: str | None = None
    prefix_cache_hits: str | None = None
    prefix_cache_queries: str | None = None
    preemptions: str | None = None


NAMES = {
    "vllm": Names(
        drafts="vllm:spec_decode_num_drafts_total",
        draft_tokens="vllm:spec_decode_num_draft_tokens_total",
        accepted_tokens="vllm:spec_decode_num_accepted_tokens_total",
        accepted_per_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
        generation_tokens="vllm:generation_tokens_total",
        prompt_tokens="vllm:prompt_tokens_total",
        requests_finished="vllm:request_success_total",
        prefix_cache_hits="vllm:prefix_cache_hits_total",
        prefix_cache_queries="vllm:prefix_cache_queries_total",
        preemptions="vllm:num_preemptions_total",
    ),
}
"""Counter names by engine; the simulator speaks vLLM's."""

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(\{)?")
_LABEL = re.compile(r'[ \t,]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def parse(text: str) -> Metrics:
    """Read Prometheus text. A line that is no sample is passed over; so are values of NaN."""
    series: dict[str, dict[Labels, float]] = {}
    for line in text.split("\n"):
        sample = _parse_line(line.strip())
        if sample is not None:
            name, labels, value = sample
            series.setdefault(name, {})[labels] = value
    return Metrics(series)


def _parse_line(line: str) -> tuple[str, Labels, float] | None:
    start = _SAMPLE.match(line)
    if start is None:
        return None
    labels: list[tuple[str, str]] = []
    place = start.end()
    if start.group(2):
        while label := _LABEL.match(line, place):
            labels.append((label.group(1), _unescape(label.group(2))))
            place = label.end()
        rest = line[place:].lstrip(" \t,")
        if not rest.startswith("}"):
            return None
        rest = rest[1:]
    else:
        rest = line[place:]
    words = rest.split()  # a time stamp or an exemplar may follow the value
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    if math.isnan(value):
        return None
    return start.group(1), tuple(sorted(labels)), value


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found.group(1) == "n" else found.group(1), text)


def difference(before: Metrics, after: Metrics, *, engine: str = "vllm") -> SpeculationCounters:
    """What was counted between two readings, summed over all label sets.

    Raises CountersReset. A name missing in both readings is None.
    """
    names = NAMES[engine]
    totals = {
        one.name: _total(getattr(names, one.name), before, after)
        for one in fields(names)
        if one.name != "accepted_per_position"
    }
    positions = _by_position(names.accepted_per_position, before, after)
    return SpeculationCounters(accepted_per_position=positions, **totals)


def _total(name: str | None, before: Metrics, after: Metrics) -> float | None:
    changes = _changes(name, before, after)
    return None if changes is None else math.fsum(changes.values())


def _by_position(name: str | None, before: Metrics, after: Metrics) -> tuple[float, ...]:
    changes = _changes(name, before, after) or {}
    totals: dict[int, float] = {}
    for labels, change in changes.items():
        position = dict(labels).get("position", "")
        if position.isdecimal():
            totals[int(position)] = totals.get(int(position), 0.0) + change
    return tuple(totals.get(position, 0.0) for position in range(max(totals, default=-1) + 1))


def _changes(name: str | None, before: Metrics, after: Metrics) -> dict[Labels, float] | None:
    if name is None or (name not in before.series and name not in after.series):
        return None
    old, new = before.series.get(name, {}), after.series.get(name, {})
    changes = {}
    for labels in old.keys() | new.keys():
        # A series shows itself first when it counts first, so one that is new began at 0.
        change = new.get(labels, -math.inf) - old.get(labels, 0.0)
        if not change >= 0:
            raise CountersReset(
                f"The engine's counter {name} fell in the middle of the trial, so the engine was "
                "restarted or its counters were cleared."
            )
        changes[labels] = change
    return changes
