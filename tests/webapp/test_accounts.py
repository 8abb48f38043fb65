"""People and workspaces: made, changed, refused; and signing in."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from django.contrib.auth import authenticate
from django.core.management import CommandError, call_command
from django.test import RequestFactory

from tests.webapp.people import PASSWORD, People
from webapp.accounts import services
from webapp.accounts.backends import sign_in_was_throttled
from webapp.accounts.models import Membership, Role, User, Workspace
from webapp.core import throttle
from webapp.core.errors import Refusal
from webapp.core.models import AuditEvent


@pytest.mark.parametrize(
    ("email", "password", "words"),
    [
        ("not an address", PASSWORD, "Give an e-mail address"),
        ("new@example.com", "short", "too short"),
        ("new@example.com", "password1234", "too common"),
        ("CONSULTANT@example.com", PASSWORD, "already signs in"),
    ],
)
def test_create_user_refuses(people: People, email: str, password: str, words: str) -> None:
    before = User.objects.count()
    with pytest.raises(Refusal, match=words):
        services.create_user(email, password)
    assert User.objects.count() == before


def test_a_new_password_replaces_the_old(people: People) -> None:
    services.set_password(people.client, "another-long-password-8")
    assert authenticate(None, email="client@example.com", password=PASSWORD) is None
    found = authenticate(None, email="client@example.com", password="another-long-password-8")
    assert found == people.client
    with pytest.raises(Refusal):
        services.set_password(people.client, "short")


def test_the_last_consultant_stays(people: People) -> None:
    with pytest.raises(Refusal, match="needs a consultant"):
        services.add_member(people.workspace, people.consultant, Role.CLIENT)
    services.add_member(people.workspace, people.stranger, Role.CONSULTANT)
    services.add_member(people.workspace, people.consultant, Role.CLIENT)
    rows = Membership.objects.filter(workspace=people.workspace)
    assert dict(rows.values_list("user__email", "role")) == {
        "consultant@example.com": "client",
        "client@example.com": "client",
        "stranger@example.com": "consultant",
    }


@pytest.mark.parametrize("name", ["", "   ", "x" * 121])
def test_a_workspace_needs_a_name(people: People, name: str) -> None:
    with pytest.raises(Refusal, match="1 to 120"):
        services.create_workspace(name, people.consultant)


def test_an_unknown_role_is_refused(people: People) -> None:
    with pytest.raises(Refusal, match="consultant, client"):
        services.add_member(people.workspace, people.stranger, "owner")


def test_changes_leave_audit_rows(people: People) -> None:
    actions = set(AuditEvent.objects.values_list("action", flat=True))
    assert {"user.created", "workspace.created", "member.set"} <= actions
    row = AuditEvent.objects.get(action="workspace.created", workspace_id=people.workspace.pk)
    assert row.actor == people.consultant
    assert row.object_id == str(people.workspace.public_id)


@pytest.mark.parametrize("email", ["consultant@example.com", " Consultant@EXAMPLE.com "])
def test_sign_in_ignores_case(people: People, rf: RequestFactory, email: str) -> None:
    request = rf.post("/sign-in")
    assert authenticate(request, email=email, password=PASSWORD) == people.consultant


def test_sign_in_is_refused(people: People, rf: RequestFactory) -> None:
    request = rf.post("/sign-in")
    assert authenticate(request, email="consultant@example.com", password="wrong") is None
    assert authenticate(request, email="nobody@example.com", password=PASSWORD) is None
    people.consultant.is_active = False
    people.consultant.save(update_fields=["is_active"])
    assert authenticate(request, email="consultant@example.com", password=PASSWORD) is None
    assert not sign_in_was_throttled(request)


def test_wrong_passwords_run_out(people: People, rf: RequestFactory) -> None:
    email = "consultant@example.com"
    for _ in range(throttle.LOGIN_PERSON.burst):
        assert authenticate(rf.post("/sign-in"), email=email, password="wrong") is None
    request = rf.post("/sign-in")
    assert authenticate(request, email=email.upper(), password=PASSWORD) is None
    assert sign_in_was_throttled(request)
    other = authenticate(rf.post("/sign-in"), email="client@example.com", password=PASSWORD)
    assert other == people.client


def test_right_passwords_are_not_counted(people: People, rf: RequestFactory) -> None:
    for _ in range(throttle.LOGIN_PERSON.burst + 5):
        request = rf.post("/sign-in")
        assert authenticate(request, email="client@example.com", password=PASSWORD)


def test_one_address_cannot_try_everybody(people: People, rf: RequestFactory) -> None:
    for number in range(throttle.LOGIN_ADDRESS.burst):
        email = f"nobody{number}@example.com"
        assert authenticate(rf.post("/sign-in"), email=email, password="wrong") is None
    request = rf.post("/sign-in")
    assert authenticate(request, email="client@example.com", password=PASSWORD) is None
    assert sign_in_was_throttled(request)
    elsewhere = rf.post("/sign-in", REMOTE_ADDR="192.0.2.7")
    assert authenticate(elsewhere, email="client@example.com", password=PASSWORD)


def test_command_makes_a_person_with_a_workspace(
    db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text(PASSWORD)
    monkeypatch.setenv("DRAFTPROOF_PASSWORD_FILE", str(path))
    out = io.StringIO()
    call_command("create_user", "new@example.com", "--workspace", "New one", stdout=out)
    assert "new@example.com" in out.getvalue()
    assert PASSWORD not in out.getvalue()
    workspace = Workspace.objects.get(name="New one")
    assert Membership.objects.get(workspace=workspace).role == Role.CONSULTANT
    call_command("create_user", "c2@example.com", workspace="New one", role="client", stdout=out)
    assert Membership.objects.filter(workspace=workspace).count() == 2


def test_command_refuses_whole(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_PASSWORD", PASSWORD)
    with pytest.raises(CommandError, match="must be a consultant"):
        call_command("create_user", "new@example.com", workspace="None such", role="client")
    assert not User.objects.filter(email="new@example.com").exists()
    monkeypatch.setenv("DRAFTPROOF_PASSWORD", "short")
    with pytest.raises(CommandError, match="too short"):
        call_command("create_user", "new@example.com")
