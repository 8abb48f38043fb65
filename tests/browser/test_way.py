"""The main way through the site in a browser, with a real worker and a simulated engine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from playwright.sync_api import Page, expect

from tests.webapp.lab import CANARY, make_target
from tests.webapp.people import PASSWORD, People, database_url_of_the_test

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PLAIN = {"ttft_ms": 20.0, "step_ms": 8.0, "output_tokens": 16, "noise_cv": 0.02}
BEHAVIOUR = {"none": PLAIN, "ngram": {**PLAIN, "draft_tokens": 3, "acceptance_rate": 0.75}}
"""About 150 ms for an answer: long enough that the load generator's own work is small."""

Visit = Callable[..., Page]


@pytest.fixture
def worker(people: People, own_files: Path, tmp_path: Path) -> Iterator[Path]:
    """A worker of both queues on the test's database and files; gives its log."""
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.webapp.quick_settings",
        "DATABASE_URL": database_url_of_the_test(),
        "REDIS_URL": django_settings.REDIS_URL,
        "DRAFTPROOF_VAR_DIR": str(own_files.parent),
    }
    command = [sys.executable, "-m", "celery", "-A", "webapp.celery", "worker", "-Q", "web,gpu"]
    command += ["-c", "1", "--without-gossip", "--without-mingle", "-n", f"{tmp_path.name}@%h"]
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=env, cwd=django_settings.BASE_DIR, stdout=out, stderr=subprocess.STDOUT
        )
    yield log
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0, log.read_text()


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    rows = [
        {"prompt": f"{CANARY} {n}", "max_tokens": 32, "category": ("code", "prose")[n % 2]}
        for n in range(40)
    ]
    path = tmp_path / "october.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_from_signing_in_to_a_shared_estimate(
    visit: Visit, people: People, worker: Path, traffic: Path
) -> None:
    make_target(BEHAVIOUR)
    page = visit()
    sign_in_by_form(page)
    page.get_by_role("link", name="Workspace one").click()
    expect(page.get_by_text("No traffic sample yet.")).to_be_visible()
    upload(page, traffic)
    set_up(page)
    page.get_by_role("button", name="Start the experiment").click()
    expect(page.locator("#progress")).to_be_visible()
    # The page goes on to the result by itself.
    expect(page.get_by_role("heading", name="Three numbers, before and after")).to_be_visible(
        timeout=90_000
    )
    assert "Switch it on" in page.locator(".verdict").inner_text(), page.locator(
        "main"
    ).inner_text()
    page.locator("[data-chart=figure-gain] .main-svg").first.wait_for()
    page.get_by_label("Title").fill("For the client")
    page.get_by_role("button", name="Make the estimate").click()
    expect(page.get_by_role("heading", name="For the client")).to_be_visible()
    page.get_by_role("button", name="Make a share link for 30 days").click()
    address = page.get_by_label("Address").input_value()

    stranger = visit()
    stranger.goto(address)
    expect(stranger.get_by_role("heading", name="For the client")).to_be_visible()
    assert stranger.context.cookies() == []
    assert CANARY not in stranger.content()
    for text in (page.content(), worker.read_text()):
        assert CANARY not in text

    page.goto(page.url.removesuffix("share"))
    page.get_by_role("button", name=re.compile("Revoke")).click()
    expect(page.get_by_text("The link was revoked")).to_be_visible()


def sign_in_by_form(page: Page) -> None:
    page.goto("/")
    page.get_by_label("E-mail address").fill("consultant@example.com")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def upload(page: Page, traffic: Path) -> None:
    page.get_by_role("link", name="Upload a sample").first.click()
    page.get_by_label("Traffic file").set_input_files(traffic)
    page.get_by_role("button", name="Upload").click()
    # Read by the worker; the page reloads by itself.
    expect(page.get_by_role("heading", name="What was understood")).to_be_visible(timeout=40_000)
    expect(page.locator(".tally")).to_contain_text("40")


def set_up(page: Page) -> None:
    page.get_by_role("link", name="New experiment").click()
    page.get_by_label("Name", exact=True).fill("Does it pay?")
    for level, (concurrency, requests) in enumerate([(1, 12), (2, 12)], start=1):
        page.get_by_label(f"Level {level}: requests in flight").fill(str(concurrency))
        page.get_by_label(f"Level {level}: requests", exact=True).fill(str(requests))
    for level in (3, 4, 5):
        page.get_by_label(f"Level {level}: requests in flight").fill("")
        page.get_by_label(f"Level {level}: requests", exact=True).fill("")
    page.get_by_label("USD per engine-hour").fill("0.09")
    page.get_by_label("Where the price comes from").fill("Price list")
    page.get_by_label("Requests in flight in your busy hour").fill("1")
    page.get_by_role("button", name="Review duration and cost").click()


def test_the_keyboard_is_enough(visit: Visit, people: People) -> None:
    page = visit()
    page.goto("/sign-in")
    page.keyboard.press("Shift+Tab")  # out of the focused field, back to the top of the page
    for _ in range(6):
        if page.evaluate("document.activeElement.className") == "skip":
            break
        page.keyboard.press("Shift+Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    expect(page.get_by_label("E-mail address")).to_be_focused()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.type("consultant@example.com")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Workspaces")).to_be_visible()


def test_an_upload_needs_no_script(visit: Visit, people: People, traffic: Path) -> None:
    page = visit(people.consultant, java_script_enabled=False)
    page.goto(f"/w/{people.workspace.public_id}/samples/new")
    page.get_by_label("Traffic file").set_input_files(traffic)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", name="The file is being read")).to_be_visible()
    expect(page.get_by_role("link", name="Look again")).to_be_visible()


def test_a_file_can_be_dropped(visit: Visit, people: People) -> None:
    page = visit(people.consultant)
    page.goto(f"/w/{people.workspace.public_id}/samples/new")
    page.evaluate(
        """() => {
            const carried = new DataTransfer();
            carried.items.add(new File(['{"prompt": "x"}'], "dropped.jsonl"));
            const drop = new DragEvent("drop", {dataTransfer: carried, bubbles: true});
            document.querySelector("[data-drop]").dispatchEvent(drop);
        }"""
    )
    names = "[...document.querySelector('input[type=file]').files].map((file) => file.name)"
    assert page.evaluate(names) == ["dropped.jsonl"]


def test_errors_are_announced_and_lead_to_their_fields(visit: Visit, people: People) -> None:
    page = visit(people.consultant)
    page.goto(f"/w/{people.workspace.public_id}/samples/new")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_be_focused()
    field = page.get_by_label("Traffic file")
    expect(field).to_have_attribute("aria-invalid", "true")
    described = (field.get_attribute("aria-describedby") or "").split()
    texts = [page.locator(f"[id='{part}']").inner_text() for part in described]
    assert any("Choose a file to upload." in text for text in texts)
