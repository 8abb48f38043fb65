"""Nudges: ids in, one service called."""

from __future__ import annotations

from celery import shared_task

from webapp.comparisons import services
from webapp.experiments.settlement import ANALYSE


@shared_task(name=ANALYSE, soft_time_limit=900, time_limit=960)
def analyse(experiment_id: int) -> None:
    services.analyse(experiment_id)


@shared_task(name="comparisons.sweep", soft_time_limit=20, time_limit=30)
def sweep() -> None:
    services.sweep()
