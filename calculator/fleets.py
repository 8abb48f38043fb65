"""The engines that each arm needs for one traffic, at its measured capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from calculator.capacity import Demand, fleet
from calculator.cost import HOURS_PER_MONTH

Gain = Literal["proven", "not_shown", "loss", "unknown"]

TARGET_LOAD = 0.8


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was assumed about the traffic and the fleet."""

    requests_per_month: float | None
    peak_to_mean: float
    own_concurrency: int | None
    hours_per_month: int = HOURS_PER_MONTH
    target_load: float = TARGET_LOAD
    min_replicas: int = 1
    spare_replicas: int = 0


@dataclass(frozen=True, slots=True)
class ArmFleet:
    """One arm's fleet at the measured capacity; the range is the capacity interval's."""

    capacity_rps: float
    replicas: int
    replicas_low: int | None
    replicas_high: int | None
    usd_per_month: Decimal
    usd_per_request: Decimal | None


def arm_fleets(
    comparison: Mapping[str, Any], inputs: Inputs, usd_per_hour: Decimal
) -> tuple[ArmFleet | None, ArmFleet | None]:
    """(baseline, candidate) for a comparison's document; None: no volume, or no capacity.

    Raises ValueError for a peak below the mean.
    """
    if inputs.requests_per_month is None:
        return None, None
    mean_rps = inputs.requests_per_month / (inputs.hours_per_month * 3600)
    demand = Demand(
        avg_rps=mean_rps,
        peak_rps=mean_rps * inputs.peak_to_mean,
        target_load=inputs.target_load,
        spare_replicas=inputs.spare_replicas,
        min_replicas=inputs.min_replicas,
    )
    before, after = (
        _arm_fleet(comparison, side, demand, inputs, usd_per_hour)
        for side in ("baseline", "candidate")
    )
    return before, after


def money_gain(comparison: Mapping[str, Any], inputs: Inputs, usd_per_hour: Decimal) -> Gain:
    """Money is saved when fewer engines do, also at the worse ends of both capacity intervals: an
    answer that only comes sooner hands no engine back."""
    before, after = arm_fleets(comparison, inputs, usd_per_hour)
    if usd_per_hour <= 0 or before is None or after is None:
        return "unknown"
    if before.replicas_low is None or before.replicas_high is None:
        return "unknown"
    if after.replicas_low is None or after.replicas_high is None:
        return "unknown"
    if after.replicas_high < before.replicas_low:
        return "proven"
    return "loss" if after.replicas_low > before.replicas_high else "not_shown"


def _arm_fleet(
    comparison: Mapping[str, Any],
    side: str,
    demand: Demand,
    inputs: Inputs,
    usd_per_hour: Decimal,
) -> ArmFleet | None:
    rate = comparison["capacity"][side]["requests_per_s"]
    if rate is None:
        return None
    bounds = _rate_interval(comparison, side)
    replicas = _replicas(demand, rate)
    assert replicas is not None
    month = Decimal(replicas) * usd_per_hour * inputs.hours_per_month
    return ArmFleet(
        capacity_rps=rate,
        replicas=replicas,
        replicas_low=_replicas(demand, bounds["high"]),
        replicas_high=_replicas(demand, bounds["low"]),
        usd_per_month=month,
        usd_per_request=_per_request(month, inputs.requests_per_month),
    )


def _per_request(month: Decimal, requests: float | None) -> Decimal | None:
    if not requests:
        return None
    return (month / Decimal(str(requests))).quantize(Decimal("1e-9"))


def _replicas(demand: Demand, rate: float | None) -> int | None:
    return None if not rate else fleet(demand, rate).replicas


def _rate_interval(comparison: Mapping[str, Any], side: str) -> Mapping[str, float | None]:
    """The arm's requests/s at the load where it has its capacity."""
    concurrency = comparison["capacity"][side]["concurrency"]
    for level in comparison["levels"]:
        if level["concurrency"] == concurrency:
            interval: Mapping[str, float | None] = level["effects"]["requests_per_s"][side]
            return interval
    return {"low": None, "high": None}
