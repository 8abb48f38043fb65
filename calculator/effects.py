"""Before, after and their ratio for each metric at one load level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from calculator.columns import NO_CATEGORY, Bools, Ints, TrialColumns, matrix, numbers
from calculator.statistics import (
    UNKNOWN,
    Evidence,
    Floats,
    Interval,
    compared,
    compared_totals,
    exponential,
    mean_level,
    totals,
)

Better = Literal["lower", "higher"]
Status = Literal["better", "worse", "not_shown", "unknown"]
Side = Literal["baseline", "candidate"]

SIDES: tuple[Side, Side] = ("baseline", "candidate")

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
EFFECTS: dict[str, tuple[str, Better]] = {
    "ttft_ms": ("ms", "lower"),
    "tpot_ms": ("ms", "lower"),
    "e2e_ms": ("ms", "lower"),
    "output_tokens_per_s": ("tokens/s", "higher"),
    "requests_per_s": ("requests/s", "higher"),
    "cost_usd_per_request": ("usd", "lower"),
}


@dataclass(frozen=True, slots=True)
class Effect:
    """One metric: both arms' own figures, and candidate / baseline."""

    unit: str
    better: Better
    baseline: Interval
    candidate: Interval
    ratio: Interval
    status: Status


def make_effect(metric: str, baseline: Interval, candidate: Interval, ratio: Interval) -> Effect:
    unit, better = EFFECTS[metric]
    return Effect(unit, better, baseline, candidate, ratio, _status(ratio, better))


def _status(ratio: Interval, better: Better) -> Status:
    if ratio.low is None or ratio.high is None:
        return "unknown"
    if ratio.low <= 1 <= ratio.high:
        return "not_shown"
    return "better" if (ratio.high < 1) == (better == "lower") else "worse"


@dataclass(frozen=True)
class LevelData:
    """The believed trials of one level by block, and the views that intervals need.

    Matrices have shape (requests, blocks) over the blocks that both arms measured and the requests
    that the baseline sent in them; NaN is unknown. A failure drops its partner too.
    """

    baseline: Mapping[int, TrialColumns]
    candidate: Mapping[int, TrialColumns]
    names: Sequence[str] = ()
    """Of the categories, by their index."""

    @cached_property
    def blocks(self) -> list[int]:
        return sorted(self.baseline.keys() & self.candidate.keys())

    @cached_property
    def requests(self) -> Ints:
        """(requests,) numbers of the requests: the rows of every matrix."""
        return numbers(self.baseline[block] for block in self.blocks)

    @cached_property
    def paired(self) -> Bools:
        """(requests, blocks): completed in both arms."""
        return np.logical_and(*(np.isfinite(self.own(side, "held_ms")) for side in SIDES))

    def pairs(self) -> int:
        return int(self.paired.any(axis=1).sum())

    def categories(self) -> dict[str, Bools]:
        """By name, (requests,): which of them are of the category."""
        category = np.full(len(self.requests), NO_CATEGORY)
        for block in self.blocks:
            trial = self.baseline[block]
            category[np.searchsorted(self.requests, trial.request)] = trial.category
        found = {self.names[index] for index in np.unique(category) if index != NO_CATEGORY}
        return {name: category == self.names.index(name) for name in sorted(found)}

    def trials(self, side: Side) -> list[TrialColumns]:
        """All of one arm, paired or not, by block."""
        trials = self.baseline if side == "baseline" else self.candidate
        return [trials[block] for block in sorted(trials)]

    def completed(self, side: Side, metric: str) -> Floats:
        """(n,) the metric of every request that the arm completed, paired or not."""
        parts = [trial.completed(metric) for trial in self.trials(side)]
        return np.concatenate([np.empty(0), *parts])

    def own(self, side: Side, metric: str) -> Floats:
        """One arm's values of the requests that it completed, whatever their partners did."""
        trials = self.baseline if side == "baseline" else self.candidate
        return matrix(self.requests, [trials[block] for block in self.blocks], metric)

    def matrices(self, metric: str) -> tuple[Floats, Floats]:
        """The metric in both arms; NaN unless it is known and positive in both."""
        before, after = self.own("baseline", metric), self.own("candidate", metric)
        positive = (before > 0) & (after > 0)
        return np.where(positive, before, np.nan), np.where(positive, after, np.nan)

    def log_latency(self, metric: str, side: Side) -> Floats:
        """(requests, all blocks of the arm): logs of its own values, paired or not: for the
        baseline against itself."""
        trials = self.trials(side)
        values = matrix(numbers(trials), trials, metric)
        return np.log(np.where(values > 0, values, np.nan))

    def token_pairs(self) -> tuple[Floats, Floats]:
        """(n,) output tokens of both arms, of each pair of which both are known."""
        return self._both("output_tokens")

    def prompt_tokens_differ(self) -> bool:
        before, after = self._both("prompt_tokens")
        return bool((before != after).any())

    def _both(self, metric: str) -> tuple[Floats, Floats]:
        before, after = self.own("baseline", metric), self.own("candidate", metric)
        known = np.isfinite(before) & np.isfinite(after)
        return before[known], after[known]


