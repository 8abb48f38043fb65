"""What can be said of an answer without keeping it: does it parse, does it repeat itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runner.traffic.request import NormalisedRequest

NGRAM = 4
_JSON_FORMATS = ("json_object", "json_schema")


def json_valid(request: NormalisedRequest, choice: Mapping[str, Any]) -> bool | None:
    """Is the text one JSON value, where the request asked for one? None: it did not."""
    wanted = request.sampling.get("response_format")
    if not isinstance(wanted, Mapping) or wanted.get("type") not in _JSON_FORMATS:
        return None
    message = choice.get("message")
    text = message.get("content") if isinstance(message, Mapping) else choice.get("text")
    return _parses(text)


def tool_calls_valid(choice: Mapping[str, Any]) -> bool | None:
    """Are the arguments of every tool call a JSON object? None: no tool was called."""
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, list) or not calls:
        return None
    return all(_parses(_arguments(call), dict) for call in calls)


def repeated_share(token_ids: Sequence[int]) -> float | None:
    """Share of the answer's runs of NGRAM tokens that had occurred in it before (1 - distinct-n).

    J. Li et al., "A diversity-promoting objective function for neural conversation models",
    NAACL-HLT (2016) 110-119, counts distinct n-grams so. None: shorter than one run.
    """
    runs = [tuple(token_ids[at : at + NGRAM]) for at in range(len(token_ids) - NGRAM + 1)]
    return None if not runs else round(1 - len(set(runs)) / len(runs), 6)


def _arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function.get("arguments") if isinstance(function, Mapping) else None


def _parses(text: Any, kind: type = object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        return isinstance(json.loads(text), kind)
    except (ValueError, RecursionError):
        return False
