"""Celery workers killed or shut down in the middle of a trial; a database that goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import Celery
from django.conf import settings as django_settings
from django.db import connection
from django.db.models import Max
from pytest_django import Settings
from redis import Redis

from tests.webapp.lab import HOST, STEADY, make_experiment, run_of
from tests.webapp.people import People, database_url_of_the_test
from webapp.celery import app
from webapp.comparisons.services import analyse
from webapp.experiments.execution import execute_next
from webapp.experiments.models import Experiment, Measurement, Run, Trial
from webapp.experiments.reaper import reap
from webapp.experiments.states import TRIAL_MEASURED, ExperimentState, RunState, TrialState

pytestmark = pytest.mark.django_db(transaction=True)

SLOW = {**STEADY, "step_ms": 12.0}
FAST = {**STEADY, "step_ms": 1.0}
QUICK = {"lease_ttl_s": 2.0, "heartbeat_s": 0.3, "poll_s": 0.1, "write_patience_s": 5.0}
# About a second each, so that there is time to strike in the middle of the second.
LEVELS = ((1, 8), (2, 14))


# Celery's pool notices the end of a child by a timer of 5 s now and then (2 of 30 trivial tasks
# with one task a child), and there are seven tasks.
def wait_for(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def second_trial_under_way() -> bool:
    """Something is recorded and something else is being measured."""
    recorded = Trial.objects.filter(state__in=TRIAL_MEASURED).exists()
    return recorded and Trial.objects.filter(state=TrialState.RUNNING).exists()


@pytest.fixture
def redis_url(monkeypatch: pytest.MonkeyPatch) -> str:
    """A Redis database that no other test's messages are in; nudges of this process go there."""
    url = django_settings.REDIS_URL.rsplit("/", 1)[0] + "/14"
    Redis.from_url(url).flushdb()
    sender = Celery("sender", broker=url, set_as_current=False)
    for name in ("broker_transport_options", "task_routes", "task_default_queue", "task_queues"):
        setattr(sender.conf, name, getattr(app.conf, name))
    monkeypatch.setattr("webapp.core.nudge.app", sender)
    return url


@pytest.fixture
def start_worker(redis_url: str, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a worker as a deployment does, on the test's database and files."""
    environ = {
        **os.environ,
        "DATABASE_URL": database_url_of_the_test(),
        "REDIS_URL": redis_url,
        "DRAFTPROOF_VAR_DIR": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "tests.webapp.quick_settings",
    }
    command = [sys.executable, "-m", "celery", "-A", "webapp.celery", "worker", "--loglevel=INFO"]
    command += ["--queues=gpu,web", "--concurrency=1", "--max-tasks-per-child=1"]
    command += ["--prefetch-multiplier=1", "--disable-prefetch"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / f"worker-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environ, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        return process

    yield start
    for process in started:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 for the worker and the process that measures; not for its engine."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def go_on_until_done(experiment: Experiment) -> None:
    """What beat does, in short intervals."""

    def done() -> bool:
        reap()
        experiment.refresh_from_db()
        return experiment.state == ExperimentState.DONE

    wait_for(done)


def test_a_worker_killed_in_a_trial_costs_that_trial_only(
    people: People, start_worker: Callable[[], subprocess.Popen[bytes]]
) -> None:
    worker = start_worker()
    experiment = make_experiment(people, {"none": SLOW, "ngram": FAST}, levels=LEVELS)
    wait_for(second_trial_under_way)
    kill(worker)
    kept = list(Measurement.objects.order_by("pk").values())
    assert kept
    start_worker()
    go_on_until_done(experiment)
    lost = experiment.runs.get(code="worker_lost")
    successor = run_of(experiment, lost.index, attempt=2)
    assert lost.state == RunState.FAILED
    assert successor.state == RunState.RECORDED
    assert successor.trials.count() == 1
    assert list(Measurement.objects.order_by("pk").values())[: len(kept)] == kept
    assert Measurement.objects.count() == 4 * 22
    assert experiment.runs.aggregate(most=Max("attempt"))["most"] == 2
    assert experiment.comparisons.count() == 1
    assert experiment.reason == ""


def test_a_worker_that_is_shut_down_hands_its_run_over(
    people: People, start_worker: Callable[[], subprocess.Popen[bytes]]
) -> None:
    worker = start_worker()
    experiment = make_experiment(people, {"none": SLOW, "ngram": FAST}, levels=LEVELS)
    wait_for(second_trial_under_way)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    wait_for(lambda: experiment.runs.filter(code="worker_stopped").exists(), 20)
    stopped = experiment.runs.get(code="worker_stopped")
    assert stopped.state == RunState.FAILED
    assert "shut down" in stopped.reason
    successor = run_of(experiment, stopped.index, attempt=2)
    assert successor.state == RunState.PENDING
    assert successor.trials.count() == 1
    assert experiment.runs.filter(state=RunState.PENDING).count() == 4


@contextmanager
def database_away() -> Iterator[None]:
    """Every connection is cut and new ones are refused, as in a restart of PostgreSQL."""
    own = connection.settings_dict
    connection.close()
    admin = psycopg.connect(
        host=own["HOST"], port=own["PORT"], user=own["USER"], password=own["PASSWORD"],
        dbname="postgres", autocommit=True,
    )  # fmt: skip
    name = psycopg.sql.Identifier(own["NAME"])
    with admin:
        admin.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        try:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                [own["NAME"]],
            )
            yield
        finally:
            admin.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


class Worker:
    """A worker on a thread of this process."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        try:
            execute_next(HOST)
        finally:
            connection.close()

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def alive(self) -> bool:
        return self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_a_database_that_restarts_costs_nothing(people: People, settings: Settings) -> None:
    settings.EXPERIMENT_TIMES = {**QUICK, "lease_ttl_s": 10.0, "write_patience_s": 10.0}
    experiment = make_experiment(people, {"none": SLOW, "ngram": FAST}, levels=LEVELS)
    with Worker():
        wait_for(second_trial_under_way)
        with database_away():
            time.sleep(2.5)  # the trial ends in between
    run = run_of(experiment, 0)
    assert run.state == RunState.RECORDED
    assert Measurement.objects.count() == 22


def test_a_database_that_stays_away_ends_the_run_and_keeps_what_was_written(
    people: People, settings: Settings
) -> None:
    settings.EXPERIMENT_TIMES = {**QUICK, "lease_ttl_s": 1.0, "write_patience_s": 0.5}
    experiment = make_experiment(people, {"none": SLOW, "ngram": FAST}, levels=LEVELS)
    with Worker() as worker:
        wait_for(second_trial_under_way)
        with database_away():
            wait_for(lambda: not worker.alive())
    before = Measurement.objects.count()
    assert before in (8, 14)
    wait_for(lambda: reap() == 1)
    assert run_of(experiment, 0).code == "worker_lost"
    settings.EXPERIMENT_TIMES = QUICK
    while execute_next(HOST):
        pass
    analyse(experiment.pk)
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.DONE
    assert Run.objects.filter(state=RunState.RECORDED).count() == 4
    assert Measurement.objects.count() == 4 * 22
