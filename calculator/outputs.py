"""Is the text unchanged? Greedy answers of both arms, compared token by token through digests.

The engine itself need not repeat itself exactly, so the candidate is judged beside the baseline
against itself: only being *less* alike than the control counts as a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scipy import special

from calculator.statistics import wilson

Digests = Mapping[str, Sequence[str]]
SIGNIFICANCE = 0.05
SUSPICION = 0.30


@dataclass(frozen=True, slots=True)
class Match:
    """Requests whose answers were equal; Wilson limits of the share."""

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
    """Compare the baseline's first run with the candidate's first, beside its own second.

    One pair of runs each, so that a candidate that changes nothing differs as often as the
    baseline differs from itself. An answer that is missing counts as one that differs.
    """
    before = [digests[run] for run in baseline_runs if run in digests]
    after = [digests[run] for run in candidate_runs if run in digests]
    if not before or not before[0] or not after:
        return OutputCheck("not_tested", _match({}), _match({}))
    candidate = _equal(before[0], after[0])
    control = _equal(before[0], before[1]) if len(before) > 1 else {}
    divergence = [
        position
        for request_id in before[0].keys() & after[0].keys()
        if (position := first_difference(before[0][request_id], after[0][request_id])) is not None
    ]
    return OutputCheck(
        _status(candidate, control), _match(candidate), _match(control), sorted(divergence)
    )


def first_difference(one: Sequence[str], other: Sequence[str]) -> int | None:
    """Position of the first token that differs, from 0; None when the answers are equal."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def _equal(one: Digests, other: Digests) -> dict[str, bool]:
    return {
        request_id: request_id in other and first_difference(answer, other[request_id]) is None
        for request_id, answer in one.items()
    }


def _match(equal: Mapping[str, bool]) -> Match:
    matched = sum(equal.values())
    share = wilson(matched, len(equal))
    return Match(matched, len(equal), share.low, share.high)


def _status(
    candidate: Mapping[str, bool], control: Mapping[str, bool]
) -> Literal["unchanged", "changed", "inconclusive"]:
    """The exact sign test on requests that differ in one of the two comparisons only.

    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or
    percentages", Psychometrika 12 (1947) 153-157.
    """
    if all(candidate.values()):
        return "unchanged"
    if not control:
        return "inconclusive"
    lost = sum(control[name] and not candidate[name] for name in candidate)
    won = sum(candidate[name] and not control[name] for name in candidate)
    p = float(special.bdtrc(lost - 1, lost + won, 0.5)) if lost else 1.0
    if p < SIGNIFICANCE:
        return "changed"
    # A baseline that always repeats itself has no noise to explain even one other answer.
    return "inconclusive" if p < SUSPICION or all(control.values()) else "unchanged"
