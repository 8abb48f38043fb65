"""Worlds whose true effect is known: logs of two arms' latencies, by request and server start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calculator.statistics import Floats

Arms = tuple[Floats, Floats]
"""Before and after: logs of ms, shape (draws, requests, starts); NaN for a failed request."""
Draw = Callable[[np.random.Generator, "World"], Arms]


@dataclass(frozen=True, slots=True)
class World:
    """How many of each, and the true mean of log(after / before)."""

    draws: int
    requests: int
    starts: int
    log_ratio: float = 0.0


def _request(rng: np.random.Generator, world: World, sd: float) -> Floats:
    return rng.normal(0, sd, (world.draws, world.requests, 1))


def _start(rng: np.random.Generator, world: World, sd: float) -> Floats:
    return rng.normal(0, sd, (world.draws, 1, world.starts))


def _noise(rng: np.random.Generator, world: World, sd: float) -> Floats:
    return rng.normal(0, sd, (world.draws, world.requests, world.starts))


def _arms(
    rng: np.random.Generator,
    world: World,
    *,
    change_sd: float = 0.15,
    start_sd: float = 0.03,
    later_start_sd: float | None = None,
    noise_sd: float = 0.10,
) -> Arms:
    """Requests differ by a factor of two, each gains differently, starts and answers vary."""
    own = 6 + _request(rng, world, 0.7)
    gain = world.log_ratio + _request(rng, world, change_sd)
    before = own + _start(rng, world, start_sd) + _noise(rng, world, noise_sd)
    later_sd = start_sd if later_start_sd is None else later_start_sd
    after = own + gain + _start(rng, world, later_sd) + _noise(rng, world, noise_sd)
    return before, after


def _heavy_tails(rng: np.random.Generator, world: World) -> Arms:
    before, after = _arms(rng, world, change_sd=0.0, noise_sd=0.0)
    shape = before.shape
    change = 0.1 * rng.standard_t(3, (*shape[:2], 1))
    return (
        before + 0.08 * rng.standard_t(3, shape),
        after + change + 0.08 * rng.standard_t(3, shape),
    )


def _skewed(rng: np.random.Generator, world: World) -> Arms:
    before, after = _arms(rng, world, change_sd=0.0)
    return before, after + 0.2 * (rng.exponential(1, (*before.shape[:2], 1)) - 1)


def _drift(rng: np.random.Generator, world: World) -> Arms:
    """The machine gets slower by 1 % a start, in the order A B B A A B …"""
    before, after = _arms(rng, world, start_sd=0.02)
    first = 2 * np.arange(world.starts)
    swapped = np.arange(world.starts) % 2
    return before + 0.01 * (first + swapped), after + 0.01 * (first + 1 - swapped)


def _wandering(rng: np.random.Generator, world: World) -> Arms:
    """Both arms of a block meet the same machine, which wanders from block to block."""
    before, after = _arms(rng, world, start_sd=0.02)
    common = np.cumsum(_start(rng, world, 0.05), axis=2)
    return before + common, after + common


def _batches(rng: np.random.Generator, world: World) -> Arms:
    """Requests that run together are slow together: noise with autocorrelation 0.8."""
    before, after = _arms(rng, world, noise_sd=0.02)

    def waves() -> Floats:
        noise = _noise(rng, world, 0.10)
        for index in range(1, world.requests):
            noise[:, index] = 0.8 * noise[:, index - 1] + 0.6 * noise[:, index]
        return noise

    return before + waves(), after + waves()


def _lengths(rng: np.random.Generator, world: World) -> Arms:
    """A fifth of the answers has another length in every answer given, in both arms alike."""
    before, after = _arms(rng, world)
    shape = before.shape

    def other() -> Floats:
        return np.where(rng.random(shape) < 0.2, rng.normal(0, 0.4, shape), 0.0)

    return before + other(), after + other()


def _categories(rng: np.random.Generator, world: World) -> Arms:
    """Two thirds of the requests gain 30 % more than the mean, one third loses what balances it."""
    before, after = _arms(rng, world, change_sd=0.05)
    gains = rng.random((*before.shape[:2], 1)) < 2 / 3
    return before, after + np.where(gains, -0.3, 0.6)


def _failures(rng: np.random.Generator, world: World) -> Arms:
    """A tenth of the requests fails, each arm and start by itself."""
    before, after = _arms(rng, world)
    lost = rng.random((2, *before.shape)) < 0.1
    return np.where(lost[0], np.nan, before), np.where(lost[1], np.nan, after)


@dataclass(frozen=True, slots=True)
class Family:
    draw: Draw
    requests: int = 48
    starts: int = 3


FAMILIES: dict[str, Family] = {
    "starts, requests and answers differ": Family(_arms),
    "requests differ most": Family(lambda r, w: _arms(r, w, change_sd=0.4, start_sd=0.01)),
    "starts differ most": Family(lambda r, w: _arms(r, w, change_sd=0.02, start_sd=0.08)),
    "only answers differ": Family(lambda r, w: _arms(r, w, change_sd=0.0, start_sd=0.0)),
    "the candidate's starts differ more": Family(lambda r, w: _arms(r, w, later_start_sd=0.09)),
    "heavy tails (t, 3 degrees)": Family(_heavy_tails),
    "skewed gains": Family(_skewed),
    "drift over the starts": Family(_drift),
    "a machine that wanders": Family(_wandering),
    "autocorrelated batches": Family(_batches),
    "unequal lengths": Family(_lengths),
    "mixed categories": Family(_categories),
    "a tenth fails": Family(_failures),
    "two starts": Family(_arms, starts=2),
    "two starts that differ most": Family(
        lambda r, w: _arms(r, w, change_sd=0.02, start_sd=0.08), starts=2
    ),
    "few requests": Family(_arms, requests=12),
}
