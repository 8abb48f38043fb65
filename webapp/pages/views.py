"""Pages that show rows of several apps together. They stand above all apps and hold no rows."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from webapp.accounts.access import may_write, owned, workspace_for
from webapp.accounts.people import signed_in
from webapp.comparisons import selectors as comparison_selectors
from webapp.comparisons.models import Comparison
from webapp.comparisons.present import result_context
from webapp.core.errors import Refusal
from webapp.estimates import services as estimate_services
from webapp.experiments.models import Experiment
from webapp.experiments.states import ExperimentState
from webapp.experiments.views import review_context, running_context
from webapp.pages.overview import estimates_at_a_glance, experiments_at_a_glance
from webapp.samples import selectors as sample_selectors
from webapp.samples.models import Sample

RUNNING = (ExperimentState.QUEUED, ExperimentState.RUNNING, ExperimentState.ANALYSING)


@require_safe
def workspace(request: HttpRequest, public_id: UUID) -> HttpResponse:
    found = workspace_for(request.user, public_id)
    samples = list(sample_selectors.for_workspace(found))
    context = {
        "workspace": found,
        "may_change": may_write(request.user, found),
        "samples": samples,
        "has_ready_sample": any(
            sample.status == Sample.Status.READY and sample.replayable for sample in samples
        ),
        "experiments": experiments_at_a_glance(found),
        "estimates": estimates_at_a_glance(found),
    }
    return render(request, "pages/workspace.html", context)


@require_safe
def experiment(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The review of a draft, the progress of what runs, or the result, by its state."""
    found = owned(Experiment, request.user, public_id)
    context: dict[str, Any] = {
        "experiment": found,
        "may_change": may_write(request.user, found.workspace),
    }
    if found.state == ExperimentState.DRAFT:
        return render(request, "experiments/review.html", context | review_context(found))
    if found.state in RUNNING:
        return render(request, "experiments/running.html", context | running_context(found))
    context |= result_context(found, request.GET.get("arm"), request.GET.get("level"))
    return render(request, "comparisons/result.html", context)


@require_POST
def make_estimate(request: HttpRequest, public_id: UUID) -> HttpResponse:
    found = owned(Experiment, request.user, public_id, write=True)
    row = _comparison(found, request.POST.get("arm", ""))
    title = request.POST.get("title", "").strip() or f"{found.name}: {row.arm}"
    try:
        estimate = estimate_services.from_experiment(
            found, row.document, row.verdict, signed_in(request), title
        )
    except Refusal as refusal:
        messages.error(request, refusal.sentence)
        return redirect("experiment", found.public_id)
    return redirect("estimate", estimate.public_id)


def _comparison(found: Experiment, arm: str) -> Comparison:
    for row in comparison_selectors.for_experiment(found):
        if row.arm == arm:
            return row
    raise Http404
