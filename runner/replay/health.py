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
from collections.abc import Callable, Sequence
from itertools import accumulate

from calculator.measurement import NS_PER_MS, NS_PER_S, ClientHealth, Measurement
from runner.replay.probe import Probe

FEWEST_PROBES = 20
MOST_AT_ONCE = 64
"""Sockets read before the loop has its turn again."""


class WatchedSelector(selectors.EpollSelector):
    """epoll for an event loop, which also adds up the time between its waits.

    It waits to the microsecond: epoll rounds a time-out up to the next millisecond, by which every
    send of an open loop would be late. And it serves some sockets itself (``serve``), as handing
    an event to asyncio costs more than reading it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held_ns = 0
        self.longest_hold_ns = 0
        self._returned_ns = time.perf_counter_ns()
        self._served: dict[int, Callable[[], bool]] = {}
        # What asyncio watches is one entry beside the sockets that are served here.
        self._all = select.epoll()
        self._all.register(self.fileno(), select.EPOLLIN)

    def serve(self, descriptor: int, read: Callable[[], bool]) -> None:
        """Call ``read`` whenever ``descriptor`` has something. It answers whether the loop now has
        work: a future that got its result, a transport that closes."""
        self._served[descriptor] = read
        self._all.register(descriptor, select.EPOLLIN)

    def leave(self, descriptor: int) -> None:
        """No more of ``descriptor``. To be said before it is closed: its number is used again."""
        if self._served.pop(descriptor, None) is not None:
            self._all.unregister(descriptor)

    def close(self) -> None:
        self._all.close()
        super().close()

    def reset(self) -> None:
        self.held_ns = 0
        self.longest_hold_ns = 0
        self._returned_ns = time.perf_counter_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        until_ns = None
        if timeout is not None:
            until_ns = time.perf_counter_ns() + round(max(0.0, timeout) * NS_PER_S)
        while True:
            for_asyncio = work = False
            for descriptor, _ in self._wait(until_ns):
                read = self._served.get(descriptor)
                if read is None:
                    for_asyncio = True
                elif read():
                    work = True
            if for_asyncio:
                return super().select(0)
            if work or (until_ns is not None and time.perf_counter_ns() >= until_ns):
                return []

    def _wait(self, until_ns: int | None) -> list[tuple[int, int]]:
        """What is ready; may be nothing a little before ``until_ns``."""
        now_ns = time.perf_counter_ns()
        held_ns = now_ns - self._returned_ns
        self.held_ns += held_ns
        if held_ns > self.longest_hold_ns:
            self.longest_hold_ns = held_ns
        if until_ns is None:
            ready = self._all.poll(maxevents=MOST_AT_ONCE)
        elif (left_ns := until_ns - now_ns) < NS_PER_MS:
            if left_ns > 0:
                select.select([self._all], (), (), left_ns / NS_PER_S)
            ready = self._all.poll(0, MOST_AT_ONCE)
        else:
            # Whole milliseconds; half of one less, as it rounds up what a float makes of them.
            ready = self._all.poll((left_ns // NS_PER_MS - 0.5) / 1000, MOST_AT_ONCE)
        self._returned_ns = time.perf_counter_ns()
        return ready


class SelfWatch:
    """From ``begin`` to ``end``: CPU time, loop time and late stamps of one trial."""

    def __init__(self) -> None:
        self.probe = Probe()
        self.selector = WatchedSelector()
        self._began_ns = self._ended_ns = 0
        self._cpu_began_ns = self._cpu_ended_ns = 0
        self._held_ns = self._longest_ns = 0

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that is watched."""
        return asyncio.SelectorEventLoop(self.selector)

    def begin(self) -> None:
        """The timed window starts now."""
        self.selector.reset()
        self.probe.begin()
        self._cpu_began_ns = time.process_time_ns()
        self._began_ns = time.perf_counter_ns()

    def end(self) -> None:
        self._ended_ns = time.perf_counter_ns()
        self._cpu_ended_ns = time.process_time_ns()
        self._held_ns = self.selector.held_ns
        self._longest_ns = self.selector.longest_hold_ns

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
