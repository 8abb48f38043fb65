"""Pages of the evidence: which requests a number was made of, and how one of them came in."""

from __future__ import annotations

import csv
from collections.abc import Iterator
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


def _chosen(request: HttpRequest, experiment: Experiment) -> tuple[Comparison, Document]:
    """The arm and the level that the address asks for; what is not there falls back."""
    rows = for_experiment(experiment)
    row = next((row for row in rows if row.arm == request.GET.get("arm")), next(iter(rows), None))
    level = (
        None if row is None else chosen_level(row.document, row.verdict, request.GET.get("level"))
    )
    if row is None or level is None:
        raise Http404
    return row, level


def _metric(request: HttpRequest) -> str:
    metric = request.GET.get("metric", DEFAULT_METRIC)
    return metric if metric in LATENCIES else DEFAULT_METRIC


@require_safe
def evidence(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The starts and the requests behind the figures of one load level."""
    experiment = owned(Experiment, request.user, public_id)
    row, level = _chosen(request, experiment)
    metric = _metric(request)
    found = reads.starts(row, present.plan_of(experiment), level)
    requests = max((start.trial.requests for start in found), default=0)
    page = Paginator(range(requests), reads.REQUESTS_A_PAGE).get_page(request.GET.get("page"))
    positions = range(page.start_index() - 1, page.end_index()) if requests else range(0)
    context: dict[str, Any] = {
        "experiment": experiment,
        "comparison": row,
        "document": row.document,
        "level": level,
        "metric": metric,
        "metrics": LATENCIES,
        "effect": level["effects"].get(metric),
        "effects": level["effects"],
        "starts": found,
        "pairs": list(reads.pairs(found, metric, positions)),
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
    experiment = owned(Experiment, request.user, public_id)
    row, level = _chosen(request, experiment)
    metric = _metric(request)
    found = reads.starts(row, present.plan_of(experiment), level)

    def lines() -> Iterator[str]:
        writer = csv.writer(_Echo())
        yield writer.writerow(
            ["request", "category", "start", f"baseline_{metric}", f"candidate_{metric}"]
        )
        for pair in reads.pairs(found, metric):
            for cell in pair.cells:
                yield writer.writerow(
                    [
                        _plain(pair.request_id), _plain(pair.category or ""), cell.block + 1,
                        cell.before_ms, cell.after_ms,
                    ]
                )  # fmt: skip

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{metric}-{level["concurrency"]}.csv"'
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
