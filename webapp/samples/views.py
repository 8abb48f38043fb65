"""Upload a sample, watch it being read, see what was understood, delete its text."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from webapp.accounts.access import may_write, owned, workspace_for
from webapp.accounts.people import signed_in
from webapp.core.errors import Refusal
from webapp.core.limits import limited_page
from webapp.core.throttle import UPLOAD
from webapp.core.uploads import upload_was_too_large
from webapp.samples import services
from webapp.samples.forms import UploadForm
from webapp.samples.models import Sample


@require_http_methods(["GET", "HEAD", "POST"])
@limited_page(UPLOAD)
def new(request: HttpRequest, public_id: UUID) -> HttpResponseBase:
    workspace = workspace_for(request.user, public_id, write=True)
    form = UploadForm()
    if request.method == "POST":
        files = request.FILES
        form = UploadForm(request.POST, files, too_large=upload_was_too_large(request))
        if form.is_valid():
            data = form.cleaned_data
            try:
                sample = services.upload(
                    workspace,
                    signed_in(request),
                    data["name"],
                    data["file"],
                    keep_days=data["keep_days"],
                )
            except Refusal as refusal:
                form.add_error("file", refusal.sentence)
            else:
                return redirect("sample", sample.public_id)
    context = {"workspace": workspace, "form": form}
    return render(request, "samples/new.html", context)


@require_safe
def detail(request: HttpRequest, public_id: UUID) -> HttpResponse:
    sample = owned(Sample, request.user, public_id)
    total = sum(sample.categories.values())
    by_size = sorted(sample.categories.items(), key=lambda item: (-item[1], item[0]))
    context = {
        "sample": sample,
        "may_change": may_write(request.user, sample.workspace),
        "skipped_count": sum(sample.skipped.values()),
        "categories": [{"name": n, "count": c, "share": c / total} for n, c in by_size if total],
    }
    return render(request, "samples/detail.html", context)


@require_safe
def status(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The polled fragment; once the sample was read, it sends the browser to the page."""
    sample = owned(Sample, request.user, public_id)
    response = render(request, "samples/_status.html", {"sample": sample})
    if sample.status != Sample.Status.READING:
        response["HX-Refresh"] = "true"
    return response


@require_POST
def delete(request: HttpRequest, public_id: UUID) -> HttpResponse:
    sample = owned(Sample, request.user, public_id, write=True)
    try:
        services.delete_text(sample, signed_in(request))
    except Refusal as refusal:
        messages.error(request, refusal.sentence)
    else:
        messages.success(request, "The text was deleted.")
    return redirect("sample", sample.public_id)
