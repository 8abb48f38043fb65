"""Where an answer first leaves another, over many answers: a survival curve and its test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from calculator.answers import AnswerRecord


@dataclass(frozen=True, slots=True)
class Parted:
    """How far two answers to one request agree."""

    tokens: int
    """Tokens that agree, from the first."""
    differs: bool
    """False: they agree to their end, so that how long they would have agreed is not known."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Shares of the answers that still agree after this many tokens; None: nobody knows."""

    tokens: int
    candidate: float | None
    control: float | None


def first_difference(one: Sequence[str], other: Sequence[str]) -> int | None:
    """Position of the first token that differs, from 0; None when the answers are equal."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def parted(one: AnswerRecord, other: AnswerRecord) -> Parted:
    position = first_difference(one.digests, other.digests)
    if position is None:
        return Parted(len(one.digests), differs=False)
    return Parted(position, differs=True)


def curve(candidate: Sequence[Parted], control: Sequence[Parted]) -> list[CurvePoint]:
    """Share of answers that still agree after so many tokens, at each length where one parts.

    Answers that agree to their end leave the count there without having parted (they are
    censored): E. L. Kaplan, P. Meier, "Nonparametric estimation from incomplete observations",
    JASA 53 (1958) 457-481.
    """
    steps = sorted({one.tokens + 1 for one in (*candidate, *control) if one.differs})
    if not steps:
        return []
    longest = max(one.tokens for one in (*candidate, *control))
    points = [0, *steps, *([longest] if longest > steps[-1] else [])]
    ours, theirs = _survival(candidate, points), _survival(control, points)
    return [CurvePoint(*point) for point in zip(points, ours, theirs, strict=True)]


def _survival(parts: Sequence[Parted], points: Sequence[int]) -> list[float | None]:
    found: list[float | None] = []
    share = 1.0
    for tokens in points:
        at_risk = _at_risk(parts, tokens)
        if at_risk:
            share *= 1 - _events(parts, tokens) / at_risk
        found.append(share if at_risk or (tokens == 0 and parts) else None)
    return found


def _at_risk(parts: Sequence[Parted], tokens: int) -> int:
    """Answers that agreed on all tokens before the ``tokens``-th and have that one."""
    return sum(one.tokens >= tokens or (one.differs and one.tokens + 1 == tokens) for one in parts)


def _events(parts: Sequence[Parted], tokens: int) -> int:
    return sum(one.differs and one.tokens + 1 == tokens for one in parts)


def log_rank(candidate: Sequence[Parted], control: Sequence[Parted]) -> float:
    """One-sided p of "the candidate's answers do not part earlier than the control's".

    N. Mantel, "Evaluation of survival data and two new rank order statistics arising in its
    consideration", Cancer Chemotherapy Reports 50 (1966) 163-170. Both groups are compared with
    the same answers and so move together, which makes the test say "earlier" less often than 5 %.
    """
    excess = variance = 0.0
    for tokens in {one.tokens + 1 for one in (*candidate, *control) if one.differs}:
        ours, theirs = _at_risk(candidate, tokens), _at_risk(control, tokens)
        events = _events(candidate, tokens) + _events(control, tokens)
        everybody = ours + theirs
        excess += _events(candidate, tokens) - events * ours / everybody
        if everybody > 1:
            share = ours / everybody
            variance += events * share * (1 - share) * (everybody - events) / (everybody - 1)
    if variance <= 0:
        return 1.0
    return float(special.ndtr(-excess / math.sqrt(variance)))
