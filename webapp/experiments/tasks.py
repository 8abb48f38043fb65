"""Nudges. A task may be lost or doubled: what is to be done stands in rows."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

from webapp.core.nudge import nudge
from webapp.experiments import execution, reaper, shutdown
from webapp.experiments.settlement import EXECUTE_NEXT


@shared_task(name=EXECUTE_NEXT)
def execute_next() -> None:
    execution.execute_next()


@shared_task(name="experiments.reap", soft_time_limit=50, time_limit=60)
def reap() -> None:
    reaper.reap()


@worker_ready.connect
def _begin(**kwargs: Any) -> None:
    nudge(EXECUTE_NEXT)


@worker_shutting_down.connect
def _end(**kwargs: Any) -> None:
    shutdown.announce()
