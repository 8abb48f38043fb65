"""Measurements between the runner's dataclass and rows: COPY in, tuples out."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection

from calculator.measurement import Measurement as Measured
from calculator.measurement import Outcome
from webapp.experiments.models import Measurement

COLUMNS = (
    "request_id", "sequence", "category", "outcome", "scheduled_ns", "sent_ns", "done_ns",
    "first_byte_ns", "first_token_ns", "last_token_ns", "prompt_tokens", "cached_tokens",
    "output_tokens", "first_event_tokens", "chunks", "finish_reason", "error_kind",
    "first_reasoning_ns", "first_answer_ns", "retry_after_s", "open_loop", "marks",
)  # fmt: skip
"""In the order of the dataclass's fields, so that a row is its positional arguments."""
CHUNK_COLUMNS = ("chunk_gaps_us", "chunk_bytes", "chunk_tokens")
"""The fields that follow. No comparison reads them: they are a hundred times the rest."""

_TEXT_LIMITS = {"request_id": 200, "category": 80, "finish_reason": 40, "error_kind": 60}
_OUTCOME, _MARKS = COLUMNS.index("outcome"), COLUMNS.index("marks")


def storable(text: str, limit: int) -> str:
    """``text`` as PostgreSQL can keep it; one that doesn't fit becomes a stable short form."""
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    if clean == text and len(text) <= limit:
        return text
    mark = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{clean[: limit - len(mark) - 1]}~{mark}"


def request_key(request_id: str) -> str:
    """The id of a request as rows know it."""
    return storable(request_id, _TEXT_LIMITS["request_id"])


def copy_in(trial_id: int, measured: Iterable[Measured]) -> None:
    """All measurements of one trial by COPY, inside the caller's transaction."""
    columns = (*COLUMNS, *CHUNK_COLUMNS)
    names = ", ".join(("trial_id", *columns))
    table = Measurement._meta.db_table
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy,
    ):
        for item in measured:
            copy.write_row((trial_id, *(_value(item, name) for name in columns)))


def _value(item: Measured, name: str) -> Any:
    value = getattr(item, name)
    if name == "outcome":
        return value.value
    if isinstance(value, str):
        return storable(value, _TEXT_LIMITS[name])
    return list(value) if isinstance(value, (array, tuple)) else value


def load(
    trial_ids: Sequence[int], sequences: range | None = None
) -> dict[int, tuple[Measured, ...]]:
    """Measurements by trial, in send order, without their chunks.

    With ``sequences`` only those of these positions.
    """
    found: dict[int, list[Measured]] = {trial_id: [] for trial_id in trial_ids}
    rows = Measurement.objects.filter(trial_id__in=trial_ids).order_by("trial_id", "sequence")
    if sequences is not None:
        rows = rows.filter(sequence__gte=sequences.start, sequence__lt=sequences.stop)
    for trial_id, *values in rows.values_list("trial_id", *COLUMNS).iterator(chunk_size=10_000):
        found[trial_id].append(_measured(values))
    return {trial_id: tuple(items) for trial_id, items in found.items()}


def with_chunks(trial_id: int, request_id: str) -> Measured | None:
    """One measurement whole; None where the trial has none of that request."""
    rows = Measurement.objects.filter(trial_id=trial_id, request_id=request_id)
    values = rows.values_list(*COLUMNS, *CHUNK_COLUMNS).first()
    return None if values is None else _measured(list(values))


_OUTCOMES = {item.value: item for item in Outcome}


def _measured(values: list[Any]) -> Measured:
    values[_OUTCOME] = _OUTCOMES[values[_OUTCOME]]
    values[_MARKS] = tuple(values[_MARKS])
    return Measured(*values)
