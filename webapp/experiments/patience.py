"""A restart of PostgreSQL in the middle of a run costs a pause, not the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection

from webapp.experiments.timing import times

log = logging.getLogger(__name__)
T = TypeVar("T")
_LONGEST_PAUSE_S = 3.0


def patiently(work: Callable[[], T]) -> T:
    """``work()``, tried again for a bounded time while the database is away.

    ``work`` must be one transaction that may be done twice: a commit whose answer was lost has
    happened. Raises the last error when the time is over.
    """
    deadline = time.monotonic() + times().write_patience_s
    pause_s = 0.2
    while True:
        try:
            return work()
        except (OperationalError, InterfaceError) as error:
            if connection.in_atomic_block or time.monotonic() + pause_s > deadline:
                raise
            log.warning("the database is away (%s), trying again", type(error).__name__)
            connection.close()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
