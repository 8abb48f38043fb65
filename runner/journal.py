"""An append-only record of one trial on disk, readable after ``kill -9``.

One JSON object a line: a header, the measurements in flushed batches, an end marker. Without the
end marker the trial was cut off and does not count; a half-written last line is ignored.
Holds no prompt and no answer text.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from calculator.measurement import (
    ClientHealth,
    Measurement,
    Outcome,
    SpeculationCounters,
    TrialRecord,
)

SCHEMA_VERSION = 1
_BATCH = 200


@dataclass(frozen=True, slots=True)
class TrialHeader:
    """Which trial of which run a journal is about."""

    arm: str
    run: int
    block: int
    trial: int
    concurrency: int
    requests: int


@dataclass(frozen=True, slots=True)
class JournalledTrial:
    """What a journal says. ``ended`` False: the writer was killed, measure the trial again."""

    header: TrialHeader
    measurements: tuple[Measurement, ...] = ()
    ended: bool = False
    duration_s: float = 0.0
    counters: SpeculationCounters | None = None
    client: ClientHealth | None = None
    invalid_reasons: list[str] = field(default_factory=list)

    def record(self) -> TrialRecord:
        """The trial as ``calculator`` takes it."""
        return TrialRecord(
            arm=self.header.arm,
            run=self.header.run,
            block=self.header.block,
            concurrency=self.header.concurrency,
            duration_s=self.duration_s,
            measurements=self.measurements,
            counters=self.counters,
            client=self.client,
            invalid_reasons=tuple(self.invalid_reasons),
        )


def trial_path(workdir: Path, trial: int) -> Path:
    """Where the journal of a run's trial lies."""
    return workdir / f"trial-{trial:03d}.jsonl"


class TrialJournal:
    """Writes one trial. A new journal of the same path replaces the old one."""

    def __init__(self, path: Path, header: TrialHeader) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("w", encoding="utf-8")
        self._write({"type": "trial", "schema_version": SCHEMA_VERSION, **asdict(header)})
        self._file.flush()

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Append measurements; every batch is flushed to the system."""
        for start in range(0, len(measurements), _BATCH):
            for measurement in measurements[start : start + _BATCH]:
                self._write({"type": "measurement", **row_of(measurement)})
            self._file.flush()

    def end(
        self,
        *,
        duration_s: float,
        counters: SpeculationCounters | None,
        client: ClientHealth | None,
        invalid_reasons: Sequence[str] = (),
    ) -> None:
        """Append the end marker and put all of it on the disk."""
        self._write(
            {
                "type": "end",
                "duration_s": duration_s,
                "counters": None if counters is None else asdict(counters),
                "client": None if client is None else asdict(client),
                "invalid_reasons": list(invalid_reasons),
            }
        )
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_trial(path: Path) -> JournalledTrial | None:
    """What ``path`` holds up to the first line that is not whole; None without a header."""
    try:
        with path.open("rb") as lines:
            return _read(_whole(lines))
    except FileNotFoundError:
        return None


def _read(rows: Iterator[dict[str, Any]]) -> JournalledTrial | None:
    first = next(rows, {})
    if first.pop("type", None) != "trial" or first.pop("schema_version", None) != SCHEMA_VERSION:
        return None
    header = TrialHeader(**first)
    measurements: list[Measurement] = []
    for row in rows:
        kind = row.pop("type", None)
        if kind == "measurement":
            measurements.append(measurement_from(row))
        elif kind == "end":
            return JournalledTrial(
                header,
                tuple(measurements),
                ended=True,
                duration_s=row["duration_s"],
                counters=counters_from(row["counters"]),
                client=None if row["client"] is None else ClientHealth(**row["client"]),
                invalid_reasons=row["invalid_reasons"],
            )
    return JournalledTrial(header, tuple(measurements))


# Arrays, as a tuple of 100 chunks is ten times as large.
_ARRAYS = {"chunk_gaps_us": "I", "chunk_bytes": "I", "chunk_tokens": "I"}


def row_of(measurement: Measurement) -> dict[str, Any]:
    """A measurement as a plain dict. What was never said is left out."""
    row: dict[str, Any] = {}
    for item in fields(Measurement):
        value = getattr(measurement, item.name)
        if item.name in _ARRAYS:
            value = list(value)
        if value != item.default and not (item.name in _ARRAYS and not value):
            row[item.name] = value
    return row


def measurement_from(row: dict[str, Any]) -> Measurement:
    """A measurement from its plain dict."""
    read = {**row, "outcome": Outcome(row["outcome"]), "marks": tuple(row.get("marks", ()))}
    for name, code in _ARRAYS.items():
        if read.get(name):
            read[name] = array(code, read[name])
    return Measurement(**read)


def counters_from(row: dict[str, Any] | None) -> SpeculationCounters | None:
    """Counters from their plain dict; None stays None."""
    if row is None:
        return None
    positions = tuple(row["accepted_per_position"])
    return SpeculationCounters(**{**row, "accepted_per_position": positions})


def _whole(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Row by row: all rows of a long trial at once, chunks included, would take a lot of memory."""
    for line in lines:
        try:
            row = json.loads(line) if line.endswith(b"\n") else None  # without it, it was cut
        except ValueError:
            return
        if not isinstance(row, dict):
            return
        yield row
