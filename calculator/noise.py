"""How exact an engine is, read off the baseline's own answers."""

from __future__ import annotations

from collections.abc import Sequence

from calculator.answers import OutputRecord

LARGEST_NOISE_NATS = 1.0
"""A request whose own answer is further from the baseline's best was not chosen by the model's
order alone (a penalty, a grammar), so scores say nothing about it."""


def shaped(before: Sequence[OutputRecord]) -> frozenset[str]:
    """Requests whose own answer, read by the baseline itself, is not what it would choose."""
    return frozenset(
        name
        for record in before
        for name, answer in record.answers.items()
        if answer.forced is not None
        and any(nats > LARGEST_NOISE_NATS for _, nats in answer.forced.gaps)
    )


def largest_noise(before: Sequence[OutputRecord], unusable: frozenset[str]) -> float | None:
    """The largest noise seen on the baseline's own text, in nats; None: nothing was scored."""
    known: list[float] = []
    for record in before:
        for name, answer in record.answers.items():
            if answer.forced is None or name in unusable:
                continue
            known.extend(nats for _, nats in answer.forced.gaps)
            if answer.forced.noise_nats is not None:
                known.append(answer.forced.noise_nats)
    return max(known, default=None)
