"""Audit rows, nudges, health, limits, headers, static files and log lines."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.test import Client, RequestFactory
from pytest_django import Settings

from tests.webapp.people import People, database_url_of_the_test
from webapp.core import audit, broker, health, throttle
from webapp.core.logs import JsonFormatter, SecretFilter, scrub
from webapp.core.models import AuditEvent
from webapp.core.nudge import nudge
from webapp.core.static import PLOTLY_NAME, HashedStaticStorage


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def redis_down(settings: Settings, closed_port: int) -> Iterator[None]:
    """Limits and health checks see a port where nobody listens."""
    settings.REDIS_URL = f"redis://:s3cret-word@127.0.0.1:{closed_port}/0"
    broker.client.cache_clear()
    yield
    broker.client.cache_clear()


# --- audit ------------------------------------------------------------------------------------
@pytest.mark.parametrize("change", ["update", "delete"])
def test_audit_rows_are_never_changed(people: People, change: str) -> None:
    rows = AuditEvent.objects.filter(action="workspace.created")
    assert rows.exists()
    attempt = {"update": lambda: rows.update(action="something.else"), "delete": rows.delete}
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        attempt[change]()
    assert rows.exists()


def test_deleting_a_person_keeps_the_audit_row(people: People) -> None:
    event = audit.record(people.client, people.workspace, "test.done", people.workspace, count=3)
    people.client.delete()
    event.refresh_from_db()
    assert event.actor_id is None
    assert (event.workspace_id, event.details) == (people.workspace.pk, {"count": 3})
    with pytest.raises(IntegrityError), transaction.atomic():
        AuditEvent.objects.filter(pk=event.pk).update(actor=people.consultant)


# --- nudges -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("task", "queue"), [("samples.read", "web"), ("experiments.execute_next", "gpu")]
)
def test_a_nudge_lands_in_the_queue_of_its_task(task: str, queue: str) -> None:
    assert nudge(task, 7)
    waiting = broker.client().lrange(queue, 0, -1)
    message = json.loads(waiting[0])
    assert len(waiting) == 1
    assert message["headers"]["task"] == task
    assert message["content-type"] == "application/json"


_NUDGE = """
import time
import django
django.setup()
from django.db import transaction
from webapp.core.nudge import nudge, nudge_on_commit
started = time.monotonic()
print(nudge("samples.read", 7))
with transaction.atomic():
    nudge_on_commit("samples.read", 7)
