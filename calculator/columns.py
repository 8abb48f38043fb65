"""Trials as columns: what a comparison needs of each request, in arrays instead of objects.

Each trial is turned into columns as it comes, so that the trials of an experiment never lie in
memory as one object per request. A column has shape (requests,), in the order of the trial's
measurements. NaN is unknown, never zero. Definitions stay with ``measurement.Measurement``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calculator.measurement import (
    NS_PER_MS,
    ClientHealth,
    Measurement,
    Outcome,
    SpeculationCounters,
    TrialRecord,
)
from calculator.statistics import Floats

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

OUTCOMES = tuple(Outcome)
NO_CATEGORY = -1


@dataclass(frozen=True, slots=True)
class TrialColumns:
    """One trial; what is not a column is as in ``TrialRecord``."""

    arm: str
    run: int
    block: int
    concurrency: int
    duration_s: float
    counters: SpeculationCounters | None
    client: ClientHealth | None
    invalid_reasons: tuple[str, ...]
    open_loop: bool
    request: Ints
    """Number of the request: the same one in all trials of one ``Trials``."""
    category: Ints
    """Index in ``Trials.categories``, or NO_CATEGORY."""
    outcome: NDArray[np.int8]
    """Index in OUTCOMES."""
    scheduled_ns: Ints
    sent_ns: Ints
    done_ns: Ints
    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    chunks: Ints

    @property
    def sent(self) -> int:
        """Number of requests, however they ended."""
        return len(self.request)

    @property
    def ok(self) -> Bools:
        ended_well: Bools = self.outcome == OUTCOMES.index(Outcome.OK)
        return ended_well

    @property
    def held_ms(self) -> Floats:
        """From the send to the end of the stream: how long the request was in flight."""
        held: Floats = (self.done_ns - self.sent_ns) / NS_PER_MS
        return held

    def completed(self, metric: str) -> Floats:
        """(completed requests,) the column named ``metric`` of those that ended as ``ok``."""
        column: Floats = getattr(self, metric)
        return column[self.ok]


@dataclass(frozen=True, slots=True)
class Trials:
    """Trials by columns, with one numbering of their requests and categories."""

    columns: tuple[TrialColumns, ...]
    categories: tuple[str, ...]

    @classmethod
    def of(cls, trials: Trials | Iterable[TrialRecord]) -> Trials:
        """Takes one trial after the other and keeps none of them."""
        if isinstance(trials, Trials):
            return trials
        requests: dict[str, int] = {}
        categories: dict[str | None, int] = {None: NO_CATEGORY}
        columns = tuple(_columns(trial, requests, categories) for trial in trials)
        return cls(columns, tuple(name for name in categories if name is not None))


def columns_of(trial: TrialRecord) -> TrialColumns:
    """One trial alone."""
    return Trials.of([trial]).columns[0]


def numbers(trials: Iterable[TrialColumns]) -> Ints:
    """(requests,) the different requests that any of ``trials`` sent, ascending."""
    sent = [trial.request for trial in trials]
    return np.unique(np.concatenate(sent)) if sent else np.empty(0, np.int64)


def matrix(requests: Ints, trials: Sequence[TrialColumns], metric: str) -> Floats:
    """(requests, trials) the metric of the ``requests`` (ascending numbers) that were completed;
    NaN where one was not, or where its value is unknown."""
    values = np.full((len(requests), len(trials)), np.nan)
    for column, trial in enumerate(trials):
        number = trial.request[trial.ok]
        wanted = np.isin(number, requests)
        rows = np.searchsorted(requests, number[wanted])
        values[rows, column] = trial.completed(metric)[wanted]
    return values


def _columns(
    trial: TrialRecord, requests: dict[str, int], categories: dict[str | None, int]
) -> TrialColumns:
    """``requests`` and ``categories`` are numbered by first sight, new ones are added."""
    measured = trial.measurements
    outcomes = {outcome: index for index, outcome in enumerate(OUTCOMES)}

    def ints(name: str) -> Ints:
        return np.array([getattr(m, name) for m in measured], dtype=np.int64)

    def floats(name: str) -> Floats:
        return np.array([getattr(m, name) for m in measured], dtype=np.float64)  # None becomes NaN

    def category(m: Measurement) -> int:
        return categories.setdefault(m.category, len(categories) + NO_CATEGORY)

    return TrialColumns(
        arm=trial.arm,
        run=trial.run,
        block=trial.block,
        concurrency=trial.concurrency,
        duration_s=trial.duration_s,
        counters=trial.counters,
        client=trial.client,
        invalid_reasons=trial.invalid_reasons,
        open_loop=any(m.open_loop for m in measured),
        request=np.array(
            [requests.setdefault(m.request_id, len(requests)) for m in measured], dtype=np.int64
        ),
        category=np.array([category(m) for m in measured], dtype=np.int64),
        outcome=np.array([outcomes[m.outcome] for m in measured], dtype=np.int8),
        scheduled_ns=ints("scheduled_ns"),
        sent_ns=ints("sent_ns"),
        done_ns=ints("done_ns"),
        ttft_ms=floats("ttft_ms"),
        tpot_ms=floats("tpot_ms"),
        e2e_ms=floats("e2e_ms"),
        prompt_tokens=floats("prompt_tokens"),
        output_tokens=floats("output_tokens"),
        chunks=ints("chunks"),
    )