def level_effects(
    data: LevelData, usd_per_hour: float
) -> tuple[dict[str, Effect], dict[str, Evidence | None]]:
    """All metrics of one level, and the evidence behind each ratio."""
    effects: dict[str, Effect] = {}
    evidence: dict[str, Evidence | None] = {}
    for metric in LATENCIES:
        effects[metric], evidence[metric] = latency_effect(metric, *data.matrices(metric))
    for metric, tokens in (("output_tokens_per_s", True), ("requests_per_s", False)):
        effects[metric], evidence[metric] = _rate_effect(data, metric, tokens)
    effects["cost_usd_per_request"] = _cost_effect(effects["requests_per_s"], usd_per_hour)
    rate = evidence["requests_per_s"]
    evidence["cost_usd_per_request"] = None if rate is None or usd_per_hour <= 0 else rate.inverse()
    return effects, evidence


def latency_effect(metric: str, before: Floats, after: Floats) -> tuple[Effect, Evidence | None]:
    """A per-request metric, from its ``matrices``: means of both arms over the pairs, geometric
    mean of the ratio."""
    found = compared(np.log(before), np.log(after)) if before.size else None
    ratio = UNKNOWN if found is None else found.ratio()
    return make_effect(metric, mean_level(before), mean_level(after), ratio), found


def _rate_effect(data: LevelData, metric: str, tokens: bool) -> tuple[Effect, Evidence | None]:
    """A rate of the whole trial: everything completed over its wall time.

    The wall time of a closed loop is its requests' time over the requests in flight, so a
    request moves the log rate by its share of the amount minus its share of the time.
    """
    sides = {side: _rates(data, side, tokens) for side in SIDES}
    moved = {side: _influence(data, side, tokens) for side in SIDES}
    own = {side: _own(sides[side], moved[side]) for side in sides}
    known = np.isfinite(sides["baseline"]) & np.isfinite(sides["candidate"])
    rates = (sides["baseline"][known], sides["candidate"][known])
    found = compared_totals(*rates, moved["candidate"] - moved["baseline"])
    ratio = UNKNOWN if found is None else found.ratio()
    return make_effect(metric, own["baseline"], own["candidate"], ratio), found


def _own(rates: Floats, influence: Floats) -> Interval:
    found = totals(rates[np.isfinite(rates)], influence)
    return UNKNOWN if found is None else found.ratio()


def _rates(data: LevelData, side: Side, tokens: bool) -> Floats:
    """(blocks,) log rate of each common block; NaN where nothing was completed or counted."""
    trials = data.baseline if side == "baseline" else data.candidate
    return np.array([_log_rate(trials[block], tokens) for block in data.blocks], dtype=np.float64)


def _log_rate(trial: TrialColumns, tokens: bool) -> float:
    total = float(trial.completed("output_tokens").sum() if tokens else trial.ok.sum())
    if math.isnan(total) or total <= 0 or trial.duration_s <= 0:
        return math.nan
    return math.log(total / trial.duration_s)


def _influence(data: LevelData, side: Side, tokens: bool) -> Floats:
    """(requests, blocks): how much each pair's request moved its arm's log rate."""
    held = data.own(side, "held_ms")
    amount = data.own(side, "output_tokens") if tokens else np.ones_like(held)
    known = data.paired & np.isfinite(amount)
    if not known.any() or amount[known].sum() <= 0 or held[known].sum() <= 0:
        return np.full_like(held, np.nan)
    influence: Floats = amount / amount[known].mean() - held / held[known].mean()
    return np.where(known, influence, np.nan)


def _cost_effect(rate: Effect, usd_per_hour: float) -> Effect:
    """USD per request = USD per hour / 3600 / requests per second.

    A free engine costs 0 with either arm, so there is no ratio.
    """

    def cost(interval: Interval) -> Interval:
        if interval.estimate is None:
            return UNKNOWN
        per_s = usd_per_hour / 3600
        low = None if interval.high is None else per_s / interval.high
        high = None if interval.low is None else per_s / interval.low
        return Interval(per_s / interval.estimate, low, high)

    ratio = exponential(Interval(*_negated_logs(rate.ratio))) if usd_per_hour > 0 else UNKNOWN
    return make_effect("cost_usd_per_request", cost(rate.baseline), cost(rate.candidate), ratio)


def _negated_logs(ratio: Interval) -> Iterator[float | None]:
    for value in (ratio.estimate, ratio.high, ratio.low):
        yield None if value is None else -float(np.log(value))
