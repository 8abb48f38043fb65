"""`make truth`: coverage, false gains and power of the comparison, and what the output check finds,
beside the bars they must hold.

Writes docs/truth.md with ``--write``. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from calculator.statistics import Evidence, compared, needed
from tests.truth import outputs
from tests.truth.families import FAMILIES, Family, World

COVERAGE_PERCENT = (93.0, 97.0)
MOST_FALSE_GAINS_PERCENT = 5.0
LEAST_POWER_PERCENT = 80.0
TRUE_GAIN = float(np.log(0.9))
DOCUMENT = Path(__file__).parents[2] / "docs" / "truth.md"
EXPLAINED = """# What the intervals are worth

Simulated comparisons of two arms whose true effect is known, {draws} draws a row with seed {seed},
by `make truth` (`python -m tests.truth --write`) on {date}. Nothing here is a timing, so the
machine does not matter. A row is a world in `tests/truth/families.py`: {requests} requests on 3
server starts of each arm where its name does not say otherwise.

* **covers**: nominal 95 % intervals of the ratio that hold the truth. Asked: {low:.0f} to
  {high:.0f} %. Below it an interval promises too much. Above it an interval is wider than it
  had to be.
* **false gain**: the two arms are the same, and a gain is shown. Asked: at most {false:.0f} %.
* **finds 10 %**: one comparison is made; the planner says how many requests and starts would settle
  a gain of 10 %; a new comparison of that size is made in a world with that gain, and shows it.
  Asked: at least {power:.0f} %. "none": the planner says that nothing affordable would do.
"""


@dataclass(frozen=True, slots=True)
class Row:
    family: str
    covers_percent: float
    false_gain_percent: float
    power_percent: float | None
    """None: no size that the planner would ask for was found."""

    def missed(self) -> list[str]:
        low, high = COVERAGE_PERCENT
        missed = []
        if self.covers_percent < low:
            missed.append("covers too seldom")
        if self.covers_percent > high:
            missed.append("wider than needed")
        if self.false_gain_percent > MOST_FALSE_GAINS_PERCENT:
            missed.append("false gains")
        if self.power_percent is not None and self.power_percent < LEAST_POWER_PERCENT:
            missed.append("power")
        return missed


def measure(name: str, family: Family, draws: int, rng: np.random.Generator) -> Row:
    """One row: A/A comparisons for coverage and false gains, then planned ones for power."""
    world = World(draws, family.requests, family.starts)
    found = list(_evidence(family, world, rng))
    intervals = [evidence.ratio() for evidence in found]
    covered = sum((i.low or 0) <= 1 <= (i.high or np.inf) for i in intervals)
    gains = sum(i.high is not None and i.high < 1 for i in intervals)
    shown = [
        one for pilot in found[: max(1, draws // 2)]
        if (one := _shown(family, pilot, rng)) is not None
    ]  # fmt: skip
    power = 100 * sum(shown) / len(shown) if shown else None
    return Row(name, 100 * covered / draws, 100 * gains / draws, power)


def _evidence(family: Family, world: World, rng: np.random.Generator) -> Iterator[Evidence]:
    for before, after in zip(*family.draw(rng, world), strict=True):
        found = compared(before, after)
        assert found is not None
        yield found


def _shown(family: Family, pilot: Evidence, rng: np.random.Generator) -> bool | None:
    need = needed(pilot, abs(TRUE_GAIN))
    if need is None:
        return None
    world = World(1, need.requests, need.blocks, TRUE_GAIN)
    high = next(_evidence(family, world, rng)).ratio().high
    return high is not None and high < 1


def table(rows: list[Row]) -> str:
    lines = ["| world | covers | false gain | finds 10 % | |", "| --- | --: | --: | --: | --- |"]
    for row in rows:
        power = "none" if row.power_percent is None else f"{row.power_percent:.1f} %"
        lines.append(
            f"| {row.family} | {row.covers_percent:.1f} % | {row.false_gain_percent:.1f} % | "
            f"{power} | {', '.join(row.missed()) or 'held'} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.truth", description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write docs/truth.md")
    asked = parser.parse_args()
    if asked.draws < 1:
        parser.error("--draws must be at least 1")
    rng = np.random.default_rng(asked.seed)
    rows = [measure(name, family, asked.draws, rng) for name, family in FAMILIES.items()]
    held = sum(not row.missed() for row in rows)
    told = f"{table(rows)}\n\n{held} of {len(rows)} worlds hold every bar."
    checked, all_checked = outputs.section(asked.draws, asked.seed)
    told += f"\n\n{checked}"
    print(told)
    if asked.write:
        head = EXPLAINED.format(
            draws=f"{asked.draws:,}", seed=asked.seed, date=datetime.now(UTC).date(), requests=48,
            low=COVERAGE_PERCENT[0], high=COVERAGE_PERCENT[1],
            false=MOST_FALSE_GAINS_PERCENT, power=LEAST_POWER_PERCENT,
        )  # fmt: skip
        DOCUMENT.write_text(f"{head}\n{told}\n", encoding="utf-8")
    return 0 if held == len(rows) and all_checked else 1


if __name__ == "__main__":
    sys.exit(main())
