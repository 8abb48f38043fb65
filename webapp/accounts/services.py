"""Changes to people and workspaces. Who may ask for them is for the gates to say."""

from __future__ import annotations

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from webapp.accounts.models import Membership, Role, User, Workspace
from webapp.core import audit
from webapp.core.errors import Refusal


@transaction.atomic
def create_user(email: str, password: str, name: str = "", *, actor: User | None = None) -> User:
    """A new person. Refused: no e-mail address, one that is taken, a weak password."""
    email = email.strip()
    try:
        validate_email(email)
    except ValidationError:
        raise Refusal("Give an e-mail address like name@example.com.") from None
    _check_password(password, User(email=email, name=name))
    try:
        with transaction.atomic():
            user = User.objects.create_user(email, password, name.strip())
    except IntegrityError:
        raise Refusal("Somebody already signs in with this e-mail address.") from None
    audit.record(actor, None, "user.created", user)
    return user


@transaction.atomic
def set_password(user: User, password: str, *, actor: User | None = None) -> None:
    """A new password; it ends the person's other sessions."""
    _check_password(password, user)
    user.set_password(password)
    user.save(update_fields=["password"])
    audit.record(actor or user, None, "user.password_changed", user)


@transaction.atomic
def create_workspace(name: str, user: User) -> Workspace:
    """A new workspace with ``user`` as its first consultant."""
    name = name.strip()
    if not name or len(name) > 120:
        raise Refusal("Give the workspace a name of 1 to 120 characters.")
    workspace = Workspace.objects.create(name=name)
    Membership.objects.create(workspace=workspace, user=user, role=Role.CONSULTANT)
    audit.record(user, workspace, "workspace.created", workspace)
    return workspace


@transaction.atomic
def add_member(
    workspace: Workspace, user: User, role: Role | str = Role.CLIENT, *, actor: User | None = None
) -> Membership:
    """Let a person in, or change the role. The last consultant cannot become a client."""
    if role not in Role.values:
        raise Refusal(f"A role is one of: {', '.join(Role.values)}.")
    # One change of members at a time, so that two cannot remove the last two consultants.
    Workspace.objects.select_for_update().get(pk=workspace.pk)
    others = Membership.objects.filter(workspace=workspace).exclude(user=user)
    if role != Role.CONSULTANT and not others.filter(role=Role.CONSULTANT).exists():
        raise Refusal("A workspace needs a consultant; make somebody else one first.")
    member, _ = Membership.objects.update_or_create(
        workspace=workspace, user=user, defaults={"role": role}
    )
    audit.record(actor, workspace, "member.set", user, role=str(role))
    return member


def _check_password(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Refusal(" ".join(error.messages)) from None
