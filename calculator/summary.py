"""Percentiles of one trial's or one arm's values, and when there are too few for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calculator.statistics import Floats

# A percentile needs values beyond it: 1 / (1 - q) of them put one there on average.
FEWEST = {"p50": 2, "p90": 10, "p95": 20, "p99": 100}
QUANTILES = tuple(i / 20 for i in range(21))


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles in the values' own unit. None: unknown, or too few values."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    quantiles: tuple[float, ...] = ()
    """0 %, 5 % ... 100 %: 21 values, or none where there are no values."""


def summarise(values: Sequence[float | None] | Floats) -> Summary:
    """Summary of the known values (neither None nor NaN); percentiles by linear interpolation
    (NumPy's default)."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if known.size == 0:
        return Summary(0)
    wanted = np.quantile(known, [0.5, 0.9, 0.95, 0.99])
    shown = {
        name: float(value) if known.size >= FEWEST[name] else None
        for name, value in zip(FEWEST, wanted, strict=True)
    }
    return Summary(
        count=int(known.size),
        mean=float(known.mean()),
        quantiles=tuple(float(value) for value in np.quantile(known, QUANTILES)),
        **shown,
    )
