"""Due times of open loops: known rates, known gaps, refused nonsense."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from runner import arrivals

NS = 1_000_000_000


def gaps(load: arrivals.OpenLoop) -> np.ndarray:
    return np.diff([0, *load.due_ns]) / NS


def test_constant_rate() -> None:
    load = arrivals.constant(4, 5)
    assert load.due_ns == (0, NS // 4, NS // 2, 3 * NS // 4, NS)
    assert load.rate_per_s == 4


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gamma_gaps_have_the_rate_and_the_burstiness(burstiness: float, variation: float) -> None:
    drawn = gaps(arrivals.gamma(10, burstiness, 40_000, seed=5))
    assert drawn.mean() == pytest.approx(0.1, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(variation, rel=0.03)


def test_poisson_is_gamma_of_burstiness_1_and_seeded() -> None:
    assert arrivals.poisson(3, 50, seed=1) == arrivals.gamma(3, 1.0, 50, seed=1)
    assert arrivals.poisson(3, 50, seed=1) != arrivals.poisson(3, 50, seed=2)


@pytest.mark.parametrize(("first", "last"), [(2, 10), (10, 2)])
def test_ramp_reaches_its_rates(first: float, last: float) -> None:
    due_s = [at / NS for at in arrivals.ramp(first, last, 600).due_ns]
    assert due_s[-1] == pytest.approx(600 / 6, rel=0.01)
    assert 10 / (due_s[10] - due_s[0]) == pytest.approx(first, rel=0.12)  # it moves in ten requests
    assert 10 / (due_s[-1] - due_s[-11]) == pytest.approx(last, rel=0.12)
    assert all(before < after for before, after in pairwise(due_s))
    assert arrivals.ramp(3, 3, 9) == arrivals.constant(3, 9)


def test_recorded_arrivals_keep_their_gaps() -> None:
    load = arrivals.recorded([1005.0, 1000.0, 1001.5, 1001.5], scale=2)
    assert [at / NS for at in load.due_ns] == [0, 0.75, 0.75, 2.5]
    assert arrivals.recorded([7.0]).rate_per_s is None


def test_a_missing_time_is_not_0() -> None:
    with pytest.raises(ValueError, match="has no time"):
        arrivals.recorded([1.0, math.nan])


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf])
def test_no_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        arrivals.constant(rate, 3)
    with pytest.raises(ValueError, match="above 0"):
        arrivals.poisson(rate, 3, seed=1)
    with pytest.raises(ValueError, match="above 0"):
        arrivals.gamma(1, rate, 3, seed=1)
    with pytest.raises(ValueError, match="above 0"):
        arrivals.ramp(1, rate, 3)
    with pytest.raises(ValueError, match="above 0"):
        arrivals.recorded([1.0, 2.0], scale=rate)
