"""Which format a file has: found by the keys of its first rows, never by name or key order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from runner.traffic import openai_batch, openai_chat, prompt
from runner.traffic.rows import Format

FORMATS: tuple[Format, ...] = (openai_batch.FORMAT, openai_chat.FORMAT, prompt.FORMAT)


def format_of(data: Mapping[str, Any]) -> Format | None:
    """The format whose keys this row has; None when it has none of them."""
    return next((known for known in FORMATS if known.matches(data)), None)


def vote(first_rows: Iterable[Mapping[str, Any]]) -> Format | None:
    """The format of most rows; a tie goes to the one seen first."""
    votes = Counter(known.name for row in first_rows if (known := format_of(row)) is not None)
    if not votes:
        return None
    winner = votes.most_common(1)[0][0]
    return next(known for known in FORMATS if known.name == winner)
