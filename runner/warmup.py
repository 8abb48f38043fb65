"""Warm-up until answers take as long as they did a round before, not a fixed number of them.

The first requests after a start are slow: kernels are compiled, graphs captured, memory touched.
How many depends on the engine and its settings, so that is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from calculator.measurement import Measurement

MOST_ROUNDS = 5
STEADY_WITHIN = 0.10


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the warm-up came to."""

    rounds: int
    steady: bool
    """The last two rounds differed by less than a tenth; False also where nothing could be told."""
    change: float | None = None
    """Last round's time per token over the one before it, minus 1; None: fewer than two rounds."""


def until_steady(send_round: Callable[[int], Sequence[Measurement]]) -> WarmUp:
    """Send the same requests in rounds (``send_round(0)``, ``send_round(1)`` ...) until steady.

    Compared are the geometric means of the time per token over the requests that both rounds
    completed. At least two rounds are sent, at most five.
    """
    before = _times(send_round(0))
    change = None
    for number in range(1, MOST_ROUNDS):
        now = _times(send_round(number))
        both = before.keys() & now.keys()
        if both:
            change = math.exp(sum(now[name] - before[name] for name in both) / len(both)) - 1
            if abs(change) < STEADY_WITHIN:
                return WarmUp(number + 1, True, change)
        before = now
    return WarmUp(MOST_ROUNDS, False, change)


def _times(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Log of the time per token by request; of the whole answer where tokens are not known."""
    return {
        m.request_id: math.log(m.e2e_ms / (m.output_tokens or 1))
        for m in measurements
        if m.ok and m.e2e_ms
    }
