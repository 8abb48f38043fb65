"""Every page in light and dark: no complaint, nothing that axe finds, nothing too wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.plotly_css import TARGET, bundle_version
from tests.browser.site import places
from tests.webapp.people import People

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

Visit = Callable[..., Page]
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
ERROR_PAGES = {"shared-gone", "no-workspace-page"}
"""The browser itself writes a line for a page whose status is an error."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_silent(
    visit: Visit, people: People, scheme: Literal["light", "dark"]
) -> None:
    found = []
    for name, page in tour(visit, people, color_scheme=scheme):
        page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
        results = Axe().run(page, options={**RULES, "resultTypes": ["violations"]})
        if results.violations_count:
            found.append(f"{name}: {results.generate_report()}")
    assert not found, "\n".join(found)


def test_nothing_is_wider_than_a_narrow_screen(visit: Visit, people: People) -> None:
    for name, page in tour(visit, people, viewport={"width": 360, "height": 740}):
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, (name, width)


def test_charts_follow_the_theme(visit: Visit, people: People) -> None:
    place = places(people)["result"]
    page = visit(place.user, color_scheme="light")
    page.goto(place.address)
    wait_for_charts(page)
    line = "document.querySelector('[data-chart] .scatterlayer path.js-line').style.stroke"
    light = page.evaluate(line)
    page.get_by_role("button", name="Use the dark theme").click()
    assert page.evaluate(line) != light
    assert page.evaluate("localStorage.getItem('theme')") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.get_by_role("button", name="Use the light theme").is_visible()


def test_a_chosen_theme_is_there_before_the_first_paint(visit: Visit) -> None:
    page = visit(None, color_scheme="light")
    page.goto("/sign-in")
    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload(wait_until="commit")
    page.wait_for_selector("body", state="attached")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_paper_shows_every_table_and_is_light(visit: Visit, people: People) -> None:
    place = places(people)["result"]
    page = visit(place.user, color_scheme="dark")
    page.goto(place.address)
    wait_for_charts(page)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details:not([open])").count() == 0
    assert page.get_by_role("button", name="Print").is_hidden()
    widest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('.main-svg')].map((e) => e.clientWidth))"
    )
    assert widest <= 673  # A4 less its margins, in CSS pixels
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    assert page.evaluate("document.documentElement.dataset.theme ?? ''") == ""


def test_only_pages_with_charts_load_plotly(visit: Visit, people: People) -> None:
    all_places = places(people)
    loads = {}
    for name in ("workspace", "running", "result", "shared"):
        page = visit(all_places[name].user)
        asked = requested(page, all_places[name].address)
        loads[name] = any("plotly.min" in url for url in asked)
        hosts = {url.split("/")[2] for url in asked if not url.startswith(("data:", "blob:"))}
        assert len(hosts) == 1, hosts
        page.context.close()
    assert loads == {"workspace": False, "running": False, "result": True, "shared": True}


def test_the_rules_of_plotly_are_those_of_the_installed_bundle() -> None:
    assert f"plotly.js v{bundle_version()}:" in TARGET.read_text(encoding="utf-8").splitlines()[0]


def requested(page: Page, address: str) -> list[str]:
    """Every address that a page asks for."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    return asked


def tour(visit: Visit, people: People, **options: Any) -> Iterator[tuple[str, Page]]:
    """Every page in turn, drawn to its end; one browser context for each person."""
    open_pages: dict[str, Page] = {}
    for name, place in places(people).items():
        if name in ERROR_PAGES:
            continue
        key = str(place.user)
        if key not in open_pages:
            open_pages[key] = visit(place.user, **options)
        open_pages[key].goto(place.address)
        wait_for_charts(open_pages[key])
        yield name, open_pages[key]


def wait_for_charts(page: Page) -> None:
    for chart in page.locator("[data-chart]").all():
        chart.locator(".main-svg").first.wait_for()
