"""The load generator watches itself: a client that is the bottleneck measures itself.

The event loop does nothing but wait in its selector or run callbacks. ``WatchedSelector`` stamps
both ends of every wait, so the rest of the wall time is, exactly, the time in which callbacks held
the loop. Time in which the machine gave our process no core while callbacks were due counts as
held too, as it makes time stamps late in the same way.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence

from calculator.measurement import ClientHealth

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class WatchedSelector(selectors.DefaultSelector):
    """The system's selector, which also adds up the time between its waits."""

    def __init__(self) -> None:
        super().__init__()
        self.held_ns = 0
        self.longest_hold_ns = 0
        self._returned_ns = time.perf_counter_ns()

    def reset(self) -> None:
        self.held_ns = 0
        self.longest_hold_ns = 0
        self._returned_ns = time.perf_counter_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        held = time.perf_counter_ns() - self._returned_ns
        self.held_ns += held
        if held > self.longest_hold_ns:
            self.longest_hold_ns = held
        ready = super().select(timeout)
        self._returned_ns = time.perf_counter_ns()
        return ready


class SelfWatch:
    """From ``begin`` to ``end``: CPU time, loop time and requests in flight of one trial."""

    def __init__(self, selector: WatchedSelector) -> None:
        self._selector = selector
        self._began_ns = self._ended_ns = 0
        self._cpu_began_ns = self._cpu_ended_ns = 0
        self._in_flight = self._peak = 0
        self._held_ns = self._longest_ns = 0

    def begin(self) -> int:
        """Start the timed window; returns its origin on ``perf_counter_ns``."""
        self._selector.reset()
        self._cpu_began_ns = time.process_time_ns()
        self._began_ns = time.perf_counter_ns()
        return self._began_ns

    def end(self) -> None:
        self._ended_ns = time.perf_counter_ns()
        self._cpu_ended_ns = time.process_time_ns()
        self._held_ns = self._selector.held_ns
        self._longest_ns = self._selector.longest_hold_ns

    def sent(self) -> None:
        self._in_flight += 1
        self._peak = max(self._peak, self._in_flight)

    def finished(self) -> None:
        self._in_flight -= 1

    def report(self, lateness_ms: Sequence[float]) -> ClientHealth:
        """``lateness_ms``: how late each request of the trial was sent."""
        wall_ns = max(1, self._ended_ns - self._began_ns)
        return ClientHealth(
            lateness_p99_ms=_nearest_rank(lateness_ms, 0.99),
            cpu_s=(self._cpu_ended_ns - self._cpu_began_ns) / NS_PER_S,
            overhead_share=self._held_ns / wall_ns,
            peak_in_flight=self._peak,
            loop_stall_max_ms=self._longest_ns / NS_PER_MS,
        )


def _nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]
