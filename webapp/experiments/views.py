"""Set up an experiment, start it, watch it, cancel it, resume it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from webapp.accounts.access import owned, workspace_for
from webapp.accounts.models import User
from webapp.accounts.people import signed_in
from webapp.core.errors import Refusal
from webapp.core.limits import limited_page
from webapp.core.throttle import START
from webapp.experiments import present, selectors, services
from webapp.experiments.forms import ExperimentForm
from webapp.experiments.models import Experiment
from webapp.experiments.states import ExperimentState

UNDER_WAY = (ExperimentState.QUEUED, ExperimentState.RUNNING, ExperimentState.ANALYSING)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, public_id: UUID) -> HttpResponse:
    workspace = workspace_for(request.user, public_id, write=True)
    form = ExperimentForm(workspace, initial={"sample": request.GET.get("sample", "")})
    if request.method == "POST":
        form = ExperimentForm(workspace, request.POST)
        if form.is_valid():
            data = form.cleaned_data
            try:
                experiment = services.draft(
                    workspace,
                    signed_in(request),
                    data["sample"],
                    data["target"],
                    data["name"],
                    form.plan(),
                )
            except Refusal as refusal:
                form.add_error(None, refusal.sentence)
            else:
                return redirect("experiment", experiment.public_id)
    context = {"workspace": workspace, "form": form}
    return render(request, "experiments/new.html", context)


def review_context(experiment: Experiment) -> dict[str, Any]:
    """What the review page of a draft shows."""
    plan = present.plan_of(experiment)
    rows = present.planned_rows(plan, experiment.sample.different_prompts)
    return {
        "plan": plan,
        "estimated_usd": present.estimated_usd(experiment, plan),
        "runs": rows,
        "request_count": len(rows) * sum(level.requests for level in plan.levels),
    }


def running_context(experiment: Experiment) -> dict[str, Any]:
    """What the page of an experiment under way shows."""
    return {"plan": present.plan_of(experiment), "progress": selectors.progress(experiment)}


@require_safe
def progress(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The polled fragment; once the experiment has ended, it sends the browser to the result."""
    experiment = owned(Experiment, request.user, public_id)
    context = {"experiment": experiment, "progress": selectors.progress(experiment)}
    response = render(request, "experiments/_progress.html", context)
    if experiment.state not in UNDER_WAY:
        response["HX-Refresh"] = "true"
    return response


@require_POST
@limited_page(START)
def start(request: HttpRequest, public_id: UUID) -> HttpResponseBase:
    return _change(request, public_id, services.queue)


@require_POST
@limited_page(START)
def resume(request: HttpRequest, public_id: UUID) -> HttpResponseBase:
    return _change(request, public_id, services.resume)


@require_http_methods(["GET", "HEAD", "POST"])
def cancel(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """GET asks whether it is meant; POST does it."""
    if request.method == "POST":
        return _change(request, public_id, services.cancel)
    experiment = owned(Experiment, request.user, public_id, write=True)
    return render(request, "experiments/cancel.html", {"experiment": experiment})


def _change(
    request: HttpRequest, public_id: UUID, service: Callable[[Experiment, User], None]
) -> HttpResponse:
    experiment = owned(Experiment, request.user, public_id, write=True)
    try:
        service(experiment, signed_in(request))
    except Refusal as refusal:
        messages.error(request, refusal.sentence)
    return redirect("experiment", experiment.public_id)
