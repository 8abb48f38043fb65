"""Nudges: ids in, one service called."""

from __future__ import annotations

from celery import shared_task

from webapp.samples import services


@shared_task(name="samples.read", soft_time_limit=150, time_limit=180)
def read(sample_id: int) -> None:
    services.read(sample_id)


@shared_task(name="samples.sweep", soft_time_limit=20, time_limit=30)
def sweep() -> None:
    services.sweep()


@shared_task(name="samples.forget", soft_time_limit=600, time_limit=660)
def forget() -> None:
    services.forget()
