"""Reads of people and workspaces."""

from __future__ import annotations

from django.db.models import QuerySet

from webapp.accounts.models import Membership, User, Workspace


def workspaces_of(user: User) -> QuerySet[Workspace]:
    """The workspaces that the person is in, by name."""
    return Workspace.objects.filter(membership__user=user).order_by("name", "pk")


def members_of(workspace: Workspace) -> QuerySet[Membership]:
    """Memberships with their people, consultants first."""
    rows = Membership.objects.filter(workspace=workspace).select_related("user")
    return rows.order_by("-role", "user__email")


def user_by_email(email: str) -> User | None:
    return User.objects.filter(email__iexact=email.strip()).first()
