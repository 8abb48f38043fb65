"""Does the output check keep its promise? Simulated engines whose truth is known.

    python -m tests.truth.outputs

An engine is a model that leads each token's runner-up by some nats, written with noise: each start
perturbs every lead, and where noise exceeds the lead the runner-up is written (a flip). After a
flip two answers are two texts. A corruption replaces a token with chance 1 in 1,000 by one that the
model finds less likely. The real ``check_outputs`` judges what such engines would have reported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calculator.answers import AnswerRecord, ForcedScore, OutputRecord
from calculator.outputs import OutputCheck, check_outputs

DRAWS = 2_000
REQUESTS = 16
TOKENS = 256
"""Answers of the default design: 4,096 tokens."""
CORRUPTION = 1 / 1_000
MOST_FALSE_ALARMS = 0.05
LEAST_FOUND = 0.95
EXPLAINED = """## What the output check finds

{draws} draws a row of {requests} answers of up to {tokens} tokens each (the default design),
judged by the check itself; `tests/truth/outputs.py` says what an engine is here. **Noise only**:
the candidate writes as the baseline does, with noise of its own at each start; asked: called
changed in at most 5 %. **Corrupted**: beside that one token in 1,000 is replaced; asked: called
changed in at least 95 %, where the baseline scores the text and any token may come instead. The
rows without a bar say what is left where the runner-up comes instead, where nothing is scored,
and where there are only rates.
"""
_SAME = tuple(f"s{n}" for n in range(TOKENS))
_STARTS = (0, 1, 2, 3)
"""Baseline, candidate, candidate, baseline: A B B A."""
_OWN = [tuple(f"{start}.{n}" for n in range(TOKENS)) for start in _STARTS]

Floats = NDArray[np.float64]
Rng = np.random.Generator
Noise = Callable[[Rng, tuple[int, ...]], Floats]


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of engine. ``noise`` draws nats by which a start perturbs a lead."""

    name: str
    noise: Noise
    corruption: float = 0.0
    to_runner_up: bool = False
    """A corrupted token is the runner-up, the least visible there is; else any token."""
    scores: bool = True
    """The baseline scores the candidate's text."""
    leads: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    family: str
    flips_per_1000: float
    """Tokens at which the noise chose another than the model would."""
    changed: float
    """Share of the draws that ended as ``changed``."""
    bound: float
    held: bool | None
    """None: no bar, for information."""
    not_tested: float = 0.0


def _normal(scale: float) -> Noise:
    return lambda rng, shape: rng.normal(0.0, scale, shape)


def _heavy(scale: float, df: int) -> Noise:
    return lambda rng, shape: scale * rng.standard_t(df, shape)


def _laplace(scale: float) -> Noise:
    return lambda rng, shape: rng.laplace(0.0, scale, shape)


# Leads are exponential with a mean of 3 nats, so normal noise of s nats flips about s / 7.5.
EXACT = _normal(1e-5)
QUIET = _normal(0.004)
BFLOAT = _normal(0.0375)
FAMILIES = (
    Family("exact engine", EXACT),
    Family("flips 1 in 2,000", QUIET),
    Family("flips 1 in 200", BFLOAT),
    Family("flips 1 in 200, Laplace noise", _laplace(0.03)),
    Family("flips 1 in 200, heavy tails (t, 5)", _heavy(0.029, 5)),
    Family("flips 1 in 200, no scores", BFLOAT, scores=False),
    Family("flips 1 in 200, rates alone", BFLOAT, scores=False, leads=False),
    Family("exact engine", EXACT, CORRUPTION),
    Family("flips 1 in 200", BFLOAT, CORRUPTION),
    Family("flips 1 in 200, Laplace noise", _laplace(0.03), CORRUPTION),
    Family("flips 1 in 200, heavy tails (t, 5)", _heavy(0.029, 5), CORRUPTION),
    Family("exact engine, to the runner-up", EXACT, CORRUPTION, to_runner_up=True),
    Family("flips 1 in 200, to the runner-up", BFLOAT, CORRUPTION, to_runner_up=True),
    Family("flips 1 in 200, no scores", BFLOAT, CORRUPTION, scores=False),
    Family("flips 1 in 200, rates alone", BFLOAT, CORRUPTION, scores=False, leads=False),
)


def rows(draws: int, rng: Rng) -> list[Row]:
    """One row for each family: how often the check ends as ``changed``."""
    return [_row(family, draws, rng) for family in FAMILIES]


