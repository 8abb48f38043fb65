"""When to send. Knows neither HTTP nor tokens.

A schedule calls ``send(sequence, scheduled_ns)`` for every request of the trial, where
``scheduled_ns`` (``perf_counter_ns``) is the moment it should have gone out. An open loop is a
second class with the same ``run``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

Send = Callable[[int, int], Awaitable[int | None]]
"""Sends one request and returns when its slot is free again, or None to end the slot."""


class Schedule(Protocol):
    def tasks(self, send: Send, origin_ns: int) -> list[Coroutine[Any, Any, None]]:
        """The coroutines that together send every request of the trial once."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``concurrency`` slots; each sends its next request as soon as its last one ended.

    A request is due when its slot became free, the first of each slot at the trial's start.
    """

    concurrency: int
    total: int

    def tasks(self, send: Send, origin_ns: int) -> list[Coroutine[Any, Any, None]]:
        numbers = iter(range(self.total))

        async def slot() -> None:
            due_ns = origin_ns
            for sequence in numbers:  # shared: each number goes to whichever slot is free first
                free_ns = await send(sequence, due_ns)
                if free_ns is None:
                    return
                due_ns = free_ns

        return [slot() for _ in range(min(self.concurrency, self.total))]


async def run(
    schedule: Schedule,
    send: Send,
    *,
    origin_ns: int,
    tick: Callable[[], None],
    tick_s: float = 0.2,
) -> None:
    """Run a schedule to its end. ``tick`` is called now and then; what it raises ends the trial.

    Requests in flight are cancelled before the exception leaves.
    """
    tasks = [asyncio.ensure_future(task) for task in schedule.tasks(send, origin_ns)]
    pending: set[asyncio.Future[None]] = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=tick_s, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            tick()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
