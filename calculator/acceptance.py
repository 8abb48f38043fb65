"""What the engine's counters say about drafts, with vLLM's definitions.

acceptance rate = accepted / drafted tokens; mean acceptance length = 1 + accepted tokens / drafts
(the token of the verifying model included; steps without a draft are not counted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from calculator.measurement import SpeculationCounters
from calculator.statistics import UNKNOWN, Interval, crossed, exponential


@dataclass(frozen=True, slots=True)
class Acceptance:
    """``inactive``: the engine drafted nothing. ``not_measured``: it does not say."""

    status: Literal["measured", "inactive", "not_measured"]
    acceptance_rate: Interval = UNKNOWN
    mean_acceptance_length: Interval = UNKNOWN
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    per_position: list[float] = field(default_factory=list)
    """Share of drafts whose i-th token was accepted; never rises."""


def measured_acceptance(trials: Sequence[SpeculationCounters | None]) -> Acceptance:
    """Acceptance over the trials of one arm and level, one per server start.

    Estimates are ratios of totals; intervals come from the differences between server starts.
    """
    known = [
        (c.drafts, c.draft_tokens, c.accepted_tokens, c.accepted_per_position)
        for c in trials
        if c is not None
        and c.drafts is not None
        and c.draft_tokens is not None
        and c.accepted_tokens is not None
    ]
    if not known:
        return Acceptance("not_measured")
    drafts = sum(part[0] for part in known)
    drafted = sum(part[1] for part in known)
    accepted = sum(part[2] for part in known)
    if drafts <= 0 or drafted <= 0:
        return Acceptance("inactive", drafts=drafts, draft_tokens=drafted, accepted_tokens=accepted)
    positions = max(len(part[3]) for part in known)
    by_position = [
        sum(part[3][i] for part in known if i < len(part[3])) / drafts for i in range(positions)
    ]
    rates = [part[2] / part[1] for part in known if part[1] > 0]
    lengths = [1 + part[2] / part[0] for part in known if part[0] > 0]
    return Acceptance(
        status="measured",
        acceptance_rate=_between_starts(rates, accepted / drafted, most=1.0),
        mean_acceptance_length=_between_starts(lengths, 1 + accepted / drafts, least=1.0),
        drafts=drafts,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        per_position=by_position,
    )


def _between_starts(
    values: Sequence[float],
    estimate: float,
    *,
    least: float = 0.0,
    most: float = float("inf"),
) -> Interval:
    """A t interval of the logs over server starts, kept in the range that is possible."""
    positive = [value for value in values if value > 0]
    if len(positive) < 2:
        return Interval(estimate)
    # One row: only the spread between the starts is known, and it is all that is counted.
    logs = np.log(np.array([positive, positive]))
    found = crossed(logs)
    spread = UNKNOWN if found is None else exponential(found.interval())
    if spread.low is None or spread.high is None:
        return Interval(estimate)
    return Interval(
        estimate, min(estimate, max(least, spread.low)), max(estimate, min(most, spread.high))
    )
