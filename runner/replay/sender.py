"""One process's part of a trial: send its requests when they are due, then count the answers."""

from __future__ import annotations

import asyncio
import gc
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter_ns

from calculator.measurement import NS_PER_S, ClientHealth
from calculator.steady import queue_grows
from runner.arrivals import ClosedLoop, Load, OpenLoop
from runner.engines.base import Endpoint
from runner.replay import schedule
from runner.replay.client import NO_SERVER, Answer, Client
from runner.replay.count import REFUSING_STATUS, Counted, count
from runner.replay.gone import Presence
from runner.replay.health import SelfWatch
from runner.replay.held import HeldAnswers
from runner.traffic.request import Kind

PAUSE_AFTER_REFUSAL_S = 0.1
"""A refused slot waits this long: one refusal must not burn the whole sample in a second."""
PAUSE_BETWEEN_PROBES_S = 0.5
"""Where connections fail, one slot tries this often and the others wait."""
PROGRESS_EVERY_S = 1.0
OPEN_LOOP_CONNECTIONS = 32
"""Opened before an open loop begins; more are opened beside it as they are needed."""

StartTogether = Callable[[], Awaitable[int]]
"""Called when connections are open; returns the moment (``perf_counter_ns``) that is time 0."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, ready to be sent."""

    sequence: int
    request_id: str
    category: str | None
    kind: Kind
    body: bytes


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is to send. ``calls`` are in sequence."""

    endpoint: Endpoint
    calls: Sequence[Call]
    load: Load
    timeout_s: float
    give_up_after_s: float


class Ending(StrEnum):
    """Why the sending ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    GONE = "gone"
    OVER_CAPACITY = "over_capacity"
    NO_SPACE = "no_space"


@dataclass(slots=True)
class Sent:
    """What came of a job."""

    ending: Ending
    reason: str
    counted: list[Counted] = field(repr=False)
    health: ClientHealth


class _End(Exception):
    def __init__(self, ending: Ending, reason: str = "") -> None:
        super().__init__(reason)
        self.ending = ending
        self.reason = reason


class Sender:
    """Runs one job, with an event loop of its own, on the calling thread."""

    def __init__(
        self,
        job: Job,
        *,
        should_stop: Callable[[], bool] | None = None,
        on_finished: Callable[[int], None] | None = None,
        start_together: StartTogether | None = None,
    ) -> None:
        self.held = HeldAnswers()
        self._job = job
        self._calls = {call.sequence: call for call in job.calls}
        self._open_loop = isinstance(job.load, OpenLoop)
        self._should_stop = should_stop
        self._on_finished = on_finished
        self._start_together = start_together
        self._watch = SelfWatch()
        self._origin_ns = self._told_ns = 0
        self._finished = self._told = 0
        self._sends_ns, self._ends_ns = array("q"), array("q")
        self._trouble: OSError | None = None
        self._probing = asyncio.Lock()
        self._presence = Presence(
            timeout_s=job.timeout_s,
            most_silent=2 * self._slots,
            give_up_after_s=job.give_up_after_s,
        )

    @property
    def _slots(self) -> int:
        load = self._job.load
        widest = load.concurrency if isinstance(load, ClosedLoop) else OPEN_LOOP_CONNECTIONS
        return min(widest, len(self._job.calls))

    def run(self) -> tuple[Ending, str]:
        """Send everything; answers lie in ``held`` afterwards, as far as they came."""
        try:
            with asyncio.Runner(loop_factory=self._watch.new_loop) as runner:
                runner.run(self._run())
        except _End as end:
            return end.ending, end.reason
        return Ending.COMPLETE, ""

    def result(self, ending: Ending, reason: str) -> Sent:
        """Count what is held, and forget it."""
        counted = []
        for answer in self.held:
            call = self._calls[answer.sequence]
            counted.append(
                count(
                    answer,
                    call.request_id,
                    call.category,
                    self._origin_ns,
                    open_loop=self._open_loop,
                )
            )
        self.held.close()
        health = self._watch.report([one.measurement for one in counted])
        return Sent(ending, reason, counted, health)

    async def _run(self) -> None:
        job, selector = self._job, self._watch.selector
        async with Client(job.endpoint, timeout_s=job.timeout_s, readers=selector) as client:
            await client.open_connections(self._slots)
            self._watch.probe.start()
            try:
                with _no_garbage_collection():
                    await self._send_all(client)
            finally:
                self._watch.probe.stop()
            self._tell()
            if self._presence.failing or self._presence.hangs:  # to the very end
                raise _End(Ending.GONE, self._presence.reason)

    async def _send_all(self, client: Client) -> None:
        self._origin_ns = perf_counter_ns()
        if self._start_together is not None:
            self._origin_ns = await self._start_together()
            await asyncio.sleep(max(0, self._origin_ns - perf_counter_ns()) / NS_PER_S)
        self._told_ns = self._origin_ns
        self._watch.begin()
        coroutines = schedule.tasks(
            self._job.load,
            [call.sequence for call in self._job.calls],
            lambda sequence, due_ns: self._send(client, sequence, due_ns),
            self._origin_ns,
        )
        try:
            await schedule.run(coroutines, tick=self._tick)
        finally:
            self._watch.end()

    async def _send(self, client: Client, sequence: int, due_ns: int) -> int | None:
        if self._open_loop:
            client.open_spare()
            return await self._attempt(client, sequence, due_ns, 0)
        if self._presence.failing:
            async with self._probing:  # one slot tries, the others wait here
                if self._presence.failing:
                    return await self._attempt(client, sequence, due_ns, PAUSE_BETWEEN_PROBES_S)
        return await self._attempt(client, sequence, due_ns, PAUSE_AFTER_REFUSAL_S)

    async def _attempt(
        self, client: Client, sequence: int, due_ns: int, pause_s: float
    ) -> int | None:
        answer = Answer(sequence, due_ns)
        call = self._calls[sequence]
        if self._open_loop:
            self._sends_ns.append(due_ns)
        await client.send(call.kind, call.body, answer)
        self._keep(answer)
        if answer.end not in NO_SERVER and answer.status not in REFUSING_STATUS:
            return answer.done_ns
        await asyncio.sleep(pause_s)
        return None if self._presence.gone else perf_counter_ns()

    def _keep(self, answer: Answer) -> None:
        self._finished += 1
        self._presence.note(answer)
        if self._open_loop:
            self._ends_ns.append(answer.done_ns)
        try:
            self.held.add(answer)
        except OSError as error:
            self._trouble = error

    def _tick(self) -> None:
        if self._trouble is not None:
            reason = f"Finished answers cannot be kept on the disk: {self._trouble.strerror}."
            raise _End(Ending.NO_SPACE, reason)
        if self._presence.gone:
            raise _End(Ending.GONE, self._presence.reason)
        if self._should_stop and self._should_stop():
            raise _End(Ending.STOPPED, "The replay was asked to stop.")
        now_ns = perf_counter_ns()
        if now_ns - self._told_ns < PROGRESS_EVERY_S * NS_PER_S:
            return
        self._told_ns = now_ns
        self._tell()
        if queue_grows(self._sends_ns, self._ends_ns, now_ns):
            waiting = len(self._sends_ns) - len(self._ends_ns)
            raise _End(
                Ending.OVER_CAPACITY,
                f"Requests arrive faster than the server answers them: {waiting} wait and the "
                "queue grows. Lower the rate.",
            )

    def _tell(self) -> None:
        if self._on_finished and self._finished > self._told:
            self._told = self._finished
            self._on_finished(self._finished)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A full collection over a large heap stalls the loop for tens of ms, so it waits."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
