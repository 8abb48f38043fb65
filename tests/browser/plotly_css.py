"""Writes static/css/plotly.css: the rules that plotly.js would inject, for our strict policy.

Run after plotly was upgraded: ``python -m tests.browser.plotly_css``.
"""

from __future__ import annotations

import re
from pathlib import Path

import plotly
from playwright.sync_api import sync_playwright

from tests.browser.chromium import launch_options

TARGET = Path(__file__).parents[2] / "static" / "css" / "plotly.css"
BUNDLE = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
READ_RULES = """() => [...document.getElementById("plotly.js-style-global").sheet.cssRules]
    .map((rule) => rule.cssText).join("\\n")"""


def bundle_version() -> str:
    """The version that the installed plotly.js bundle gives itself."""
    found = re.search(r"plotly\.js v([\d.]+)", BUNDLE.read_text(encoding="utf-8")[:400])
    if found is None:
        raise RuntimeError("the plotly.js bundle does not say its version")
    return found[1]


def injected_rules() -> str:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launch_options())
        page = browser.new_page()
        page.set_content("<!doctype html><title>rules</title>")
        page.add_script_tag(path=str(BUNDLE))
        rules = str(page.evaluate(READ_RULES))
        browser.close()
    return rules


def main() -> None:
    head = f"/* plotly.js v{bundle_version()}: what it injects; tests/browser/plotly_css.py */\n"
    TARGET.write_text(head + injected_rules() + "\n", encoding="utf-8")
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
