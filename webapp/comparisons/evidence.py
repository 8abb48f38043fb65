"""How a number came from its requests: the rows behind one load level, and one request's chunks.

The result page shows documents; these reads go back to the measurements, a page of them at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from django.db.models import Count, Q, Sum

from calculator.effects import LATENCIES
from calculator.measurement import MARKS, Measurement, Outcome
from runner.plan import ExperimentPlan
from webapp.comparisons.models import Comparison
from webapp.core.charts import Document, Figure
from webapp.experiments import measurements
from webapp.experiments.models import Experiment, Trial
from webapp.experiments.models import Measurement as Row
from webapp.experiments.states import TRIAL_MEASURED

REQUESTS_A_PAGE = 50
MOST_CHUNKS = 2000
SIDES = ("baseline", "candidate")


@dataclass(frozen=True, slots=True)
class Start:
    """One trial: the level on one server start of one arm. Rates are None where unknown."""

    trial: Trial
    side: str
    block: int
    left_out: list[str]
    """Codes of why it enters no figure; empty: it does."""
    completed: int
    failed: int
    output_tokens: int | None
    usd_per_request: float | None

    @property
    def requests_per_s(self) -> float | None:
        return self.completed / self.trial.duration_s if self.trial.duration_s else None

    @property
    def output_tokens_per_s(self) -> float | None:
        if self.output_tokens is None or not self.trial.duration_s:
            return None
        return self.output_tokens / self.trial.duration_s


@dataclass(frozen=True, slots=True)
class Cell:
    """One request on one start of each arm; None where it was not measured there."""

    block: int
    before_trial: Trial
    after_trial: Trial
    before: Measurement | None
    after: Measurement | None
    before_ms: float | None
    after_ms: float | None

    @property
    def ratio(self) -> float | None:
        return self.after_ms / self.before_ms if self.before_ms and self.after_ms else None


@dataclass(frozen=True, slots=True)
class Pair:
    """One request over all starts."""

    request_id: str
    category: str | None
    cells: list[Cell]

    @property
    def ratio(self) -> float | None:
        """Geometric mean over the starts; None where no start completed it in both arms."""
        logs = [math.log(cell.ratio) for cell in self.cells if cell.ratio]
        return math.exp(sum(logs) / len(logs)) if logs else None


def starts(row: Comparison, plan: ExperimentPlan, level: Document) -> list[Start]:
    """Every measured trial of the level, in the order of their measuring."""
    arms = {row.document["baseline"]: "baseline", row.arm: "candidate"}
    left_out = {(out["arm"], out["run"]): list(out["reasons"]) for out in level["excluded"]}
    trials = list(
        Trial.objects.filter(
            run__experiment_id=row.experiment_id,
            run__arm__in=arms,
            state__in=TRIAL_MEASURED,
            concurrency=level["concurrency"],
        )
        .select_related("run")
        .order_by("run__index", "index")
    )
    ok = Q(outcome=Outcome.OK.value)
    totals: dict[int, dict[str, Any]] = {
        total["trial_id"]: dict(total)
        for total in Row.objects.filter(trial__in=trials)
        .values("trial_id")
        .annotate(
            sent=Count("pk"),
            completed=Count("pk", filter=ok),
            counted=Count("output_tokens", filter=ok),
            tokens=Sum("output_tokens", filter=ok),
        )
    }
    found = []
    for trial in trials:
        total = totals.get(trial.pk) or dict.fromkeys(("sent", "completed", "counted"), 0)
        hours = (trial.duration_s or 0.0) / 3600
        cost = float(plan.price.usd_per_hour) * hours
        found.append(
            Start(
                trial=trial,
                side=arms[trial.run.arm],
                block=trial.run.block,
                left_out=left_out.get((trial.run.arm, trial.run.index), []),
                completed=total["completed"],
                failed=total["sent"] - total["completed"],
                output_tokens=total.get("tokens")
                if total["counted"] == total["completed"]
                else None,
                usd_per_request=cost / total["completed"] if total["completed"] else None,
            )
        )
    return found


def pairs(found: Sequence[Start], metric: str, sequences: range | None = None) -> Iterator[Pair]:
    """The requests of the level that are at these positions, with what each start measured.

    The schedule sends the same requests in the same order on every start.
    """
    if metric not in LATENCIES:
        raise ValueError(f"{metric} is made of whole trials, not of requests")
    used = {(start.block, start.side): start.trial for start in found if not start.left_out}
    blocks = sorted(
        block for block, side in used if side == "baseline" and (block, "candidate") in used
    )
    loaded = measurements.load(
        [used[block, side].pk for block in blocks for side in SIDES], sequences
    )
    by_request = {
        trial_id: {measured.request_id: measured for measured in items}
        for trial_id, items in loaded.items()
    }
    names = {m.request_id: m.category for items in loaded.values() for m in items}
    for request_id, category in names.items():
        cells = []
        for block in blocks:
            trials = used[block, "baseline"], used[block, "candidate"]
            before, after = (by_request[trial.pk].get(request_id) for trial in trials)
            times = _completed(before, metric), _completed(after, metric)
            cells.append(Cell(block, *trials, before, after, *times))
        yield Pair(request_id, category, cells)


def _completed(measured: Measurement | None, metric: str) -> float | None:
    if measured is None or not measured.ok:
        return None
    value: float | None = getattr(measured, metric)
    return value


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event with text. ``at_ms`` counts from when latencies count."""

    number: int
    at_ms: float
    gap_ms: float
    bytes: int
    tokens: int | None
    tokens_so_far: int | None


