from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models


class PublicRow(models.Model):
    """A row with an unguessable public id; addresses use ``public_id``, never the key."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True


class AuditEvent(models.Model):
    """One change, written in the transaction that made it. Never updated."""

    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    workspace_id = models.BigIntegerField(null=True, db_index=True)
    action = models.CharField(max_length=60)
    """Dotted, e.g. ``experiment.cancelled``."""
    object_kind = models.CharField(max_length=40)
    object_id = models.CharField(max_length=40)
    details = models.JSONField(default=dict, blank=True)
    """Counts, names and codes; never text of a sample and never a secret."""

    class Meta:
        ordering = ("-at", "-id")

    def __str__(self) -> str:
        return f"{self.action} {self.object_kind} {self.object_id}"
