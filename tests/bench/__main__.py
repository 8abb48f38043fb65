"""``python -m tests.bench [harness] [pages]``: figures; exit code 1 where one misses its bar.

Absolute times depend on the machine and on what else it does: read the shares and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from tests.bench import harness
from tests.bench.figures import Figure, machine, table


def _pages() -> Iterable[Figure]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from tests.bench import pages  # needs Django's models

    return pages.figures()


PARTS: dict[str, Callable[[], Iterable[Figure]]] = {"harness": harness.figures, "pages": _pages}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    wanted = parser.parse_args().parts or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; known are {', '.join(PARTS)}")
    about = machine()
    print("  ".join(f"{key} {value}" for key, value in about.items()))
    figures: list[Figure] = []
    for part in wanted:
        for figure in PARTS[part]():
            figures.append(figure)
            print(*table([figure]), flush=True)
    path = Path("var") / "bench.json"
    path.parent.mkdir(exist_ok=True)
    document = {"machine": about, "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"All of it: {path}")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
