"""One figure of a benchmark, and the table of all."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """``value`` in ``unit``; ``bar``: what it has to stay below, None where it is only shown."""

    name: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def holds(self) -> bool:
        return self.bar is None or self.value < self.bar


@dataclass(frozen=True, slots=True)
class Text:
    """A table of a part's own, in Markdown."""

    markdown: str


def table(figures: Iterable[Figure]) -> Iterator[str]:
    for figure in figures:
        bar = "" if figure.bar is None else f"bar {figure.bar:g}"
        mark = "" if figure.holds else "  MISSED"
        yield f"{figure.name:<58}{figure.value:>10.3f} {figure.unit:<6}{bar}{mark}"


def machine() -> dict[str, object]:
    """When and where the figures were taken."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
