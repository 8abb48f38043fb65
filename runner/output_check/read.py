"""Token ids and probabilities in an answer's JSON, as vLLM writes them. Parsed defensively: a field
that is not as expected is one that was not said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

_PREFIX = "token_id:"
"""How ``return_tokens_as_token_ids`` writes a token."""


def token_ids_of(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    return _ids(choice.get("token_ids"))


def prompt_ids_of(document: Mapping[str, Any], choice: Mapping[str, Any]) -> tuple[int, ...]:
    """Chats have them in the answer, completions in its choice. Empty: not said."""
    return _ids(document.get("prompt_token_ids")) or _ids(choice.get("prompt_token_ids")) or ()


def leads_of(choice: Mapping[str, Any], ids: Sequence[int]) -> tuple[float | None, ...]:
    """By how many nats each token led the best other one; empty where that is not said."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        return ()
    steps = _chat_steps(logprobs) if "content" in logprobs else _completion_steps(logprobs)
    if len(steps) != len(ids):
        return ()
    return tuple(lead(step, token) for step, token in zip(steps, ids, strict=True))


def lead(step: Mapping[int, float], token: int) -> float | None:
    """Nats by which ``token`` leads the best other token of ``step``; None: one is not there."""
    others = [value for other, value in step.items() if other != token]
    if token not in step or not others:
        return None
    return round(step[token] - max(others), 6)


def prompt_steps(choice: Mapping[str, Any]) -> list[dict[int, float]] | None:
    """Per prompt token the log probabilities of some tokens, its own among them; None: not said."""
    found = choice.get("prompt_logprobs")
    if not isinstance(found, list):
        return None
    return [_step(one) if isinstance(one, Mapping) else {} for one in found]


def _step(found: Mapping[str, Any]) -> dict[int, float]:
    step = {}
    for token, value in found.items():
        number = value.get("logprob") if isinstance(value, Mapping) else None
        if token.isdecimal() and _is_number(number):
            step[int(token)] = float(number)
    return step


def _chat_steps(logprobs: Mapping[str, Any]) -> list[dict[int, float]]:
    content = logprobs["content"]
    if not isinstance(content, list):
        return []
    steps = []
    for one in content:
        tops = [one, *(one.get("top_logprobs") or [])] if isinstance(one, dict) else []
        steps.append(_named([(top.get("token"), top.get("logprob")) for top in tops]))
    return steps


def _completion_steps(logprobs: Mapping[str, Any]) -> list[dict[int, float]]:
    tops = logprobs.get("top_logprobs")
    if not isinstance(tops, list):
        return []
    return [_named(list(one.items())) if isinstance(one, dict) else {} for one in tops]


def _named(pairs: Sequence[tuple[Any, Any]]) -> dict[int, float]:
    return {
        int(token[len(_PREFIX) :]): float(value)
        for token, value in pairs
        if isinstance(token, str)
        and token.startswith(_PREFIX)
        and token[len(_PREFIX) :].isdecimal()
        and _is_number(value)
    }


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _ids(found: Any) -> tuple[int, ...] | None:
    if not isinstance(found, list):
        return None
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        return None
    return tuple(found)
