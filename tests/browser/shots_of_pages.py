"""Pictures of every page in light, dark, narrow and on paper, for people to look at.

No test of the suite: ``python -m tests.browser.shots`` runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.test_pages import tour
from tests.webapp.people import People

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

FOLDER = Path(__file__).parents[2] / "var" / "shots"
MODES: dict[str, dict[str, object]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1180, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1180, "height": 800}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 360, "height": 740}},
    "print": {"color_scheme": "light", "viewport": {"width": 1180, "height": 800}},
}


def picture(page: Page, name: str, mode: str) -> None:
    if mode == "print":
        page.pdf(path=FOLDER / f"{name}.pdf", prefer_css_page_size=True, print_background=True)
    else:
        page.screenshot(path=FOLDER / f"{name}-{mode}.png", full_page=True)


def test_shots(visit: Callable[..., Page], people: People) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for mode, options in MODES.items():
        for name, page in tour(visit, people, **options):
            picture(page, name, mode)
