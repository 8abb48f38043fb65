"""The load generator watches itself: a client that is the bottleneck measures itself.

The event loop does nothing but wait in its selector or run callbacks. ``WatchedSelector`` stamps
both ends of every wait, so the rest of the wall time is, exactly, the time in which callbacks held
the loop. Time in which the machine gave our process no core while callbacks were due counts as
held too, as it makes time stamps late in the same way.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from collections.abc import Sequence
from itertools import accumulate

from calculator.measurement import NS_PER_MS, NS_PER_S, ClientHealth, Measurement
from runner.replay.probe import Probe

FEWEST_PROBES = 20


class WatchedSelector(selectors.DefaultSelector):
    """The system's selector, which also adds up the time between its waits.

    It waits to the microsecond: epoll rounds a time-out up to the next millisecond, by which every
    send of an open loop would be late.
    """

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
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], (), (), timeout)
            timeout = 0
        ready = super().select(timeout)
        self._returned_ns = time.perf_counter_ns()
        return ready


class SelfWatch:
    """From ``begin`` to ``end``: CPU time, loop time and late stamps of one trial."""

    def __init__(self) -> None:
        self.probe = Probe()
        self._selector = WatchedSelector()
        self._began_ns = self._ended_ns = 0
        self._cpu_began_ns = self._cpu_ended_ns = 0
        self._held_ns = self._longest_ns = 0

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that is watched."""
        return asyncio.SelectorEventLoop(self._selector)

    def begin(self) -> None:
        """The timed window starts now."""
        self._selector.reset()
        self.probe.begin()
        self._cpu_began_ns = time.process_time_ns()
        self._began_ns = time.perf_counter_ns()

    def end(self) -> None:
        self._ended_ns = time.perf_counter_ns()
        self._cpu_ended_ns = time.process_time_ns()
        self._held_ns = self._selector.held_ns
        self._longest_ns = self._selector.longest_hold_ns

    def report(self, measurements: Sequence[Measurement]) -> ClientHealth:
        """What this process says of itself after the trial of ``measurements``."""
        wall_ns = max(1, self._ended_ns - self._began_ns)
        delays_ms = [delay_ns / NS_PER_MS for delay_ns in self.probe.delays_ns]
        probed = len(delays_ms) >= FEWEST_PROBES
        return ClientHealth(
            lateness_p99_ms=_nearest_rank([one.lateness_ms for one in measurements], 0.99),
            cpu_s=(self._cpu_ended_ns - self._cpu_began_ns) / NS_PER_S,
            overhead_share=self._held_ns / wall_ns,
            peak_in_flight=peak_in_flight(measurements),
            loop_stall_max_ms=self._longest_ns / NS_PER_MS,
            probe_p50_ms=_nearest_rank(delays_ms, 0.5) if probed else None,
            probe_p99_ms=_nearest_rank(delays_ms, 0.99) if probed else None,
        )


def merged(reports: Sequence[ClientHealth], measurements: Sequence[Measurement]) -> ClientHealth:
    """One report of several sending processes: the worst of each, the sum of CPU time."""
    return ClientHealth(
        lateness_p99_ms=_nearest_rank([one.lateness_ms for one in measurements], 0.99),
        cpu_s=sum(one.cpu_s for one in reports),
        overhead_share=max(one.overhead_share for one in reports),
        peak_in_flight=peak_in_flight(measurements),
        loop_stall_max_ms=max(one.loop_stall_max_ms for one in reports),
        probe_p50_ms=_worst([one.probe_p50_ms for one in reports]),
        probe_p99_ms=_worst([one.probe_p99_ms for one in reports]),
        processes=len(reports),
    )


def peak_in_flight(measurements: Sequence[Measurement]) -> int:
    """The most requests that were between send and end at one moment."""
    changes = sorted(
        [(one.sent_ns, 1) for one in measurements] + [(one.done_ns, -1) for one in measurements]
    )
    return max(accumulate(change for _, change in changes), default=0)


def _worst(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]
