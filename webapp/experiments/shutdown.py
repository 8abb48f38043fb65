"""How the process that measures learns that its worker is being shut down.

Celery's soft shutdown sleeps out its time in the parent, sends its own signal only after that, and
tells the pool's processes nothing. So the parent's handlers are wrapped: they first raise a flag
in memory that every process forked from the parent shares.
"""

from __future__ import annotations

import mmap
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_flag = mmap.mmap(-1, 1)
_SIGNALS = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT)


def announced() -> bool:
    """Whether the run under way should stop, so that another worker can go on with it."""
    return _flag[0] == 1


def listen() -> None:
    """Wrap the handlers of the process that calls; main thread only."""
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, partial(_announce, before))


def _announce(before: Handler, number: int, frame: FrameType | None) -> None:
    _flag[0] = 1
    before(number, frame)
