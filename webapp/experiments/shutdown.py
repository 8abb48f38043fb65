"""How the process that measures learns that its worker is being shut down.

Celery's warm shutdown waits for the task under way and tells the pool's processes nothing. So the
parent raises a flag in memory that every process forked from it shares.
"""

from __future__ import annotations

import mmap

_flag = mmap.mmap(-1, 1)


def announce() -> None:
    """Called in the worker's main process; the run under way stops within seconds."""
    _flag[0] = 1


def announced() -> bool:
    """Whether the run under way should stop, so that another worker can go on with it."""
    return _flag[0] == 1
