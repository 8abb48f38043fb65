"""The gates, as owner, team-mate, stranger and nobody."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.utils import timezone

from tests.webapp.people import People
from webapp.accounts import access, selectors
from webapp.accounts.models import Membership, Role, User
from webapp.samples.models import Sample


@pytest.fixture
def sample(people: People) -> Sample:
    return Sample.objects.create(
        workspace=people.workspace, name="sample", delete_after=timezone.localdate()
    )


def _person(people: People, who: str) -> User | AnonymousUser:
    return AnonymousUser() if who == "anonymous" else getattr(people, who)


@pytest.mark.parametrize(
    ("who", "write", "refused"),
    [
        ("consultant", False, None),
        ("consultant", True, None),
        ("client", False, None),
        ("client", True, PermissionDenied),
        ("stranger", False, Http404),
        ("stranger", True, Http404),
        ("anonymous", False, Http404),
        ("anonymous", True, Http404),
    ],
)
def test_gates(
    people: People, sample: Sample, who: str, write: bool, refused: type[Exception] | None
) -> None:
    user = _person(people, who)
    workspace_id = people.workspace.public_id
    if refused is None:
        assert access.owned(Sample, user, sample.public_id, write=write) == sample
        assert access.workspace_for(user, workspace_id, write=write) == people.workspace
        return
    with pytest.raises(refused):
        access.owned(Sample, user, sample.public_id, write=write)
    with pytest.raises(refused):
        access.workspace_for(user, workspace_id, write=write)


@pytest.mark.parametrize("public_id", [uuid.uuid4(), "not-a-uuid", ""])
def test_unknown_ids_are_not_found(people: People, public_id: uuid.UUID | str) -> None:
    with pytest.raises(Http404):
        access.workspace_for(people.consultant, public_id)
    with pytest.raises(Http404):
        access.owned(Sample, people.consultant, public_id)


def test_a_person_who_was_switched_off_has_no_role(people: People) -> None:
    people.consultant.is_active = False
    assert access.role_in(people.consultant, people.workspace) is None


def test_superusers_pass_no_gate(people: People, sample: Sample) -> None:
    root = User.objects.create_superuser("root@example.com", "a-long-test-password-7")
    with pytest.raises(Http404):
        access.owned(Sample, root, sample.public_id)


def test_roles_and_lists(people: People) -> None:
    assert access.role_in(people.consultant, people.workspace) == Role.CONSULTANT
    assert access.role_in(people.client, people.workspace) == Role.CLIENT
    assert access.may_write(people.consultant, people.workspace)
    assert not access.may_write(people.client, people.workspace)
    assert list(selectors.workspaces_of(people.client)) == [people.workspace]
    members = [member.user for member in selectors.members_of(people.workspace)]
    assert members == [people.consultant, people.client]


def test_membership_is_what_counts(people: People) -> None:
    Membership.objects.filter(user=people.client).delete()
    with pytest.raises(Http404):
        access.workspace_for(people.client, people.workspace.public_id)
