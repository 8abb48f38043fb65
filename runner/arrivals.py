"""When requests go out, as numbers: a closed loop, or the due times of an open one. Pure.

A closed loop keeps N requests in flight: the next goes out when one ends, so a slow server is asked
less. In an open loop requests come when they come, as users do who don't know of each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``concurrency`` requests in flight."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Request i is due ``due_ns[i]`` after the trial's start; ascending."""

    due_ns: tuple[int, ...]

    @property
    def rate_per_s(self) -> float | None:
        """Arrivals per second from the first to the last; None where that is no span."""
        span_ns = self.due_ns[-1] - self.due_ns[0] if self.due_ns else 0
        return (len(self.due_ns) - 1) * NS_PER_S / span_ns if span_ns > 0 else None


Load = ClosedLoop | OpenLoop


def constant(rate_per_s: float, count: int) -> OpenLoop:
    """One request every 1 / rate seconds."""
    gap_s = 1 / _rate(rate_per_s)
    return _open(gap_s * place for place in range(count))


def poisson(rate_per_s: float, count: int, seed: int) -> OpenLoop:
    """Independent users: exponential gaps of mean 1 / rate."""
    return gamma(rate_per_s, 1.0, count, seed)


def gamma(rate_per_s: float, burstiness: float, count: int, seed: int) -> OpenLoop:
    """Gamma gaps of mean 1 / rate and shape ``burstiness``: below 1 in bursts, above 1 steadier.

    The word and its direction are those of vLLM's ``bench serve``; the squared coefficient of
    variation of the gaps is 1 / burstiness.
    """
    if not (math.isfinite(burstiness) and burstiness > 0):
        raise ValueError("The burstiness must be a number above 0.")
    mean_s = 1 / _rate(rate_per_s)
    rng = random.Random(f"arrivals {seed}")  # noqa: S311 - order, not secrecy
    gaps = (rng.gammavariate(burstiness, mean_s / burstiness) for _ in range(count))
    return _open(accumulate(gaps))


def ramp(from_per_s: float, to_per_s: float, count: int) -> OpenLoop:
    """Evenly rising (or falling) rate: request i is due when the rate's integral reaches i."""
    first, last = _rate(from_per_s), _rate(to_per_s)
    span_s = count / ((first + last) / 2)
    slope = (last - first) / span_s
    if slope == 0:
        return constant(first, count)
    # i = first t + slope t^2 / 2, solved for t.
    return _open(
        (math.sqrt(first * first + 2 * slope * place) - first) / slope for place in range(count)
    )


def recorded(times_s: Sequence[float], scale: float = 1.0) -> OpenLoop:
    """The arrivals of a trace, from its first one on; ``scale`` 2 is twice the rate.

    Raises ValueError where a time is missing (not finite): missing is not 0.
    """
    if not all(math.isfinite(time_s) for time_s in times_s):
        raise ValueError("A recorded arrival has no time.")
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError("The scale of recorded arrivals must be a number above 0.")
    ordered = sorted(times_s)
    return _open((time_s - ordered[0]) / scale for time_s in ordered)


def _rate(per_s: float) -> float:
    if not (math.isfinite(per_s) and per_s > 0):
        raise ValueError("A rate must be a number of requests per second above 0.")
    return per_s


def _open(due_s: Iterator[float]) -> OpenLoop:
    return OpenLoop(tuple(round(at_s * NS_PER_S) for at_s in due_s))
