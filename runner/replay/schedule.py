"""When to send. Knows neither HTTP nor tokens.

A schedule calls ``send(sequence, scheduled_ns)`` for every request of the trial, where
``scheduled_ns`` (``perf_counter_ns``) is the moment it should have gone out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from time import perf_counter_ns
from typing import Any

from runner.arrivals import NS_PER_S, ClosedLoop, Load

Send = Callable[[int, int], Awaitable[int | None]]
"""Sends one request and returns when its slot is free again, or None to end the slot."""


def tasks(
    load: Load, sequences: Sequence[int], send: Send, origin_ns: int
) -> list[Coroutine[Any, Any, None]]:
    """The coroutines that together send every request of ``sequences`` once, in order."""
    if isinstance(load, ClosedLoop):
        numbers = iter(sequences)
        slots = min(load.concurrency, len(sequences))
        return [_slot(numbers, send, origin_ns) for _ in range(slots)]
    dues = [(origin_ns + load.due_ns[sequence], sequence) for sequence in sequences]
    return [_open_loop(dues, send)]


async def _slot(numbers: Iterator[int], send: Send, origin_ns: int) -> None:
    """A request is due when its slot became free, the first of each slot at the trial's start."""
    due_ns = origin_ns
    for sequence in numbers:  # shared: each number goes to whichever slot is free first
        free_ns = await send(sequence, due_ns)
        if free_ns is None:
            return
        due_ns = free_ns


async def _open_loop(dues: Sequence[tuple[int, int]], send: Send) -> None:
    """Every request goes out when it is due, whatever became of the others."""
    async with asyncio.TaskGroup() as group:
        for due_ns, sequence in dues:
            # Where we are behind, what arrived in between has its turn.
            await asyncio.sleep(max(0, due_ns - perf_counter_ns()) / NS_PER_S)
            group.create_task(_one(send, sequence, due_ns))


async def _one(send: Send, sequence: int, due_ns: int) -> None:
    await send(sequence, due_ns)


async def run(
    coroutines: Sequence[Coroutine[Any, Any, None]],
    *,
    tick: Callable[[], None],
    tick_s: float = 0.2,
) -> None:
    """Run a schedule to its end. ``tick`` is called now and then; what it raises ends the trial.

    Requests in flight are cancelled before the exception leaves.
    """
    running = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    pending: set[asyncio.Future[None]] = set(running)
    try:
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=tick_s, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            tick()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
