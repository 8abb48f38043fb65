"""Before, after and their ratio for each metric at one load level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from calculator.measurement import NS_PER_MS, Measurement, TrialRecord
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

    Matrices have shape (requests, blocks) over the blocks that both arms measured, NaN where a
    request was not completed in both arms of the block: a failure drops its partner too.
    """

    baseline: dict[int, TrialRecord]
    candidate: dict[int, TrialRecord]
    category: str | None = None
    """When set, only the requests of this category are looked at."""

    @cached_property
    def blocks(self) -> list[int]:
        return sorted(self.baseline.keys() & self.candidate.keys())

    @cached_property
    def request_ids(self) -> list[str]:
        seen = {
            m.request_id: None
            for block in self.blocks
            for m in self.baseline[block].measurements
            if self.category is None or m.category == self.category
        }
        return list(seen)

    @cached_property
    def _cells(self) -> list[tuple[int, int, Measurement, Measurement]]:
        """(request row, block column, before, after) of every completed pair."""
        row = {request_id: index for index, request_id in enumerate(self.request_ids)}
        cells: list[tuple[int, int, Measurement, Measurement]] = []
        for column, block in enumerate(self.blocks):
            after = {m.request_id: m for m in self.candidate[block].measurements if m.ok}
            cells.extend(
                (row[m.request_id], column, m, after[m.request_id])
                for m in self.baseline[block].measurements
                if m.ok and m.request_id in row and m.request_id in after
            )
        return cells

    def only(self, category: str) -> LevelData:
        return replace(self, category=category)

    def categories(self) -> list[str]:
        found = {
            m.category
            for block in self.blocks
            for m in self.baseline[block].measurements
            if m.category is not None
        }
        return sorted(found)

    def pairs(self) -> int:
        return len({row for row, _, _, _ in self._cells})

    def measurements(self, side: str) -> list[Measurement]:
        trials: dict[int, TrialRecord] = getattr(self, side)
        return [m for block in sorted(trials) for m in trials[block].measurements]

    def matrices(self, value: Callable[[Measurement], float | None]) -> tuple[Floats, Floats]:
        """``value`` of both arms; NaN unless it is known and positive in both."""
        shape = (len(self.request_ids), len(self.blocks))
        before, after = np.full(shape, np.nan), np.full(shape, np.nan)
        for row, column, first, second in self._cells:
            one, other = value(first), value(second)
            if one is not None and other is not None and one > 0 and other > 0:
                before[row, column], after[row, column] = one, other
        return before, after

    def log_latency(self, metric: str, side: str) -> Floats:
        """Logs of one arm's own values, paired or not: for the baseline against itself."""
        trials: dict[int, TrialRecord] = getattr(self, side)
        ids = {m.request_id: None for trial in trials.values() for m in trial.measurements}
        row = {request_id: index for index, request_id in enumerate(ids)}
        values = np.full((len(row), len(trials)), np.nan)
        for column, block in enumerate(sorted(trials)):
            for m in trials[block].measurements:
                value = getattr(m, metric) if m.ok else None
                if value is not None and value > 0:
                    values[row[m.request_id], column] = np.log(value)
        return values

    def token_pairs(self) -> list[tuple[int, int]]:
        return [
            (before.output_tokens, after.output_tokens)
            for _, _, before, after in self._cells
            if before.output_tokens is not None and after.output_tokens is not None
        ]

    def prompt_tokens_differ(self) -> bool:
        return any(
            before.prompt_tokens != after.prompt_tokens
            for _, _, before, after in self._cells
            if before.prompt_tokens is not None and after.prompt_tokens is not None
        )


def level_effects(
    data: LevelData, usd_per_hour: float
) -> tuple[dict[str, Effect], dict[str, Evidence | None]]:
    """All metrics of one level, and the evidence behind each ratio."""
    effects: dict[str, Effect] = {}
    evidence: dict[str, Evidence | None] = {}
    for metric in LATENCIES:
        effects[metric], evidence[metric] = latency_effect(data, metric)
    for metric, tokens in (("output_tokens_per_s", True), ("requests_per_s", False)):
        effects[metric], evidence[metric] = _rate_effect(data, metric, tokens)
    effects["cost_usd_per_request"] = _cost_effect(effects["requests_per_s"], usd_per_hour)
    rate = evidence["requests_per_s"]
    evidence["cost_usd_per_request"] = None if rate is None or usd_per_hour <= 0 else rate.inverse()
    return effects, evidence


def latency_effect(data: LevelData, metric: str) -> tuple[Effect, Evidence | None]:
    """A per-request metric: means of both arms over the pairs, geometric mean of the ratio."""
    before, after = data.matrices(lambda m: getattr(m, metric))
    found = compared(np.log(before), np.log(after)) if before.size else None
    ratio = UNKNOWN if found is None else found.ratio()
    return make_effect(metric, mean_level(before), mean_level(after), ratio), found


def _rate_effect(data: LevelData, metric: str, tokens: bool) -> tuple[Effect, Evidence | None]:
    """A rate of the whole trial: everything completed over its wall time.

    The wall time of a closed loop is its requests' time over the requests in flight, so a
    request moves the log rate by its share of the amount minus its share of the time.
    """
    sides = {side: _rates(data, side, tokens) for side in ("baseline", "candidate")}
    moved = {side: _influence(data, side, tokens) for side in ("baseline", "candidate")}
    own = {side: _own(sides[side], moved[side]) for side in sides}
    known = np.isfinite(sides["baseline"]) & np.isfinite(sides["candidate"])
    rates = (sides["baseline"][known], sides["candidate"][known])
    found = compared_totals(*rates, moved["candidate"] - moved["baseline"])
    ratio = UNKNOWN if found is None else found.ratio()
    return make_effect(metric, own["baseline"], own["candidate"], ratio), found


def _own(rates: Floats, influence: Floats) -> Interval:
    found = totals(rates[np.isfinite(rates)], influence)
    return UNKNOWN if found is None else found.ratio()


def _rates(data: LevelData, side: str, tokens: bool) -> Floats:
    """Log rate of each common block; NaN where nothing was completed or counted."""
    trials: dict[int, TrialRecord] = getattr(data, side)
    return np.array([_log_rate(trials[block], tokens) for block in data.blocks], dtype=np.float64)


def _log_rate(trial: TrialRecord, tokens: bool) -> float:
    amounts = [_amount(m, tokens) for m in trial.measurements if m.ok]
    total = sum(amount for amount in amounts if amount is not None)
    if total <= 0 or trial.duration_s <= 0 or None in amounts:
        return float("nan")
    return float(np.log(total / trial.duration_s))


def _amount(measurement: Measurement, tokens: bool) -> float | None:
    return measurement.output_tokens if tokens else 1.0


def _influence(data: LevelData, side: str, tokens: bool) -> Floats:
    place = 2 if side == "baseline" else 3
    shape = (len(data.request_ids), len(data.blocks))
    amount, held = np.full(shape, np.nan), np.full(shape, np.nan)
    for cell in data._cells:
        measurement = cell[place]
        assert isinstance(measurement, Measurement)
        value = _amount(measurement, tokens)
        if value is not None:
            amount[cell[0], cell[1]] = value
            held[cell[0], cell[1]] = (measurement.done_ns - measurement.sent_ns) / NS_PER_MS
    known = np.isfinite(amount)
    if not known.any() or amount[known].sum() <= 0 or held[known].sum() <= 0:
        return np.full(shape, np.nan)
    influence: Floats = amount / amount[known].mean() - held / held[known].mean()
    return influence


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
