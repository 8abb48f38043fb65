"""What it costs. Rates are floats; money that is shown is Decimal. Formulas: docs/costs.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from calculator.capacity import Demand, Fleet, fleet

FORMULA_VERSION = "1"
HOURS_PER_MONTH = 730  # 8,760 hours a year over 12
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Bill:
    """A fleet's money. ``usd_per_request`` is what is paid at this traffic, the saturated one the
    floor at full load; None where there is no traffic or no capacity."""

    fleet: Fleet
    usd_per_month: float | None
    requests_per_month: float
    usd_per_request: float | None
    saturated_usd_per_request: float | None
    utilisation: float | None


def bill(
    demand: Demand,
    capacity_rps: float | None,
    usd_per_gpu_hour: float,
    hours_per_month: float = HOURS_PER_MONTH,
) -> Bill:
    """The month of a static fleet that is sized for the peak."""
    if not math.isfinite(usd_per_gpu_hour) or usd_per_gpu_hour < 0:
        raise ValueError("The price per hour must be 0 or more.")
    served = fleet(demand, capacity_rps)
    requests = demand.avg_rps * SECONDS_PER_HOUR * hours_per_month
    if served.gpus is None or served.replicas is None or capacity_rps is None:
        return Bill(served, None, requests, None, None, None)
    month = served.gpus * usd_per_gpu_hour * hours_per_month
    full = served.replicas * capacity_rps
    return Bill(
        fleet=served,
        usd_per_month=month,
        requests_per_month=requests,
        usd_per_request=month / requests if requests > 0 else None,
        saturated_usd_per_request=(
            demand.gpus_per_replica * usd_per_gpu_hour / (SECONDS_PER_HOUR * capacity_rps)
        ),
        utilisation=demand.avg_rps / full if full > 0 else None,
    )


def saving_percent(baseline_gpus: int | None, candidate_gpus: int | None) -> float | None:
    """Share of the baseline's GPUs that can be handed back; negative when more are needed."""
    if not baseline_gpus or candidate_gpus is None:
        return None
    return 100 * (1 - candidate_gpus / baseline_gpus)


def split_usd_per_million(
    *,
    usd_per_second: float,
    input_tokens_per_s: float,
    output_tokens_per_s: float,
    output_to_input_cost_ratio: float,
    cached_tokens_per_s: float = 0.0,
    cached_weight: float = 0.0,
) -> tuple[float, float]:
    """(input, output) USD per million tokens, by a named ratio; the parts add up to the bill.

    An output token costs ``output_to_input_cost_ratio`` input tokens; a cached prompt token costs
    ``cached_weight`` of an input token's share, counted as output tokens are.
    """
    weighted = (
        input_tokens_per_s / output_to_input_cost_ratio
        + cached_weight * cached_tokens_per_s / output_to_input_cost_ratio
        + output_tokens_per_s
    )
    if weighted <= 0:
        raise ValueError("There are no tokens to split the bill over.")
    output = usd_per_second / weighted * 1e6
    return output / output_to_input_cost_ratio, output


def length_ratios(
    *,
    baseline_seconds: float,
    baseline_tokens: float,
    candidate_seconds: float,
    candidate_tokens: float,
) -> tuple[float, float]:
    """(speed-up per request, per token): an arm that stops earlier is not faster."""
    if min(baseline_seconds, baseline_tokens, candidate_seconds, candidate_tokens) <= 0:
        raise ValueError("Seconds and tokens must be above 0.")
    return (
        baseline_seconds / candidate_seconds,
        (baseline_seconds / baseline_tokens) / (candidate_seconds / candidate_tokens),
    )


def ratio_interval(
    *, baseline: float, baseline_cv: float, candidate: float, candidate_cv: float
) -> tuple[float, float, float]:
    """(ratio, low, high) of two rates with known coefficients of variation; delta method."""
    if baseline <= 0:
        raise ValueError("The baseline must be above 0.")
    ratio = candidate / baseline
    half = 1.96 * math.hypot(baseline_cv, candidate_cv)
    return ratio, ratio * (1 - half), ratio * (1 + half)


def month(
    *,
    gpus: int,
    usd_per_gpu_hour: Decimal,
    hours_per_month: Decimal = Decimal(HOURS_PER_MONTH),
    fx: Decimal = Decimal(1),
    tax_rate: Decimal = Decimal(0),
) -> tuple[Decimal, Decimal]:
    """(before tax, after tax) in the currency of ``fx``, to the cent."""
    before = Decimal(gpus) * usd_per_gpu_hour * hours_per_month * fx
    return cents(before), cents(before * (1 + tax_rate))


def cents(amount: Decimal) -> Decimal:
    return amount.quantize(Decimal("0.01"), ROUND_HALF_UP)
