"""Records of greedy passes whose truth a test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calculator.answers import AnswerRecord, ForcedScore, OutputRecord


def record(chains: Mapping[str, Sequence[str]], **more: Any) -> OutputRecord:
    """Answers of the given digests; ``more`` is set on each of them."""
    answers = {name: AnswerRecord(list(chain), **more) for name, chain in chains.items()}
    return OutputRecord(answers, asked=len(chains))


def same(count: int, length: int = 8, *, parts_at: int | None = None, **more: Any) -> OutputRecord:
    """``count`` answers that are the usual ones up to ``parts_at``."""
    end = length if parts_at is None else parts_at
    chain = [f"s{n}" for n in range(end)] + [f"x{n}" for n in range(end, length)]
    return record({f"q{n}": chain for n in range(count)}, **more)


def scored(tokens: int, *gaps: tuple[int, float], noise: float | None = None) -> ForcedScore:
    return ForcedScore(tokens, gaps, noise)
