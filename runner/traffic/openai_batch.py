"""OpenAI batch request files: ``custom_id``, ``method``, ``url`` and ``body`` on every line.

Chat, completion and responses bodies are requests; embeddings, moderations and the like are
skipped as ``not_text_generation``. Responses bodies are told in chat's words, since that is the
endpoint that every server has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.traffic import rows
from runner.traffic.openai_chat import chat_request
from runner.traffic.prompt import completion_requests

_NOT_TEXT = ("embeddings", "moderations", "images", "videos", "audio", "rerank", "score")
_RESPONSES_ONLY = frozenset(
    ("instructions", "input", "text", "reasoning", "include", "truncation", "background")
)


def matches(data: Mapping[str, Any]) -> bool:
    return "custom_id" in data and ("body" in data or "response" in data)


def read(row: rows.Row) -> rows.Outcome:
    data = row.data
    if "body" not in data:
        raise rows.RowError("this is a batch result; upload the batch request file instead")
    body = data["body"]
    if not isinstance(body, dict):
        raise rows.RowError('field "body": expected an object')
    identity = rows.row_id(data.get("custom_id"), line=row.line)
    endpoint = _endpoint(data.get("url"), body)
    if endpoint == "chat":
        return [chat_request(row, body, identity=identity)]
    if endpoint == "completions":
        return completion_requests(row, body, identity=identity)
    if endpoint == "responses":
        return [chat_request(row, _as_chat(body), identity=identity)]
    return rows.Skip("not_text_generation")


def _endpoint(url: Any, body: Mapping[str, Any]) -> str:
    path = url.split("?")[0].rstrip("/") if isinstance(url, str) else ""
    if path.endswith("/chat/completions") or (not path and "messages" in body):
        return "chat"
    if path.endswith("/completions") or (not path and "prompt" in body):
        return "completions"
    if path.endswith("/responses"):
        return "responses"
    if any(part in _NOT_TEXT for part in path.split("/")):
        return "other"
    raise rows.RowError('field "url": not an endpoint that is known here')


def _as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    if body.get("previous_response_id") or body.get("conversation"):
        raise rows.RowError(
            "its history lies on the server it was sent to, so it can't be replayed"
        )
    chat = {name: value for name, value in body.items() if name not in _RESPONSES_ONLY}
    chat["messages"] = _input_messages(body)
    chat["max_completion_tokens"] = chat.pop("max_output_tokens", None)
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    text = body.get("text")
    if isinstance(text, dict) and isinstance(text.get("format"), dict):
        chat["response_format"] = _response_format(text["format"])
    if isinstance(body.get("tools"), list):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
    return chat


def _input_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if isinstance(body.get("instructions"), str):
        found.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise rows.RowError('field "input": expected text or a list of messages')
    return [*found, *(_input_message(item) for item in given)]


def _input_message(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        raise rows.RowError('field "input": holds items that are not messages')
    content = item.get("content")
    if isinstance(content, list):
        content = [_text_part(part) for part in content]
    return {"role": item.get("role"), "content": content}


def _text_part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text")}
    return part


def _response_format(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") != "json_schema":
        return {"type": given.get("type")}
    schema = {name: value for name, value in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise rows.RowError('field "tools": holds a tool that only the original server has')
    function = {name: value for name, value in tool.items() if name not in ("type", "strict")}
    return {"type": "function", "function": function}


FORMAT = rows.Format("openai_batch", "OpenAI batch requests (JSONL)", matches, read)
