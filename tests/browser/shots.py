"""``python -m tests.browser.shots`` writes pictures of every page to var/shots/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def main() -> int:
    pages = Path(__file__).with_name("shots_of_pages.py")
    return pytest.main([str(pages), "-q", "-m", "browser", "-o", "python_files=shots_of_pages.py"])


if __name__ == "__main__":
    sys.exit(main())
