from __future__ import annotations

from django.db import models

from webapp.accounts.models import User, Workspace
from webapp.core.models import PublicRow


class Sample(PublicRow):
    """An uploaded traffic file. The text lies in files under a random name, never in rows."""

    class Status(models.TextChoices):
        READING = "reading", "Reading"
        READY = "ready", "Ready"
        REFUSED = "refused", "Refused"
        DELETED = "deleted", "Text deleted"

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="samples")
    uploaded_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=200)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.READING)
    reason = models.TextField(blank=True)
    """Why it was refused, with the line; holds no text of the file."""
    size_bytes = models.BigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True)
    stored_name = models.CharField(max_length=64, blank=True)
    """Random name of the uploaded file and of its normalised requests under MEDIA_ROOT."""
    format = models.CharField(max_length=40, blank=True)
    rows = models.PositiveIntegerField(default=0)
    replayable = models.PositiveIntegerField(default=0)
    different_prompts = models.PositiveIntegerField(default=0)
    """Of the replayable ones; a run sends no prompt twice."""
    trace_only = models.PositiveIntegerField(default=0)
    skipped = models.JSONField(default=dict, blank=True)
    """{reason: count}"""
    rejected = models.JSONField(default=list, blank=True)
    """[{"line": n, "reason": text}], the first 50"""
    rejected_count = models.PositiveIntegerField(default=0)
    warnings = models.JSONField(default=list, blank=True)
    categories = models.JSONField(default=dict, blank=True)
    """{category: replayable requests}"""
    profile = models.JSONField(default=dict, blank=True)
    delete_after = models.DateField()

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.name
