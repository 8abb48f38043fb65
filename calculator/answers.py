"""What one run's greedy answers were, without their text: what the output check compares.

Token ids are kept as chains of keyed digests: two runs of one experiment can be compared token by
token, and nobody without the experiment's key can tell what was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ForcedScore:
    """An answer given to the baseline token by token ("teacher forcing"), and what it thinks of it.

    Positions count from 0 at the answer's first token; nats are differences of natural logarithms
    of probability.
    """

    tokens: int
    """Tokens that were scored."""
    gaps: tuple[tuple[int, float], ...] = ()
    """(position, nats) of each token that is not the baseline's own choice: how much likelier the
    baseline's choice is."""
    noise_nats: float | None = None
    """Of an answer that the baseline wrote itself: the largest difference between its lead over the
    runner-up when it wrote and when it read. None: not known."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One greedy answer. Holds no text and no token id."""

    digests: Sequence[str]
    """Element i is a keyed digest of the first i + 1 token ids."""
    stop_reason: str | None = None
    leads: Sequence[float | None] = ()
    """Per token: how much likelier (nats) it was than the best other one, as the engine said while
    it wrote; below 0 where something else than the model's own order chose. Empty: not said."""
    json_valid: bool | None = None
    """None: the request asked for no JSON."""
    tool_calls_valid: bool | None = None
    """The arguments of every tool call are JSON objects. None: the answer called no tool."""
    repeated_share: float | None = None
    """Share of the answer's runs of four tokens that had occurred in it before; None: shorter."""
    forced: ForcedScore | None = None
    """None: nobody scored it."""


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """The untimed greedy pass of one run."""

    answers: Mapping[str, AnswerRecord]
    """By request id; an answer that failed, or came without token ids, is missing."""
    asked: int
    """Requests that were sent."""
    concurrency: int = 1
    not_scored: str | None = None
    """Code of NOT_SCORED: why no answer has a score; None where some have, or nobody tried."""


NOT_SCORED: dict[str, str] = {
    "no_prompt_logprobs": "The engine does not say how likely the tokens of a prompt are.",
    "no_token_ids": "The engine does not say which tokens a prompt or an answer is made of.",
    "engine_failed": "The baseline's engine did not start again, or ended, while it was to score.",
    "shaped": (
        "Every request shapes its answer (penalties, a grammar, a bias), so that the model's own "
        "order does not choose the tokens."
    ),
}
"""Why the baseline did not score a run's answers, by code."""


def to_document(record: OutputRecord) -> dict[str, Any]:
    """The record as JSON."""
    return asdict(record)


def from_document(document: Mapping[str, Any]) -> OutputRecord:
    """Raises TypeError, KeyError or ValueError for what ``to_document`` did not write."""
    answers = {name: _answer(one) for name, one in document["answers"].items()}
    return OutputRecord(**{**document, "answers": answers})


def _answer(document: Mapping[str, Any]) -> AnswerRecord:
    forced = document.get("forced")
    score = None
    if forced is not None:
        gaps = tuple((int(place), float(nats)) for place, nats in forced["gaps"])
        score = ForcedScore(**{**forced, "gaps": gaps})
    digests = document["digests"]
    if not isinstance(digests, list):
        raise TypeError("digests")
    leads = tuple(document.get("leads", ()))
    return AnswerRecord(**{**document, "digests": digests, "leads": leads, "forced": score})
