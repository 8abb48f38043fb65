"""Intervals against simulated truth, and their edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from calculator.statistics import (
    Floats,
    compared,
    compared_totals,
    crossed,
    fisher_fewer,
    mean_level,
    needed,
    satterthwaite,
    wilson,
)
from tests.truth.families import FAMILIES as FEW
from tests.truth.families import World

Family = Callable[[np.random.Generator, int, int], Floats]
FAMILIES: dict[str, Family] = {
    "starts and requests differ": lambda rng, n, b: (
        rng.normal(0, 0.1, (n, 1)) + rng.normal(0, 0.05, (1, b)) + rng.normal(0, 0.05, (n, b))
    ),
    "only requests differ": lambda rng, n, b: (
        rng.normal(0, 0.3, (n, 1)) + rng.normal(0, 0.05, (n, b))
    ),
    "only starts differ": lambda rng, n, b: (
        rng.normal(0, 0.05, (1, b)) + rng.normal(0, 0.01, (n, b))
    ),
    "only noise": lambda rng, n, b: rng.normal(0, 0.1, (n, b)),
    "heavy tails": lambda rng, n, b: (
        0.1 * rng.standard_t(3, (n, 1))
        + rng.normal(0, 0.03, (1, b))
        + 0.05 * rng.standard_t(3, (n, b))
    ),
    "skewed requests": lambda rng, n, b: (
        0.2 * (rng.exponential(1, (n, 1)) - 1)
        + rng.normal(0, 0.03, (1, b))
        + rng.normal(0, 0.05, (n, b))
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("requests", "starts", "least"),
    [
        (24, 3, 0.915),
        # The demo's size. Two starts show a variance with one degree of freedom: where nothing but
        # starts differs, the t interval holds about 0.90 instead of 0.95.
        (6, 2, 0.87),
    ],
)
def test_nominal_95_percent_intervals_cover_the_truth(
    name: str, requests: int, starts: int, least: float
) -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(600):
        found = crossed(FAMILIES[name](rng, requests, starts))
        assert found is not None
        interval = found.interval()
        assert interval.low is not None
        assert interval.high is not None
        hits += interval.low <= 0 <= interval.high
    # 600 draws know the coverage to about 2 points.
    assert hits / 600 >= least


def test_one_start_gives_an_estimate_and_no_interval() -> None:
    found = crossed(np.array([[0.1], [0.2], [0.3]]))
    assert found is not None
    interval = found.interval()
    assert interval.estimate == pytest.approx(0.2)
    assert interval.low is None
    assert interval.high is None


def test_missing_pairs_are_left_out_and_not_zero() -> None:
    values = np.array([[1.0, 1.0], [np.nan, 3.0], [np.nan, np.nan]])
    found = crossed(values)
    assert found is not None
    assert found.mean == pytest.approx(2.0)
    assert found.requests == 2
    assert crossed(np.full((2, 2), np.nan)) is None
    assert crossed(np.zeros((0, 0))) is None


def test_means_of_positive_values_keep_positive_limits() -> None:
    interval = mean_level(np.array([[1.0, 100.0], [3.0, 0.5]]))
    assert interval.low is not None
    assert interval.low > 0


def test_degrees_of_freedom_lie_between_the_parts() -> None:
    assert satterthwaite((1.0, 4), (0.0, 1)) == pytest.approx(4)
    assert satterthwaite((0.0, 4), (1.0, 1)) == pytest.approx(1)
    assert 1 < satterthwaite((1.0, 4), (1.0, 1)) < 5


def test_wilson_against_published_values() -> None:
    # E. B. Wilson 1927 limits, as tabulated by R. G. Newcombe, Statistics in Medicine 17 (1998).
    interval = wilson(81, 263)
    assert interval.low == pytest.approx(0.2553, abs=5e-5)
    assert interval.high == pytest.approx(0.3662, abs=5e-5)
    assert wilson(0, 0).estimate is None


def test_fisher_tail_of_the_tea_tasting() -> None:
    # Fisher 1935: of 8 cups, 3 of 4 right or fewer has probability 69/70.
    assert fisher_fewer(3, 4, 1, 4) == pytest.approx(69 / 70)
    assert fisher_fewer(0, 4, 4, 4) == pytest.approx(1 / 70)
    assert fisher_fewer(0, 0, 3, 4) == 1.0


@pytest.mark.parametrize("name", ["two starts", "two starts that differ most", "a tenth fails"])
def test_two_arms_own_starts_cover_where_pairs_alone_do_not(name: str) -> None:
    family = FEW[name]
    world = World(400, family.requests, family.starts, -0.2)
    rng = np.random.default_rng(17)
    arms = list(zip(*family.draw(rng, world), strict=True))
    found = [one for before, after in arms if (one := compared(before, after)) is not None]
    hits = sum((one.interval().low or 0) <= -0.2 <= (one.interval().high or 0) for one in found)
    # 400 draws know the coverage to about 2.5 points.
    assert hits / 400 >= 0.90


def test_swapped_arms_mirror_and_starts_without_a_whole_request_fall_back_to_pairs() -> None:
    rng = np.random.default_rng(3)
    before, after = rng.normal(0, 0.1, (2, 6, 3))
    one, other = compared(before, after), compared(after, before)
    assert one is not None
    assert other is not None
    assert other.mean == pytest.approx(-one.mean)
    assert other.half_width() == pytest.approx(one.half_width())
    assert 2 <= one.block_df <= 4
    holes = np.where(np.eye(6, 3, dtype=bool) | np.eye(6, 3, -3, dtype=bool), np.nan, before)
    assert compared(holes, after) == crossed(after - holes)
    assert compared(before[:, :1], after[:, :1]) == crossed(after[:, :1] - before[:, :1])
    assert compared(np.full((2, 2), np.nan), np.zeros((2, 2))) is None


def test_rates_of_two_arms_count_each_arm_s_starts() -> None:
    moved = np.zeros((4, 2))
    found = compared_totals(np.array([0.0, 0.2]), np.array([1.0, 1.2]), moved)
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    # Both arms' starts differ by 0.2 though their differences do not: that is counted.
    assert found.block_variance == pytest.approx(0.02)
    assert found.block_df == pytest.approx(2)
    assert compared_totals(np.zeros(0), np.zeros(0), moved[:, :0]) is None


def test_more_power_costs_more_measuring() -> None:
    found = crossed(FAMILIES["starts and requests differ"](np.random.default_rng(2), 12, 3))
    assert found is not None
    often, surely = needed(found, 0.1, power=0.5), needed(found, 0.1, power=0.95)
    assert often is not None
    assert surely is not None
    assert often.blocks * often.requests < surely.blocks * surely.requests


def test_what_would_settle_shrinks_with_the_distance() -> None:
    found = crossed(FAMILIES["starts and requests differ"](np.random.default_rng(2), 12, 2))
    assert found is not None
    near, far = needed(found, 0.1), needed(found, 0.5)
    assert near is not None
    assert far is not None
    assert near.blocks * near.requests >= far.blocks * far.requests
    assert needed(found, 0.0) is None
