"""Is the text unchanged? Greedy answers of both arms, compared token by token through digests.

The engine itself need not repeat itself exactly, so the candidate is judged beside the baseline
against itself: only being *less* alike than the control counts as a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from calculator.statistics import fisher_fewer, wilson

Digests = Mapping[str, Sequence[str]]
SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class Match:
    """Requests whose answers were equal in every comparison; Wilson limits of the share."""

    matched: int
    total: int
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """``unchanged``: as alike as the baseline is to itself. ``inconclusive``: less alike, which
    chance or the engine's own noise could also explain. ``not_tested``: no answers to compare."""

    status: Literal["unchanged", "changed", "inconclusive", "not_tested"]
    candidate_match: Match
    control_match: Match
    first_divergence: list[int] = field(default_factory=list)
    """Token positions, from 0, where a candidate's answer first left the baseline's."""


def check_outputs(
    digests: Mapping[int, Digests], baseline_runs: Sequence[int], candidate_runs: Sequence[int]
) -> OutputCheck:
    """Compare the k-th run of each arm, beside consecutive runs of the baseline."""
    before = [digests[run] for run in baseline_runs if run in digests]
    after = [digests[run] for run in candidate_runs if run in digests]
    candidate, divergence = _matches(list(zip(before, after, strict=False)))
    control, _ = _matches(list(pairwise(before)))
    return OutputCheck(_status(candidate, control), candidate, control, divergence)


def first_difference(one: Sequence[str], other: Sequence[str]) -> int | None:
    """Position of the first token that differs, from 0; None when the answers are equal."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def _matches(pairs: Sequence[tuple[Digests, Digests]]) -> tuple[Match, list[int]]:
    """A request counts once, however many pairs of runs it was compared in."""
    equal: dict[str, bool] = {}
    divergence: list[int] = []
    for one, other in pairs:
        for request_id in one.keys() & other.keys():
            position = first_difference(one[request_id], other[request_id])
            equal[request_id] = equal.get(request_id, True) and position is None
            if position is not None:
                divergence.append(position)
    matched = sum(equal.values())
    share = wilson(matched, len(equal))
    return Match(matched, len(equal), share.low, share.high), sorted(divergence)


def _status(
    candidate: Match, control: Match
) -> Literal["unchanged", "changed", "inconclusive", "not_tested"]:
    if candidate.total == 0:
        return "not_tested"
    if candidate.matched == candidate.total:
        return "unchanged"
    if control.total == 0:
        return "inconclusive"
    p = fisher_fewer(candidate.matched, candidate.total, control.matched, control.total)
    if p < SIGNIFICANCE:
        return "changed"
    fewer = candidate.matched / candidate.total < control.matched / control.total
    return "inconclusive" if fewer else "unchanged"
