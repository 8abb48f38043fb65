"""Pages of the evidence: which requests a number was made of, and how one of them came in."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from calculator.effects import LATENCIES
from webapp.accounts.access import owned
from webapp.comparisons import evidence as reads
from webapp.comparisons.models import Comparison
from webapp.comparisons.present import chosen_level
from webapp.comparisons.selectors import for_experiment
from webapp.core.charts import Document
from webapp.experiments import measurements, present
from webapp.experiments.models import Experiment, Trial
from webapp.experiments.models import Measurement as Row

DEFAULT_METRIC = "e2e_ms"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the address of a page of evidence names."""

    experiment: Experiment
    comparison: Comparison
    level: Document
    metric: str
    starts: list[reads.Start]


def _asked(request: HttpRequest, public_id: UUID) -> _Asked:
    """An arm, level or metric that is not there falls back; 404 where there is none at all."""
    experiment = owned(Experiment, request.user, public_id)
    rows = for_experiment(experiment)
    row = next((row for row in rows if row.arm == request.GET.get("arm")), next(iter(rows), None))
    level = (
        None if row is None else chosen_level(row.document, row.verdict, request.GET.get("level"))
    )
    if row is None or level is None:
        raise Http404
    metric = request.GET.get("metric", DEFAULT_METRIC)
    found = reads.starts(row, present.plan_of(experiment), level)
    return _Asked(experiment, row, level, metric if metric in LATENCIES else DEFAULT_METRIC, found)


@require_safe
def evidence(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The starts and the requests behind the figures of one load level."""
    asked = _asked(request, public_id)
    requests = max((start.trial.requests for start in asked.starts), default=0)
    page = Paginator(range(requests), reads.REQUESTS_A_PAGE).get_page(request.GET.get("page"))
    positions = range(page.start_index() - 1, page.end_index()) if requests else range(0)
    context: dict[str, Any] = {
        "experiment": asked.experiment,
        "comparison": asked.comparison,
        "document": asked.comparison.document,
        "level": asked.level,
        "metric": asked.metric,
        "metrics": LATENCIES,
        "effect": asked.level["effects"].get(asked.metric),
        "effects": asked.level["effects"],
        "starts": asked.starts,
        "pairs": list(reads.pairs(asked.starts, asked.metric, positions)),
        "page": page,
    }
    return render(request, "comparisons/evidence.html", context)


class _Echo:
    """csv writes to something; the response takes the line itself."""

    def write(self, line: str) -> str:
        return line


@require_safe
def evidence_csv(request: HttpRequest, public_id: UUID) -> StreamingHttpResponse:
    """Every request of the level, for whoever wants to compute it again."""
    asked = _asked(request, public_id)
    metric = asked.metric

    def lines() -> Iterator[str]:
        writer = csv.writer(_Echo())
        yield writer.writerow(
            ["request", "category", "start", f"baseline_{metric}", f"candidate_{metric}"]
        )
        for pair in reads.pairs(asked.starts, metric):
            for cell in pair.cells:
                yield writer.writerow(
                    [
                        _plain(pair.request_id), _plain(pair.category or ""), cell.block + 1,
                        cell.before_ms, cell.after_ms,
                    ]
                )  # fmt: skip

    load = asked.level["concurrency"]
    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{metric}-{load}.csv"'
    return response


def _plain(text: str) -> str:
    """Text that no spreadsheet takes for a formula: ids are whatever a client's file says."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


@require_safe
def request_chunks(
    request: HttpRequest, public_id: UUID, run: int, trial: int, sequence: int
) -> HttpResponse:
    """One request of one trial: its time stamps and every chunk."""
    experiment = owned(Experiment, request.user, public_id)
    rows = Row.objects.filter(
        trial__run__experiment=experiment,
        trial__run__index=run,
        trial__index=trial,
        sequence=sequence,
    )
    found = rows.order_by("-trial__run__attempt").values_list("trial_id", "request_id").first()
    measured = None if found is None else measurements.with_chunks(*found)
    if found is None or measured is None:
        raise Http404
    held = Trial.objects.select_related("run").get(pk=found[0])
    context = {"experiment": experiment, **reads.request_context(experiment, held, measured)}
    return render(request, "comparisons/request.html", context)
