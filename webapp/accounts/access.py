"""The gates. Whoever wants somebody's row fetches it here: not yours = 404, read-only = 403."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import Http404

from webapp.accounts.models import Membership, Role, User, Workspace

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

M = TypeVar("M", bound=models.Model)


def role_in(user: User | AnonymousUser, workspace: Workspace) -> Role | None:
    """The person's role in the workspace; None for a stranger and for nobody."""
    if not user.is_authenticated or not user.is_active:
        return None
    found = (
        Membership.objects.filter(workspace=workspace, user_id=user.pk)
        .values_list("role", flat=True)
        .first()
    )
    return None if found is None else Role(found)


def may_write(user: User | AnonymousUser, workspace: Workspace) -> bool:
    return role_in(user, workspace) == Role.CONSULTANT


def workspace_for(
    user: User | AnonymousUser, public_id: UUID | str, *, write: bool = False
) -> Workspace:
    """The workspace, if the person is in it. Http404 else; PermissionDenied for a client's write.

    A malformed id is as unknown as any other.
    """
    workspace = Workspace.objects.filter(public_id=_uuid(public_id)).first()
    if workspace is None:
        raise Http404
    _check(user, workspace, write)
    return workspace


def owned(
    model: type[M], user: User | AnonymousUser, public_id: UUID | str, *, write: bool = False
) -> M:
    """The row of a model that has ``workspace``, under the same rules as ``workspace_for``.

    A model whose workspace is somebody else's column says where in ``workspace_path``.
    """
    rows = model._default_manager.select_related(getattr(model, "workspace_path", "workspace"))
    row = rows.filter(public_id=_uuid(public_id)).first()
    if row is None:
        raise Http404
    workspace: Workspace = row.workspace  # type: ignore[attr-defined]
    _check(user, workspace, write)
    return row


def _check(user: User | AnonymousUser, workspace: Workspace, write: bool) -> None:
    role = role_in(user, workspace)
    if role is None:
        raise Http404
    if write and role != Role.CONSULTANT:
        raise PermissionDenied("Clients read; ask a consultant of this workspace to change it.")


def _uuid(public_id: UUID | str) -> UUID:
    try:
        return public_id if isinstance(public_id, UUID) else UUID(public_id)
    except ValueError:
        raise Http404 from None
