"""Normalised requests on disk: one JSON object a line, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from runner.files import whole_file
from runner.traffic.request import NormalisedRequest

_FIELDS = tuple(item.name for item in fields(NormalisedRequest))


def write_requests(path: Path | str, requests: Iterable[NormalisedRequest]) -> None:
    """Write ``requests`` to ``path``, readable by the owner only: it holds the clients' text."""
    with whole_file(Path(path), private=True) as file:
        for request in requests:
            row = {name: getattr(request, name) for name in _FIELDS}
            file.write(json.dumps(row, ensure_ascii=True) + "\n")


def load_requests(path: Path | str) -> list[NormalisedRequest]:
    """Read back what ``write_requests`` wrote, now or when a request had more fields."""
    with Path(path).open(encoding="utf-8") as file:
        return [_request(json.loads(line)) for line in file]


def _request(row: dict[str, Any]) -> NormalisedRequest:
    row["messages"] = tuple(row["messages"])
    if isinstance(row["prompt"], list):
        row["prompt"] = tuple(row["prompt"])
    return NormalisedRequest(**{name: row[name] for name in _FIELDS})
