"""Which Chromium the browser tests drive, and with which flags."""

from __future__ import annotations

import os
import shutil
from typing import Any


def launch_options() -> dict[str, Any]:
    """Debian's Chromium where it is installed, else Playwright's own."""
    options: dict[str, Any] = {"args": ["--disable-dev-shm-usage", "--font-render-hinting=none"]}
    path = shutil.which("chromium")
    if path is not None:
        options["executable_path"] = path
    if os.geteuid() == 0:
        options["args"].append("--no-sandbox")
    return options
