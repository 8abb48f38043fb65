"""What an installation gets from its environment: each start is a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from tests.webapp.people import database_url_of_the_test

PRODUCTION = {
    "DRAFTPROOF_BASE_URL": "https://draftproof.example.com",
    "DRAFTPROOF_SECRET_KEY": "a1b2c3d4e5f6g7h8" * 4,
    "DRAFTPROOF_TRUST_PROXY": "1",
}


def run(command: list[str], tmp_path: Path, **own: str) -> subprocess.CompletedProcess[str]:
    # Not what pytest's plugins set for themselves, such as DJANGO_ALLOW_ASYNC_UNSAFE.
    ours = ("DRAFTPROOF_", "DJANGO_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env = {**kept, "DRAFTPROOF_VAR_DIR": str(tmp_path), "DATABASE_URL": database_url_of_the_test()}
    env |= {"DJANGO_SETTINGS_MODULE": "webapp.settings", "REDIS_URL": settings.REDIS_URL, **own}
    return subprocess.run(
        [sys.executable, *command],
        env=env, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def values(tmp_path: Path, names: list[str], **own: str) -> dict[str, Any]:
    code = (
        "import json\nfrom django.conf import settings\n"
        f"print(json.dumps({{n: getattr(settings, n) for n in {names!r}}}, default=str))"
    )
    child = run(["-c", code], tmp_path, **own)
    assert child.returncode == 0, child.stderr
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def test_deploy_checks_are_clean_in_production(tmp_path: Path) -> None:
    child = run(
        ["manage.py", "check", "--deploy", "--fail-level", "WARNING"], tmp_path, **PRODUCTION
    )
    assert child.returncode == 0, child.stderr
    assert "no issues (2 silenced)" in child.stdout


COOKIES = ["SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "DEBUG"]


def test_a_real_site_is_https_only(tmp_path: Path) -> None:
    found = values(
        tmp_path, [*COOKIES, "SECURE_HSTS_SECONDS", "SESSION_COOKIE_NAME", "ALLOWED_HOSTS"],
        **PRODUCTION,
    )  # fmt: skip
    assert [found[name] for name in COOKIES] == [True, True, True, False]
    assert found["SECURE_HSTS_SECONDS"] >= 31_536_000
    assert found["SESSION_COOKIE_NAME"] == "__Secure-sessionid"
    assert "draftproof.example.com" in found["ALLOWED_HOSTS"]
    assert "*" not in found["ALLOWED_HOSTS"]


def test_this_machine_alone_works_over_http(tmp_path: Path) -> None:
    found = values(tmp_path, [*COOKIES, "SECRET_KEY", "SESSION_COOKIE_HTTPONLY"])
    assert [found[name] for name in COOKIES] == [False, False, False, False]
    assert found["SESSION_COOKIE_HTTPONLY"] is True
    assert (tmp_path / "secret-key").read_text() == found["SECRET_KEY"]


@pytest.mark.parametrize(
    ("process", "pool", "limit"),
    [("web", True, "=15000"), ("worker", False, "=120000"), ("manage", False, "=0")],
)
def test_each_process_has_its_own_database_limits(
    tmp_path: Path, process: str, pool: bool, limit: str
) -> None:
    database = values(tmp_path, ["DATABASES"], DRAFTPROOF_PROCESS=process)["DATABASES"]["default"]
    assert ("pool" in database["OPTIONS"]) is pool
    assert f"statement_timeout{limit}" in database["OPTIONS"]["options"]
    assert "lock_timeout=5000" in database["OPTIONS"]["options"]
    assert database["OPTIONS"]["application_name"] == f"draftproof-{process}"
    assert database["CONN_MAX_AGE"] == 0


_WEB = """
from webapp.wsgi import application
from django.db import connection
with connection.cursor() as cursor:
    get = "current_setting('application_name'), current_setting('statement_timeout')"
    cursor.execute("SELECT " + get)
    print(*cursor.fetchone(), connection.pool is not None)
connection.close()
connection.close_pool()
"""


def test_the_web_process_reaches_the_database_through_its_pool(tmp_path: Path, db: None) -> None:
    child = run(["-W", "error", "-c", _WEB], tmp_path)
    assert child.stdout.split() == ["draftproof-web", "15s", "True"], child.stderr


_RESTART = """
import psycopg
from webapp.wsgi import application
from django.conf import settings
from django.db import connection
from django.test import RequestFactory
def ready():
    # As a server calls it: the test client would keep its connection between requests.
    seen = []
    environ = RequestFactory().get("/readyz", headers={"host": "127.0.0.1"}).environ
    answer = application(environ, lambda status, headers, error=None: seen.append(status[:3]))
    list(answer)
    answer.close()
    return seen[0]
print(ready())
with psycopg.connect(settings.DATABASE_URL, autocommit=True) as other:
    ended = other.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'draftproof-web' AND datname = current_database()"
    ).fetchone()
print(ended[0] >= 1, ready())
connection.close_pool()
"""


def test_the_web_process_survives_the_loss_of_its_connections(
    tmp_path: Path, transactional_db: None
) -> None:
    child = run(["-c", _RESTART], tmp_path)
    assert child.stdout.split() == ["200", "True", "200"], child.stderr


_NO_DATABASE = """
from webapp.wsgi import application
from django.db import connection
from django.test import Client
client = Client(headers={"host": "127.0.0.1"})
answer = client.get("/readyz")
print(answer.status_code, answer.json(), client.get("/healthz").status_code)
connection.close_pool()
"""


def test_not_ready_without_a_database(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    address = f"postgresql://u:s3cret-word@127.0.0.1:{port}/name"
    child = run(["-c", _NO_DATABASE], tmp_path, DATABASE_URL=address)
    assert child.stdout.strip() == "503 {'database': 'unreachable', 'broker': 'ok'} 200"
    assert "s3cret" not in child.stderr


_WORKER = """
import json
from webapp.celery import app
app.loader.import_default_modules()
from django.conf import settings
tasks = sorted(name for name in app.tasks if not name.startswith("celery."))
conf = app.conf
print(json.dumps({
    "process": settings.PROCESS, "tasks": tasks, "acks_late": conf.task_acks_late,
    "prefetch": [conf.worker_prefetch_multiplier, conf.worker_disable_prefetch],
    "accept": list(conf.accept_content), "backend": conf.result_backend,
    "scheduled": sorted(entry["task"] for entry in conf.beat_schedule.values()),
}))
"""


def test_a_worker_knows_every_task_that_beat_sends(tmp_path: Path) -> None:
    child = run(["-c", _WORKER], tmp_path)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert found["process"] == "worker"
    assert set(found["scheduled"]) <= set(found["tasks"])
    assert {"samples.read", "experiments.execute_next", "comparisons.analyse"} <= set(
        found["tasks"]
    )
    assert (found["acks_late"], found["prefetch"]) == (False, [1, True])
    assert (found["accept"], found["backend"]) == (["json"], None)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"DRAFTPROOF_BASE_URL": "http://draftproof.example.com"}, "use https."),
        ({"DRAFTPROOF_BASE_URL": "https://draftproof.example.com"}, "Set DRAFTPROOF_SECRET_KEY"),
        ({"DATABASE_URL": "sqlite:///db"}, "DATABASE_URL cannot be used"),
    ],
)
def test_a_wrong_variable_ends_the_start_with_one_sentence(
    tmp_path: Path, own: dict[str, str], sentence: str
) -> None:
    child = run(["manage.py", "check"], tmp_path, **own)
    assert child.returncode == 1
    assert sentence in child.stderr
    assert len(child.stderr.strip().splitlines()) == 1
