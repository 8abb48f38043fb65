"""From answers to what may be kept of them: digests, positions and counts, never ids or text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from calculator.answers import AnswerRecord, ForcedScore, OutputRecord
from runner.output_check.greedy import GreedyAnswer

DIGEST_BYTES = 6


def output_record(
    answers: Mapping[str, GreedyAnswer],
    scores: Mapping[str, ForcedScore],
    *,
    asked: int,
    concurrency: int,
    key: bytes,
    not_scored: str | None = None,
) -> OutputRecord:
    """``not_scored``: a code of ``calculator.answers.NOT_SCORED``."""
    return OutputRecord(
        {
            name: AnswerRecord(
                digests=digest_chain(answer.token_ids, key),
                stop_reason=answer.stop_reason,
                leads=answer.leads,
                json_valid=answer.json_valid,
                tool_calls_valid=answer.tool_calls_valid,
                repeated_share=answer.repeated_share,
                forced=scores.get(name),
            )
            for name, answer in answers.items()
        },
        asked,
        concurrency,
        not_scored,
    )


def digest_chain(token_ids: Sequence[int], key: bytes) -> list[str]:
    """Element i is a keyed digest of the first i + 1 token ids: equal heads, equal digests."""
    chain: list[str] = []
    before = b""
    for token in token_ids:
        text = before + str(token).encode()
        before = hashlib.blake2b(text, digest_size=DIGEST_BYTES, key=key[:64]).digest()
        chain.append(before.hex())
    return chain
