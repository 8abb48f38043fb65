"""What the engine's counters say about drafts, with vLLM's definitions.

acceptance rate = accepted / drafted tokens; mean acceptance length = 1 + accepted tokens / drafts
(the token of the verifying model included; steps without a draft are not counted).

The counters know no requests. How much requests differ in acceptance, which the intervals need, is
seen from the answers: a step sends one event, so tokens beyond the number of events were drafts
that were accepted. That enters the width of an interval only, never an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from calculator.columns import TrialColumns, matrix, numbers
from calculator.statistics import UNKNOWN, Floats, Interval, totals


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


def measured_acceptance(trials: Sequence[TrialColumns]) -> Acceptance:
    """Acceptance over the trials of one arm and level, one per server start.

    Estimates are ratios of totals. Intervals (95 %) count what differs between server starts and
    between requests; they are unknown with fewer than two of either, or where nothing was accepted.
    """
    known = [
        (trial, c.drafts, c.draft_tokens, c.accepted_tokens, c.accepted_per_position)
        for trial in trials
        if (c := trial.counters) is not None
        and c.drafts is not None
        and c.draft_tokens is not None
        and c.accepted_tokens is not None
    ]
    if not known:
        return Acceptance("not_measured")
    drafts = sum(part[1] for part in known)
    drafted = sum(part[2] for part in known)
    accepted = sum(part[3] for part in known)
    if drafts <= 0 or drafted <= 0:
        return Acceptance("inactive", drafts=drafts, draft_tokens=drafted, accepted_tokens=accepted)
    positions = max(len(part[4]) for part in known)
    by_position = [
        sum(part[4][i] for part in known if i < len(part[4])) / drafts for i in range(positions)
    ]
    per_draft = accepted / drafts
    influence = _influence([part[0] for part in known])
    rates = np.array([part[3] / part[2] if part[2] > 0 else 0.0 for part in known])
    lengths = np.array([1 + part[3] / part[1] if part[1] > 0 else 1.0 for part in known])
    return Acceptance(
        status="measured",
        acceptance_rate=_interval(accepted / drafted, rates, influence, most=1.0),
        mean_acceptance_length=_interval(
            1 + per_draft,
            lengths,
            # d log(1 + a) = a / (1 + a) d log(a)
            influence * per_draft / (1 + per_draft),
            least=1.0,
        ),
        drafts=drafts,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        per_position=by_position,
    )


def _influence(trials: Sequence[TrialColumns]) -> Floats:
    """(requests, starts): how much each request moved the log of accepted tokens per draft.

    A request's drafts are taken in proportion to its events.
    """
    requests = numbers(trials)
    events, written = (matrix(requests, trials, name) for name in ("chunks", "output_tokens"))
    counted = (events > 0) & np.isfinite(written)
    accepted = np.maximum(written - events, 0)
    if not counted.any() or accepted[counted].sum() <= 0:
        return np.full_like(events, np.nan)
    influence: Floats = accepted / accepted[counted].mean() - events / events[counted].mean()
    return np.where(counted, influence, np.nan)


def _interval(
    estimate: float,
    starts: Floats,
    influence: Floats,
    *,
    least: float = 0.0,
    most: float = math.inf,
) -> Interval:
    """A t interval on the log scale around ``estimate``, kept in the range that is possible."""
    found = totals(np.log(starts), influence) if (starts > 0).all() else None
    half = None if found is None else found.half_width()
    if half is None or half > 700:
        return Interval(estimate)
    return Interval(
        estimate, max(least, estimate * math.exp(-half)), min(most, estimate * math.exp(half))
    )
