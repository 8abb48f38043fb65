"""``python -m tests.bench [PART ...]``: figures; exit code 1 where one misses its bar.

Parts: ruler (load generators beside a known server), engine (ours beside vLLM's on a real engine),
harness, comparison (of a million requests), pages. docs/benchmarks.md gets the sections of the
parts taken. Absolute times depend on the machine and on what else it does: read the shares and
ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench import comparison, engine, harness, report, ruler
from tests.bench.figures import Figure, Text, machine, table


@dataclass(frozen=True, slots=True)
class Part:
    """One section: what it is about, and what it yields."""

    title: str
    intro: str
    figures: Callable[[], Iterable[Figure | Text]]


def _pages() -> Iterable[Figure]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from tests.bench import pages  # needs Django's models

    return pages.figures()


PARTS = {
    "ruler": Part(ruler.TITLE, ruler.INTRO, ruler.figures),
    "engine": Part(engine.TITLE, engine.INTRO, engine.figures),
    "harness": Part(
        "What the harness costs",
        "A simulated engine in a process of its own keeps a known schedule (40 tokens an answer, "
        'the first after\n100 ms). "Own work" is the time in which the load generator held its '
        'event loop, "beyond the schedule"\nwhat the trial took longer than it had to; both as '
        "a share of the trial's wall time. The bar is 5 % at the\ndemo's loads, where a step takes "
        "50 ms or more.",
        harness.figures,
    ),
    "comparison": Part(comparison.TITLE, comparison.INTRO, comparison.figures),
    "pages": Part(
        "What pages cost",
        "gunicorn as `make serve` starts it, on loopback, signed in; 60 requests of each page in "
        "turn.",
        _pages,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    wanted = parser.parse_args().parts or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; known are {', '.join(PARTS)}")
    figures: list[Figure] = []
    for name in wanted:
        about = machine()
        print("  ".join(f"{key} {value}" for key, value in about.items()))
        found = []
        for one in PARTS[name].figures():
            found.append(one)
            print(*(table([one]) if isinstance(one, Figure) else [one.markdown]), flush=True)
        figures += [one for one in found if isinstance(one, Figure)]
        section = report.section(PARTS[name].title, PARTS[name].intro, found, about)
        report.write({name: section}, PARTS)  # at once: a later part may fail
    path = Path("var") / "bench.json"
    path.parent.mkdir(exist_ok=True)
    document = {"machine": machine(), "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"All of it: {path} and {report.PATH.name}")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