def chunks(measured: Measurement) -> list[Chunk]:
    found = []
    at_us = so_far = 0
    unknown: list[int | None] = [None] * len(measured.chunk_gaps_us)
    tokens = list(measured.chunk_tokens) or unknown
    for number, (gap_us, size, count) in enumerate(
        zip(measured.chunk_gaps_us, measured.chunk_bytes, tokens, strict=True), 1
    ):
        at_us += gap_us
        so_far += count or 0
        found.append(
            Chunk(
                number, at_us / 1000, gap_us / 1000, size, count, None if count is None else so_far
            )
        )
    return found


def request_context(experiment: Experiment, trial: Trial, measured: Measurement) -> dict[str, Any]:
    """What the page of one measured request shows, beside the same request in the other arm."""
    listed = chunks(measured)
    return {
        "trial": trial,
        "measured": measured,
        "chunks": listed[:MOST_CHUNKS],
        "chunks_left_out": max(0, len(listed) - MOST_CHUNKS),
        "marks": [MARKS.get(mark, mark) for mark in measured.marks],
        "stamps": _stamps(measured),
        "figure": growth(_partners(experiment, trial, measured)),
    }


def _stamps(measured: Measurement) -> list[tuple[str, float | None]]:
    """(what happened, ms since the trial began)."""
    named = (
        ("should have gone out", measured.scheduled_ns),
        ("went out", measured.sent_ns),
        ("first byte of the answer", measured.first_byte_ns),
        ("first reasoning", measured.first_reasoning_ns),
        ("first token", measured.first_token_ns),
        ("first answer token", measured.first_answer_ns),
        ("last token", measured.last_token_ns),
        ("end of the stream", measured.done_ns),
    )
    return [(name, None if at_ns is None else at_ns / 1e6) for name, at_ns in named]


def _partners(
    experiment: Experiment, trial: Trial, measured: Measurement
) -> list[tuple[str, str, Measurement]]:
    """(arm, role, measurement) of this request in this block, the baseline first."""
    others = Trial.objects.filter(
        run__experiment=experiment,
        run__block=trial.run.block,
        concurrency=trial.concurrency,
        state__in=TRIAL_MEASURED,
    ).select_related("run")
    methods = {arm["name"]: arm["method"] for arm in experiment.plan["arms"]}
    roles = iter(("candidate", "second", "third"))
    found = []
    for other in sorted(others, key=lambda one: methods.get(one.run.arm) != "none"):
        one = measurements.with_chunks(other.pk, measured.request_id)
        if one is not None and one.chunk_gaps_us:
            role = "baseline" if methods.get(other.run.arm) == "none" else next(roles, "third")
            found.append((other.run.arm, role, one))
    return found


def growth(partners: Sequence[tuple[str, str, Measurement]]) -> Figure | None:
    """Tokens on the screen against time; bytes of text where an arm does not say its tokens."""
    if not partners:
        return None
    by_tokens = all(one.chunk_tokens for _, _, one in partners)
    traces = []
    for arm, role, one in partners:
        listed = chunks(one)
        sizes = one.chunk_tokens if by_tokens else one.chunk_bytes
        unit = "tokens" if by_tokens else "bytes"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": arm,
                "x": [chunk.at_ms for chunk in listed],
                "y": list(accumulate(sizes)),
                "line": {"shape": "hv"},
                "hovertemplate": f"%{{y}} {unit} after %{{x:.0f}} ms<extra>{arm}</extra>",
                "meta": {"role": role},
            }
        )
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": "Since the request went out (ms)"}, "rangemode": "tozero"},
            "yaxis": {
                "title": {"text": "Tokens so far" if by_tokens else "Bytes of text so far"},
                "rangemode": "tozero",
            },
        },
    }
