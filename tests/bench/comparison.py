"""How long ``compare`` takes for an experiment of a million requests, and its memory.

In a process of its own, so that its largest resident memory is that of the comparison: two arms,
five load levels, two server starts of each arm with 50,000 requests a level. Trials are made from a
seed, one when the comparison asks for it, as a folder or a database would read them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np

from calculator.comparison import Comparison, compare
from calculator.measurement import (
    NS_PER_MS,
    NS_PER_S,
    ClientHealth,
    Measurement,
    Outcome,
    SpeculationCounters,
    TrialRecord,
)
from runner.engines.places import ROOT
from tests.bench.figures import Figure

ARMS = {"baseline": 1.0, "candidate": 1.3}
"""How many times as fast."""
LEVELS = (1, 2, 4, 8, 16)
STARTS = 2
REQUESTS = 50_000
CATEGORIES = ("chat", "code", "extract", "rewrite", "summarise", "translate")
FAILED = 0.002
TIME_BAR_S = 20.0
MEMORY_BAR_MIB = 1024.0
TITLE = "What a comparison of a million requests costs"
INTRO = f"""\
Two arms, {len(LEVELS)} load levels, {STARTS} server starts of each arm, {REQUESTS:,} requests a
level and start: 100,000 of each arm and level. The trials are made from a seed while the comparison
takes them one by one; the time of making them is shown apart. Memory is the largest that the whole
process had resident, with one trial's requests as objects and all others as columns."""


def figures() -> Iterator[Figure]:
    child = subprocess.run(
        [sys.executable, "-m", __name__], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    found = json.loads(child.stdout)
    yield Figure("comparison: a million requests", found["compare_s"], "s", TIME_BAR_S)
    yield Figure("comparison: making their trials, not counted above", found["make_s"], "s")
    yield Figure(
        "comparison: largest resident memory", found["resident_mib"], "MiB", MEMORY_BAR_MIB
    )


class _Trials:
    """Makes trials lazily and counts the seconds that takes."""

    def __init__(self) -> None:
        self.make_s = 0.0

    def __iter__(self) -> Iterator[TrialRecord]:
        for block in range(STARTS):
            for place, arm in enumerate(ARMS):
                for concurrency in LEVELS:
                    began = time.perf_counter()
                    trial = _trial(arm, len(ARMS) * block + place, block, concurrency)
                    self.make_s += time.perf_counter() - began
                    yield trial


def _trial(arm: str, run: int, block: int, concurrency: int) -> TrialRecord:
    """A closed loop whose slots are always busy. Requests differ alike in all arms and starts."""
    own, rng = np.random.default_rng(concurrency), np.random.default_rng([concurrency, run])
    kind = own.integers(0, len(CATEGORIES), REQUESTS)
    prompt_tokens = own.integers(20, 2000, REQUESTS)
    tokens = own.integers(40, 400, REQUESTS) + (rng.random(REQUESTS) < 0.2)
    ttft_ms = 40 * rng.lognormal(0, 0.3, REQUESTS)
    pace = rng.lognormal(0, 0.02) * rng.lognormal(0, 0.05, REQUESTS) / ARMS[arm]
    step_ms = 8 * own.lognormal(0, 0.2, REQUESTS) * pace
    held_ns = ((ttft_ms + step_ms * (tokens - 1)) * NS_PER_MS).astype(np.int64)
    done_ns = np.cumsum(held_ns.reshape(-1, concurrency), axis=0).ravel()
    sent_ns = done_ns - held_ns
    first_ns = sent_ns + (ttft_ms * NS_PER_MS).astype(np.int64)
    failed = rng.random(REQUESTS) < FAILED
    chunks = np.maximum(1, tokens // 2 if arm == "candidate" else tokens)
    rows = zip(
        *(
            column[np.argsort(sent_ns, kind="stable")].tolist()
            for column in (
                np.arange(REQUESTS), kind, failed, sent_ns, done_ns, first_ns, prompt_tokens,
                tokens, chunks,
            )
        ),
        strict=True,
    )  # fmt: skip
    measurements = tuple(
        Measurement(
            f"level-{concurrency}-request-{number}", sequence, CATEGORIES[which],
            Outcome.CUT if cut else Outcome.OK, sent, sent, done, first, first, done, asked, 0,
            written, 1, events, None if cut else "stop",
        )
        for sequence, (number, which, cut, sent, done, first, asked, written, events)
        in enumerate(rows)
    )  # fmt: skip
    drafts = float(chunks.sum())
    return TrialRecord(
        arm, run, block, concurrency, int(done_ns.max()) / NS_PER_S, measurements,
        SpeculationCounters(drafts, 3 * drafts, drafts) if arm == "candidate" else None,
        ClientHealth(0.1, 0.1, 0.01, concurrency, 1.0),
    )  # fmt: skip


def _resident_mib() -> float:
    """The largest so far. getrusage would give that of the process that started this one."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _check(found: Comparison) -> None:
    """Everything was believed and paired, or the figure is about less than it says."""
    for level in found.levels:
        if level.excluded or level.pairs < (1 - FAILED) * REQUESTS or not level.categories:
            raise RuntimeError(f"level {level.concurrency}: {level.excluded}, {level.pairs} pairs")


def main() -> None:
    trials = _Trials()
    began = time.perf_counter()
    found = compare(
        trials,
        baseline="baseline",
        candidate="candidate",
        usd_per_hour=Decimal(2),
        slo_ttft_p95_ms=200.0,
        slo_tpot_p95_ms=20.0,
        slo_e2e_p95_ms=5000.0,
    )
    took_s = time.perf_counter() - began
    _check(found)
    figures = {
        "compare_s": took_s - trials.make_s,
        "make_s": trials.make_s,
        "resident_mib": _resident_mib(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
