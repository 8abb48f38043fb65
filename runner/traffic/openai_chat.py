"""OpenAI chat request rows: ``{"messages": [...], "temperature": 0, ...}``, one request a line.

Optional beside the request's own fields: ``id`` (or ``request_id``) and ``category``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.traffic import rows
from runner.traffic.request import NormalisedRequest

_NOT_SENT = frozenset({"request_id", "expected_output"})


def matches(data: Mapping[str, Any]) -> bool:
    return "messages" in data and "custom_id" not in data


def read(row: rows.Row) -> rows.Outcome:
    data = row.data
    identity = rows.row_id(data.get("id"), data.get("request_id"), line=row.line)
    return [chat_request(row, data, identity=identity, ignore=_NOT_SENT)]


def chat_request(
    row: rows.Row,
    body: Mapping[str, Any],
    *,
    identity: str,
    ignore: frozenset[str] = frozenset(),
) -> NormalisedRequest:
    """One chat body as a request; also what the batch reader uses."""
    return NormalisedRequest(
        id=identity,
        kind="chat",
        line=row.line,
        messages=rows.messages(row, body.get("messages")),
        sampling=rows.sampling(row, body, ignore=ignore),
        max_output_tokens=rows.max_tokens(row, body, "max_completion_tokens", "max_tokens"),
        category=rows.category(row.data, body),
    )


FORMAT = rows.Format("openai_chat", "OpenAI chat requests (JSONL)", matches, read)
