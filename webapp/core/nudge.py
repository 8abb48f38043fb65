"""Wakes a worker by task name. A nudge may be lost: the row is the truth, beat nudges again."""

from __future__ import annotations

import logging

from django.db import transaction
from kombu.exceptions import OperationalError

from webapp.celery import app

log = logging.getLogger(__name__)


def nudge(task_name: str, *args: str | int) -> bool:
    """Send the task; False, with a log line, when the broker does not take it.

    Arguments are ids only. Never raises for a broker that is down: what is to be done stands in
    a row, which beat looks for.
    """
    try:
        app.send_task(task_name, args=args, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("no nudge for %s: the broker is down (%s)", task_name, type(error).__name__)
        return False
    return True


def nudge_on_commit(task_name: str, *args: str | int) -> None:
    """Nudge once the rows that the task will look for can be seen by others."""

    def after_commit() -> None:  # a plain function: Django's log of a failure wants its name
        nudge(task_name, *args)

    transaction.on_commit(after_commit, robust=True)
