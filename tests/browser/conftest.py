"""A real Chromium against a real server, and a page that tells of every message it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from playwright.sync_api import Browser, BrowserContext, Page
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from tests.browser.chromium import launch_options
from tests.webapp.conftest import fresh_broker, people
from webapp.accounts.models import User

__all__ = ["fresh_broker", "people"]

# Playwright keeps an event loop in this thread; the tests' own queries are as synchronous as ever.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    return launch_options()


@pytest.fixture(autouse=True)
def own_files(settings: Settings, tmp_path: Path) -> Path:
    """Uploads go to the test's own folder."""
    settings.MEDIA_ROOT = tmp_path / "media"
    return tmp_path / "media"


@pytest.fixture
def visit(
    browser: Browser, live_server: LiveServer, settings: Settings
) -> Iterator[Callable[..., Page]]:
    """``visit(user, **context)`` opens a page; at the end no page may have complained."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def open_page(user: User | None = None, **options: Any) -> Page:
        context = browser.new_context(base_url=live_server.url, **options)
        context.set_default_timeout(15_000)
        contexts.append(context)
        if user is not None:
            sign_in(context, user, settings.SESSION_COOKIE_NAME, live_server.url)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def sign_in(context: BrowserContext, user: User, cookie: str, url: str) -> None:
    """A session as signing in makes it; the form has a test of its own."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "webapp.accounts.backends.EmailBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    context.add_cookies([{"name": cookie, "value": str(session.session_key), "url": url}])