print("committed", time.monotonic() - started < 5)
"""


def test_without_a_broker_a_nudge_says_no_and_commits_stand(db: None, closed_port: int) -> None:
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "REDIS_URL": f"redis://:s3cret-word@127.0.0.1:{closed_port}/0",
        "DATABASE_URL": database_url_of_the_test(),
    }
    child = subprocess.run(
        [sys.executable, "-c", _NUDGE],
        env=env, cwd=django_settings.BASE_DIR, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert child.stdout.splitlines() == ["False", "committed True"], child.stderr
    assert child.stderr.count("no nudge for samples.read: the broker is down") == 2
    assert "s3cret" not in child.stderr


# --- health -----------------------------------------------------------------------------------
def test_health_needs_no_sign_in(client: Client, db: None) -> None:
    alive = client.get("/healthz")
    ready = client.get("/readyz")
    assert (alive.status_code, alive.content) == (200, b"ok\n")
    assert (ready.status_code, ready.json()) == (
        200,
        {"database": "ok", "broker": "ok", "migrations": "ok"},
    )


def test_not_ready_without_a_broker(client: Client, db: None, redis_down: None) -> None:
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["broker"] == "unreachable"
    assert client.get("/healthz").status_code == 200


def test_not_ready_while_migrations_wait(
    client: Client, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_migrated", False)
    call_command("migrate", "core", "0001", verbosity=0)
    try:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["migrations"]) == (503, "waiting")
    finally:
        call_command("migrate", verbosity=0)
    assert client.get("/readyz").status_code == 200


# --- limits -----------------------------------------------------------------------------------
def test_a_bucket_empties_and_fills_again() -> None:
    limit = throttle.Limit("test", 3, 0.2)
    assert [throttle.allow(limit, "a") for _ in range(4)] == [True, True, True, False]
    assert throttle.allow(limit, "b")
    throttle.give_back(limit, "a")
    assert throttle.allow(limit, "A")


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    limit = throttle.Limit("test", 2, 60.0)
    for _ in range(5):
        throttle.give_back(limit, "a")
    assert [throttle.allow(limit, "a") for _ in range(3)] == [True, True, False]


def test_limits_keep_no_address() -> None:
    throttle.allow(throttle.LOGIN_PERSON, "someone@example.com")
    keys = list(broker.client().scan_iter("draftproof:limit:*"))
    assert len(keys) == 1
    assert "someone" not in keys[0]
    assert 0 < broker.client().ttl(keys[0]) <= 301


def test_without_redis_limits_let_through(
    redis_down: None, caplog: pytest.LogCaptureFixture
) -> None:
    limit = throttle.Limit("test", 1, 60.0)
    assert all(throttle.allow(limit, "a") for _ in range(3))
    assert "limit test not checked: no Redis" in caplog.text


@pytest.mark.parametrize(("trusted", "expected"), [(True, "203.0.113.5"), (False, "127.0.0.1")])
def test_forwarded_addresses_count_behind_a_trusted_proxy(
    rf: RequestFactory, settings: Settings, trusted: bool, expected: str
) -> None:
    settings.TRUST_PROXY = trusted
    request = rf.get("/", HTTP_X_FORWARDED_FOR="198.51.100.1, 203.0.113.5")
    assert throttle.client_address(request) == expected


# --- what browsers are told -------------------------------------------------------------------
def test_every_page_carries_the_headers(client: Client) -> None:
    headers = client.get("/healthz").headers
    policy = {part.strip() for part in headers["Content-Security-Policy"].split(";")}
    assert policy == {
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    }
    assert headers["Cache-Control"] == "private, no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert "camera=()" in headers["Permissions-Policy"]


def test_unknown_addresses_are_not_found(client: Client, db: None) -> None:
    assert client.get("/no-such-page").status_code == 404


# --- static files -----------------------------------------------------------------------------
def test_plotly_is_served_from_the_wheel(client: Client) -> None:
    path = finders.find(PLOTLY_NAME)
    assert isinstance(path, str)
    assert Path(path).name == "plotly.min.js"
    answer = client.get(f"/static/{PLOTLY_NAME}")
    assert answer.status_code == 200
    assert b"plotly.js v" in b"".join(answer.streaming_content)[:300]  # type: ignore[attr-defined]
    answer.close()


@pytest.mark.parametrize(
    "name", ["vendor/widgetbundle.js", "plotly.min.js", "vendor/../plotly.min.js"]
)
def test_nothing_else_of_the_wheel_is_served(client: Client, db: None, name: str) -> None:
    assert finders.find("vendor/widgetbundle.js") is None
    assert client.get(f"/static/{name}").status_code == 404


def test_collected_names_carry_a_hash(settings: Settings, tmp_path: Path) -> None:
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "webapp.core.static.HashedStaticStorage"},
    }
    assert HashedStaticStorage().url(PLOTLY_NAME) == f"/static/{PLOTLY_NAME}"
    call_command("collectstatic", "--noinput", verbosity=0)
    assert (tmp_path / "static" / PLOTLY_NAME).exists()
    url = HashedStaticStorage().url(PLOTLY_NAME)
    assert url.startswith("/static/vendor/plotly.min.")
    assert url != f"/static/{PLOTLY_NAME}"
    assert (tmp_path / "static" / url.removeprefix("/static/")).exists()


def test_uploads_have_no_address(client: Client, db: None) -> None:
    media = Path(django_settings.MEDIA_ROOT)
    media.mkdir(parents=True)
    (media / "secret").write_text("text")
    for address in ("/never-served/secret", "/media/secret", "/static/../media/secret"):
        assert client.get(address).status_code in (302, 404)


# --- log lines --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("no answer from postgresql://user:hunter2x@db:5432/name", "hunter2x"),
        ("broker redis://:hunter2x@cache/0", "hunter2x"),
        ("GET /s/abcDEF123_-hunter2x/estimate.json 200", "hunter2x"),
        ("Authorization: Bearer hunter2x.abc", "hunter2x"),
        ("password='hunter2x y'", "hunter2x"),
        ('{"api_key": "hunter2x"}', "hunter2x"),
        ("cookie: sessionid=hunter2x", "hunter2x"),
    ],
)
def test_secrets_are_scrubbed(text: str, secret: str) -> None:
    assert secret not in scrub(text)
    assert "***" in scrub(text)


@pytest.mark.parametrize(
    "text", ["42 output tokens in 3 s", "GET /samples/ 200", "redis://127.0.0.1:6379/0 is down"]
)
def test_plain_lines_stay(text: str) -> None:
    assert scrub(text) == text


def test_json_lines_hold_the_scrubbed_traceback() -> None:
    try:
        raise ValueError("password=hunter2x")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("site", logging.ERROR, __file__, 1, "no %s", ("luck",), info)
    SecretFilter().filter(record)
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["level"], line["logger"]) == ("no luck", "ERROR", "site")
    assert "ValueError" in line["traceback"]
    assert "hunter2x" not in json.dumps(line)


def test_every_model_change_has_its_migration(db: None) -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
