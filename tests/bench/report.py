"""docs/benchmarks.md: one section for each part, each with when and where it was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runner.engines.places import ROOT
from tests.bench.figures import Figure, Text

PATH = ROOT / "docs" / "benchmarks.md"
HEAD = """\
# Benchmarks

`make bench` takes these figures and writes this page; it ends with exit code 1 where one misses its
bar. `make bench ONLY="ruler engine"` takes some parts and leaves the other sections as they are.
Absolute times depend on the machine and on what else runs on it: read shares and ratios.
"""


def section(
    title: str, intro: str, found: Sequence[Figure | Text], about: Mapping[str, object]
) -> str:
    """One part's section."""
    taken = (
        f"Taken on {about['date']}, {about['cores']} cores of {about['cpu']}, "
        f"Python {about['python']}; load of the machine before: {about['load_before']}."
    )
    texts = [one.markdown for one in found if isinstance(one, Text)]
    rows = _rows(one for one in found if isinstance(one, Figure))
    return "\n\n".join([f"## {title}", intro.strip(), taken, *texts, rows])


def _rows(figures: Iterable[Figure]) -> str:
    lines = ["| figure | value | bar: below | |", "| --- | --- | --- | --- |"]
    for one in figures:
        bar, how = ("", "") if one.bar is None else (f"{one.bar:.4g}", "held")
        how = how if one.holds else "**missed**"
        lines.append(f"| {one.name} | {one.value:.3f} {one.unit} | {bar} | {how} |")
    return "\n".join(lines)


def write(sections: Mapping[str, str], order: Iterable[str], path: Path = PATH) -> None:
    """Put ``sections`` (by part) in their place; parts that were not taken keep their old one."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = dict(re.findall(r"<!-- (\w+) -->\n(.*?)\n<!-- end -->", before, re.DOTALL))
    whole = {**kept, **sections}
    blocks = [f"<!-- {part} -->\n{whole[part]}\n<!-- end -->\n" for part in order if part in whole]
    path.write_text("\n".join([HEAD, *blocks]), encoding="utf-8")
