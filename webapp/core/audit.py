"""Who changed what. Written in the transaction of the change, and never changed after."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser
from django.db import models

from webapp.core.models import AuditEvent


def record(
    actor: AbstractBaseUser | AnonymousUser | None,
    workspace: models.Model | None,
    action: str,
    obj: models.Model,
    **details: Any,
) -> AuditEvent:
    """Write one event. ``actor`` None is the site itself (a deletion date, a lost worker).

    ``action`` is dotted (``sample.uploaded``). ``details`` are counts, names and codes that JSON
    can hold; never text of a sample and never a secret.
    """
    public_id = getattr(obj, "public_id", None)
    return AuditEvent.objects.create(
        actor_id=getattr(actor, "pk", None),
        workspace_id=None if workspace is None else workspace.pk,
        action=action,
        object_kind=obj._meta.model_name or "",
        object_id=str(public_id if public_id is not None else obj.pk),
        details=details,
    )
