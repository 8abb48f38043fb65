"""Several sending processes, where one core is not enough: the parent's side and the child's.

The parent gives each child a part of the requests and one common time 0; ``perf_counter_ns`` is
one clock for all processes of a machine. What they say to each other are pickles on the child's
standard streams, so no key is ever on a command line.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import IO, Any

from calculator.measurement import NS_PER_S
from runner.arrivals import ClosedLoop, Load
from runner.replay import health
from runner.replay.client import Client
from runner.replay.sender import Ending, Job, Sender, Sent

LEAD_S = 0.1
"""From "go" to time 0: by then every child has heard it."""
CHECK_EVERY_S = 0.2


class WorkerLost(Exception):
    """A sending process ended without a result."""


def send_with(
    processes: int,
    job: Job,
    *,
    should_stop: Callable[[], bool] | None,
    on_finished: Callable[[int], None] | None,
) -> Sent:
    """Do ``job`` with several processes and merge what they found, by sequence.

    Request i goes to process i modulo ``processes``; a closed loop's slots are shared out. When
    one ends early, all do. Raises WorkerLost, and ValueError for an endpoint that is none.
    """
    Client(job.endpoint, timeout_s=job.timeout_s)  # refuses what is no address, here and now
    parts = split(job, processes)
    said: queue.Queue[tuple[int, Any]] = queue.Queue()
    children = [_Child(number, part, said) for number, part in enumerate(parts)]
    try:
        results = _attend(children, said, should_stop, on_finished)
    finally:
        for child in children:
            child.end()
    counted = sorted(
        (one for sent in results for one in sent.counted),
        key=lambda one: one.measurement.sequence,
    )
    first = next((sent for sent in results if sent.ending is Ending.GONE), None)
    first = first or max(results, key=lambda sent: sent.ending is not Ending.COMPLETE)
    watched = health.merged([sent.health for sent in results], [one.measurement for one in counted])
    return Sent(first.ending, first.reason, counted, watched)


def split(job: Job, processes: int) -> list[Job]:
    """``job`` in parts of nearly equal size; fewer where there are too few slots or requests."""
    count = min(processes, len(job.calls))
    if isinstance(job.load, ClosedLoop):
        count = min(count, job.load.concurrency)
    return [
        replace(job, calls=job.calls[place::count], load=_part_of(job.load, place, count))
        for place in range(count)
    ]


def _part_of(load: Load, place: int, count: int) -> Load:
    if not isinstance(load, ClosedLoop):
        return load
    slots, left = divmod(load.concurrency, count)
    return ClosedLoop(slots + (place < left))


class _Child:
    def __init__(self, number: int, job: Job, said: queue.Queue[tuple[int, Any]]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from runner.replay.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._number = number
        self._said = said
        self._lock = threading.Lock()
        self.tell(job)
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, message: object) -> None:
        """Send ``message``; to a child that is gone it says nothing."""
        assert self._process.stdin is not None
        try:
            with self._lock:
                pickle.dump(message, self._process.stdin)
                self._process.stdin.flush()
        except OSError:
            return

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                self._said.put((self._number, pickle.load(self._process.stdout)))  # noqa: S301
        except (EOFError, pickle.UnpicklingError, OSError, ValueError):
            self._said.put((self._number, None))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue


def _attend(
    children: Sequence[_Child],
    said: queue.Queue[tuple[int, Any]],
    should_stop: Callable[[], bool] | None,
    on_finished: Callable[[int], None] | None,
) -> list[Sent]:
    ready: set[int] = set()
    finished = dict.fromkeys(range(len(children)), 0)
    results: dict[int, Sent] = {}

    def stop_all() -> None:
        for child in children:
            child.tell("stop")

    while len(results) < len(children):
        if should_stop and should_stop():
            stop_all()
        try:
            number, message = said.get(timeout=CHECK_EVERY_S)
        except queue.Empty:
            continue
        if isinstance(message, Sent):
            results[number] = message
            if message.ending is not Ending.COMPLETE:
                stop_all()
        elif message == "ready":
            ready.add(number)
            if len(ready) == len(children):
                origin_ns = perf_counter_ns() + round(LEAD_S * NS_PER_S)
                for child in children:
                    child.tell(origin_ns)
        elif isinstance(message, int):
            finished[number] = message
            if on_finished:
                on_finished(sum(finished.values()))
        elif number not in results:
            raise WorkerLost("A sending process ended without a result; its error is above.")
    return [results[number] for number in range(len(children))]


def main() -> None:
    """The child: a job, a time 0 and perhaps "stop" come in; progress and the result go out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C: our parent says "stop"
    inbox, outbox = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    sys.stdout = sys.stderr  # a stray print must not end up between the pickles
    job: Job = pickle.load(inbox)  # noqa: S301 - from our parent
    origins: queue.Queue[int] = queue.Queue()
    stop = threading.Event()
    threading.Thread(target=_obey, args=(inbox, origins, stop), daemon=True).start()

    def say(message: object) -> None:
        pickle.dump(message, outbox)
        outbox.flush()

    async def start_together() -> int:
        say("ready")
        while not stop.is_set():
            try:
                return origins.get_nowait()
            except queue.Empty:
                await asyncio.sleep(0.01)
        return perf_counter_ns()

    sender = Sender(job, should_stop=stop.is_set, on_finished=say, start_together=start_together)
    say(sender.result(*sender.run()))


def _obey(inbox: IO[bytes], origins: queue.Queue[int], stop: threading.Event) -> None:
    try:
        while True:
            message = pickle.load(inbox)  # noqa: S301 - from our parent
            if message == "stop":
                stop.set()
            else:
                origins.put(message)
    except EOFError:
        stop.set()  # nobody is left to tell
