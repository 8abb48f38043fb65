"""Plain prompt rows: ``{"prompt": text | token ids | list of these, ...}``.

Optional: ``output_tokens``, ``max_tokens`` or ``max_completion_tokens`` (the limit), ``category``,
``id`` and OpenAI's sampling fields; ``output`` or ``completion`` (the answer once given) is not
kept. A list of prompts is several requests. Prompts go to ``/v1/completions`` as they stand: no
chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.traffic import rows
from runner.traffic.request import NormalisedRequest

_NOT_SENT = frozenset({"request_id", "expected_output", "input_tokens", "best_of", "echo"})


def matches(data: Mapping[str, Any]) -> bool:
    return "prompt" in data and "messages" not in data and "custom_id" not in data


def read(row: rows.Row) -> rows.Outcome:
    data = row.data
    identity = rows.row_id(data.get("id"), data.get("request_id"), line=row.line)
    row.notes.append("prompt_as_it_stands")
    return completion_requests(row, data, identity=identity, ignore=_NOT_SENT)


def completion_requests(
    row: rows.Row,
    body: Mapping[str, Any],
    *,
    identity: str,
    ignore: frozenset[str] = frozenset(),
) -> list[NormalisedRequest]:
    """One completion body as its requests; also what the batch reader uses."""
    if "prompt" not in body:
        raise rows.RowError('no field "prompt"')
    prompts = _prompts(body["prompt"])
    limit = rows.max_tokens(row, body, "max_completion_tokens", "max_tokens", "output_tokens")
    sampling = rows.sampling(row, body, ignore=ignore)
    return [
        NormalisedRequest(
            id=identity if len(prompts) == 1 else f"{identity}/{position}",
            kind="completion",
            line=row.line,
            prompt=prompt,
            sampling=sampling,
            max_output_tokens=limit,
            category=rows.category(row.data, body),
        )
        for position, prompt in enumerate(prompts, start=1)
    ]


def _prompts(value: Any) -> list[str | tuple[int, ...]]:
    if isinstance(value, list) and not value:
        raise rows.RowError('field "prompt" is empty')
    if isinstance(value, list) and not all(_is_token(item) for item in value):
        return [_prompt(item) for item in value]
    return [_prompt(value)]


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise rows.RowError('field "prompt" is empty or blank')
        return value
    if isinstance(value, list) and value and all(_is_token(item) for item in value):
        return tuple(value)
    raise rows.RowError('field "prompt": expected text, token ids or a list of these')


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


FORMAT = rows.Format("prompt", "Prompts (JSONL)", matches, read)
