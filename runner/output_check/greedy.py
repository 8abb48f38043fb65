"""The greedy pass: the same requests with temperature 0, answers as the engine's own token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runner.engines.base import Endpoint
from runner.output_check.exchange import Ask, exchange
from runner.output_check.read import leads_of, prompt_ids_of, token_ids_of
from runner.output_check.traits import json_valid, repeated_share, tool_calls_valid
from runner.traffic.request import NormalisedRequest

SEED = 1
_NOT_SENT = ("top_p", "top_k", "seed", "stream_options", "min_p", "logit_bias", "logprobs")
"""Greedy already; and vLLM answers 400 to some of these while it speculates."""
SHAPING = frozenset({
    "presence_penalty", "frequency_penalty", "repetition_penalty", "response_format",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "bad_words", "allowed_token_ids", "min_tokens", "logits_processors", "ignore_eos",
})  # fmt: skip
"""Fields by which something else than the model's own order chooses tokens."""
_NEUTRAL: tuple[Any, ...] = (None, 0, 1, 0.0, 1.0, False, [], {}, {"type": "text"})


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """One answer. Holds token ids: it stays in the memory of the run that made it."""

    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    """As the server made them of the request, chat template included; empty: not said."""
    leads: tuple[float | None, ...]
    stop_reason: str | None
    shaped: bool
    json_valid: bool | None
    tool_calls_valid: bool | None
    repeated_share: float | None


def greedy_answers(
    endpoint: Endpoint,
    requests: Sequence[NormalisedRequest],
    *,
    max_tokens: int,
    concurrency: int,
    timeout_s: float,
    cache_salt: str | None = None,
    leads: bool = False,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, GreedyAnswer]:
    """By request id. A request whose answer failed, or came without token ids, is missing.

    ``leads`` asks how far each token led the runner-up too. Only the baseline is asked: some
    engines stop to speculate where probabilities are wanted, and then the check would check
    nothing. Raises ReplayStopped or ServerGone, as ``replay`` does.
    """
    by_id = {request.id: request for request in requests}
    asks = [
        Ask(request.id, request.kind, _body(request, endpoint.model, max_tokens, cache_salt, leads))
        for request in requests
    ]
    found = {}
    for request_id, document in exchange(
        endpoint, asks, concurrency=concurrency, timeout_s=timeout_s, should_stop=should_stop
    ):
        answer = _answer(by_id[request_id], document)
        if answer is not None:
            found[request_id] = answer
    return found


def _body(
    request: NormalisedRequest, model: str, max_tokens: int, cache_salt: str | None, leads: bool
) -> dict[str, Any]:
    body = request.body(model, max_output_tokens=max_tokens)
    for name in (*_NOT_SENT, "top_logprobs"):
        body.pop(name, None)
    body |= {
        "temperature": 0, "seed": SEED, "n": 1, "stream": False, "return_token_ids": True
    }  # fmt: skip
    if leads:
        wanted = (
            {"logprobs": True, "top_logprobs": 2} if request.kind == "chat" else {"logprobs": 2}
        )
        body |= {**wanted, "return_tokens_as_token_ids": True}
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    return body


def is_shaped(request: NormalisedRequest) -> bool:
    """Something else than the model's own order has a say in what is written."""
    sampling = request.sampling
    if any(sampling.get(name) not in _NEUTRAL for name in SHAPING):
        return True
    return sampling.get("tool_choice") not in (None, "none", "auto")


def _answer(request: NormalisedRequest, document: dict[str, Any]) -> GreedyAnswer | None:
    try:
        choice = document["choices"][0]
    except (LookupError, TypeError):
        return None
    ids = token_ids_of(choice) if isinstance(choice, dict) else None
    if ids is None:
        return None
    reason = choice.get("finish_reason")
    return GreedyAnswer(
        token_ids=ids,
        prompt_ids=prompt_ids_of(document, choice),
        leads=leads_of(choice, ids),
        stop_reason=reason if isinstance(reason, str) else None,
        shaped=is_shaped(request),
        json_valid=json_valid(request, choice),
        tool_calls_valid=tool_calls_valid(choice),
        repeated_share=repeated_share(ids),
    )