def _row(family: Family, draws: int, rng: Rng) -> Row:
    changed = not_tested = flips = 0
    for _ in range(draws):
        found, flipped = draw(family, rng)
        changed += found.status == "changed"
        not_tested += found.status == "not_tested"
        flips += flipped
    share = changed / draws
    if not family.corruption:
        held: bool | None = share <= MOST_FALSE_ALARMS
    else:
        full = family.scores and not family.to_runner_up
        held = share >= LEAST_FOUND if full else None
    return Row(
        family.name,
        1000 * flips / (draws * REQUESTS * TOKENS),
        share,
        LEAST_FOUND if family.corruption else MOST_FALSE_ALARMS,
        held,
        not_tested / draws,
    )


def draw(family: Family, rng: Rng) -> tuple[OutputCheck, int]:
    """One experiment's check, and how many tokens of its first run were flips."""
    shape = (REQUESTS, TOKENS)
    leads = rng.exponential(3.0, shape)
    lengths = rng.integers(TOKENS // 2, TOKENS * 3 // 2, REQUESTS).clip(max=TOKENS)
    flips, records = [], {}
    for start in _STARTS:
        broken = start in (1, 2)
        record, flipped = _start(family, leads, lengths, rng, corrupt=broken, start=start)
        records[start] = record
        flips.append(flipped)
    # One scorer: the candidate's first run; the baseline's runs score themselves.
    records[2] = replace(
        records[2],
        answers={n: replace(a, forced=None) for n, a in records[2].answers.items()},
    )
    return check_outputs(records, [0, 3], [1, 2]), flips[0]


def _start(
    family: Family,
    leads: Floats,
    lengths: NDArray[np.int64],
    rng: Rng,
    *,
    corrupt: bool,
    start: int,
) -> tuple[OutputRecord, int]:
    """What one server start wrote, and what the baseline says of it.

    The text after a flip is another one, so its leads are drawn anew.
    """
    written = leads + family.noise(rng, leads.shape)
    flip = written < 0
    bad = rng.random(leads.shape) < (family.corruption if corrupt else 0.0)
    parts = flip | bad
    first = np.where(parts.any(axis=1), parts.argmax(axis=1), TOKENS)
    other = np.arange(TOKENS) > first[:, None]
    fresh = rng.exponential(3.0, leads.shape)
    lead = np.where(other, fresh, leads)
    written = lead + family.noise(rng, leads.shape) * other + (written - leads) * ~other
    flip = written < 0
    read = lead + family.noise(rng, leads.shape)
    # How far the written token is from the baseline's best when it reads it.
    further = 0.0 if family.to_runner_up else rng.exponential(4.0, leads.shape)
    gap = np.where(bad, read + further, np.where(flip, read, -read))
    answers = {}
    for row in range(REQUESTS):
        length = int(lengths[row]) if first[row] >= lengths[row] else TOKENS
        digests = (_SAME[: first[row]] + _OWN[start][first[row] :])[:length]
        at = np.flatnonzero(gap[row, :length] > 0)
        gaps = tuple(zip(at.tolist(), gap[row, at].tolist(), strict=True))
        baseline = not corrupt
        score = ForcedScore(
            length,
            gaps,
            float(np.abs(read - written)[row, :length].max()) if baseline else None,
        )
        answers[f"r{row}"] = AnswerRecord(
            digests,
            "stop" if length < TOKENS else "length",
            leads=np.abs(written[row, :length]).tolist() if family.leads and baseline else (),
            forced=score if family.scores else None,
        )
    return OutputRecord(answers, REQUESTS), int(flip.sum())


def section(draws: int, seed: int) -> tuple[str, bool]:
    """The table with what it means, for a terminal and for docs/truth.md; do all bars hold?"""
    found = rows(draws, np.random.default_rng(seed))
    lines = [EXPLAINED.format(draws=f"{draws:,}", requests=REQUESTS, tokens=TOKENS)]
    lines += [
        "| engine | flips in 1,000 | changed | not tested | |",
        "| --- | --: | --: | --: | --- |",
    ]
    for family, row in zip(FAMILIES, found, strict=True):
        kind = "corrupted" if family.corruption else "noise only"
        word = {True: "held", False: "missed", None: ""}[row.held]
        lines.append(
            f"| {kind}: {row.family} | {row.flips_per_1000:.1f} | {100 * row.changed:.1f} % | "
            f"{100 * row.not_tested:.1f} % | {word} |"
        )
    kept = sum(row.held is True for row in found)
    asked = sum(row.held is not None for row in found)
    lines.append(f"\n{kept} of {asked} bars of the output check hold.")
    return "\n".join(lines), kept == asked


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.truth.outputs", description=__doc__)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    told, held = section(options.draws, options.seed)
    print(told)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
