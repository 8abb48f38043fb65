"""Normalised requests on disk: one JSON object a line, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from runner.traffic.request import NormalisedRequest

_FIELDS = tuple(item.name for item in fields(NormalisedRequest))


def write_requests(path: Path | str, requests: Iterable[NormalisedRequest]) -> None:
    """Write ``requests`` to ``path``, readable by the owner only: it holds the clients' text."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        for request in requests:
            row = {name: getattr(request, name) for name in _FIELDS}
            file.write(json.dumps(row, ensure_ascii=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)


def load_requests(path: Path | str) -> list[NormalisedRequest]:
    """Read back what ``write_requests`` wrote."""
    with Path(path).open(encoding="utf-8") as file:
        return [_request(json.loads(line)) for line in file]


def _request(row: dict[str, Any]) -> NormalisedRequest:
    row["messages"] = tuple(row["messages"])
    if isinstance(row["prompt"], list):
        row["prompt"] = tuple(row["prompt"])
    return NormalisedRequest(**row)
