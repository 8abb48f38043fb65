"""How fast pages answer and how much memory the web process takes.

gunicorn with the supervisor's own command line on loopback, signed in, on a database of its own:
the result of 100,000 measurements beside that of 100, and the progress of a running experiment.
Milliseconds from request to the last byte, and MiB after all of it.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from django.conf import settings
from django.test import Client
from django.test.utils import get_runner

from tests.bench.figures import Figure
from tests.webapp import lab
from tests.webapp.people import PASSWORD, People, database_url_of_the_test
from webapp.accounts import services as accounts
from webapp.accounts.models import Role
from webapp.comparisons import services as comparisons
from webapp.core.embedded import base
from webapp.core.supervisor import commands
from webapp.experiments.models import Experiment

ANSWERS = 60
PAGE_BAR_MS = 200.0
MEMORY_BAR_MIB = 200.0
TRIALS = 4  # two starts of two arms


def figures() -> Iterator[Figure]:
    runner = get_runner(settings)(verbosity=0, interactive=False)
    database = runner.setup_databases()
    try:
        people = _people()
        big, small = (_measured(people, requests) for requests in (100_000, 100))
        waiting = lab.make_experiment(people)
        client = Client()
        client.force_login(people.consultant)
        cookie = (
            f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
        )
        with _gunicorn() as (port, process):
            yield from _timed(port, cookie, big, small, waiting)
            yield from _memory(process)
    finally:
        runner.teardown_databases(database)


def _people() -> People:
    consultant, client, stranger = (
        accounts.create_user(f"{name}@example.com", PASSWORD, name.title())
        for name in ("consultant", "client", "stranger")
    )
    workspace = accounts.create_workspace("Workspace one", consultant)
    accounts.add_member(workspace, client, Role.CLIENT, actor=consultant)
    other = accounts.create_workspace("Workspace two", stranger)
    return People(consultant, client, stranger, workspace, other)


def _measured(people: People, requests: int) -> Experiment:
    experiment = lab.make_experiment(people, levels=((1, 6),))
    lab.grown(experiment, requests // TRIALS)
    comparisons.analyse(experiment.pk)
    experiment.refresh_from_db()
    if experiment.reason:
        raise RuntimeError(experiment.reason)
    return experiment


@contextmanager
def _gunicorn() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = base.free_port()
    environ = {
        **os.environ,
        "DATABASE_URL": database_url_of_the_test(),
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
    }
    log = Path(settings.VAR_DIR) / "log" / "bench-web.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            commands(f"127.0.0.1:{port}")["web"], env=environ, stdout=out, stderr=out
        )
    try:
        for _ in range(150):
            if process.poll() is not None:
                raise RuntimeError(f"gunicorn did not start: {log}")
            try:
                _get(port, "/healthz", "")
                break
            except OSError:
                time.sleep(0.2)
        yield port, process
    finally:
        process.terminate()
        process.wait(40)


def _get(port: int, path: str, cookie: str) -> float:
    """Milliseconds of one answer; raises RuntimeError for any but a good one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        began = time.perf_counter()
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        took_ms = 1000 * (time.perf_counter() - began)
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{path} answered {answer.status}")
    return took_ms


def _timed(
    port: int, cookie: str, big: Experiment, small: Experiment, waiting: Experiment
) -> Iterator[Figure]:
    paths = {
        "result of 100,000": f"/experiments/{big.public_id}/",
        "result of 100": f"/experiments/{small.public_id}/",
        "progress": f"/experiments/{waiting.public_id}/progress",
    }
    for path in (*paths.values(), "/", f"/w/{big.workspace.public_id}/"):
        for _ in range(4):  # both processes compile their templates
            _get(port, path, cookie)
    took: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(ANSWERS):
        for name, path in paths.items():  # side by side, so that a busy moment falls on all
            took[name].append(_get(port, path, cookie))
    for name, values in took.items():
        bar = None if name == "result of 100" else PAGE_BAR_MS
        yield Figure(f"pages: {name}, median", median(values), "ms", bar)
        yield Figure(f"pages: {name}, p95", quantiles(values, n=20)[-1], "ms", bar)
    ratio = median(took["result of 100,000"]) / median(took["result of 100"])
    yield Figure("pages: result of 100,000 against that of 100", ratio, "times")


def _memory(process: subprocess.Popen[bytes]) -> Iterator[Figure]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    pids = [process.pid, *map(int, children)]
    resident = max(_mib(pid, "Rss") for pid in pids)
    yield Figure("memory: the largest web process, resident", resident, "MiB", MEMORY_BAR_MIB)
    shared = sum(_mib(pid, "Pss") for pid in pids)
    yield Figure(f"memory: all {len(pids)} web processes, proportional", shared, "MiB")


def _mib(pid: int, kind: str) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(rf"^{kind}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
