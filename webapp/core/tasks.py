"""Housekeeping of what Django itself keeps."""

from __future__ import annotations

from celery import shared_task
from django.core.management import call_command


@shared_task(name="core.clear_sessions", soft_time_limit=300, time_limit=330)
def clear_sessions() -> None:
    """Remove the rows of sessions that have ended; Django leaves them."""
    call_command("clearsessions")
