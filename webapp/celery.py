"""The Celery application. The row is the truth; a task is a nudge that may be lost or doubled."""

from __future__ import annotations

import logging.config
import os
from typing import Any

from django.conf import settings

# Before the settings are read: workers get no connection pool and longer limits. Where they were
# read already, this is a web process or a command that only sends.
if not settings.configured:
    os.environ.setdefault("DRAFTPROOF_PROCESS", "worker")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from celery import Celery
from celery.schedules import crontab
from celery.signals import setup_logging
from kombu import Queue

app = Celery("draftproof")

app.conf.update(
    broker_url=settings.REDIS_URL,
    # Results live in our own rows; a second copy in Redis could only disagree with them.
    result_backend=None,
    task_ignore_result=True,
    # JSON only: a message can never carry code.
    task_serializer="json",
    accept_content=["json"],
    # Early ack: with late acks Redis delivers a long task again after its visibility timeout (one
    # 25 s task ran three times). A lost nudge is sent again by beat, a lost run by the reaper.
    task_acks_late=False,
    # One worker process takes one message, so none waits behind a run that takes an hour.
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    broker_transport_options={
        # Left at its default: the shortest value among the applications on one broker wins.
        "visibility_timeout": 3600,
        # A web request must fail fast when Redis is down; ``core.nudge`` then goes on without it.
        "socket_connect_timeout": 1.0,
        "socket_timeout": 5.0,
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.2,
    },
    task_publish_retry=False,
    broker_connection_timeout=2.0,
    # A worker outlives a restart of Redis.
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # A plain SIGTERM is a warm shutdown: the run under way hears of it (``experiments.shutdown``),
    # stops its engine and is handed over. A soft shutdown would sleep out its whole time instead.
    # Django's logging stands, with its secret filter; see ``_keep_django_logging``.
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    timezone="UTC",
    enable_utc=True,
    task_default_queue="web",
    task_queues=(Queue("web"), Queue("gpu")),
    task_create_missing_queues=False,
    # The GPU worker itself runs with --max-tasks-per-child=1 --concurrency=1: whatever a run
    # leaves behind (memory, file handles, threads) ends with it.
    task_routes={"experiments.execute_next": {"queue": "gpu"}},
    # Beat sends again what a lost message would have woken. ``expires`` keeps nudges from piling
    # up while no worker is there. Exactly one beat may run.
    beat_schedule={
        "reap-lost-runs": {
            "task": "experiments.reap", "schedule": 20.0, "options": {"expires": 20},
        },
        "wake-pending-runs": {
            "task": "experiments.execute_next", "schedule": 30.0, "options": {"expires": 30},
        },
        "sweep-unanalysed": {
            "task": "comparisons.sweep", "schedule": 30.0, "options": {"expires": 30},
        },
        "sweep-unread-samples": {
            "task": "samples.sweep", "schedule": 30.0, "options": {"expires": 30},
        },
        "clear-old-sessions": {
            "task": "core.clear_sessions",
            "schedule": crontab(hour="3", minute="7"),
            "options": {"expires": 3600},
        },
        "forget-old-samples": {
            "task": "samples.forget", "schedule": crontab(hour="3", minute="17"),
            "options": {"expires": 3600},
        },
    },
)  # fmt: skip
app.autodiscover_tasks()


@setup_logging.connect
def _keep_django_logging(**kwargs: Any) -> None:
    logging.config.dictConfig(settings.LOGGING)
