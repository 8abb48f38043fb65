"""People, a workspace and files of their own for the tests of the site."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

from tests.webapp.people import PASSWORD, People
from webapp.accounts import services
from webapp.accounts.models import Role
from webapp.core import broker


@pytest.fixture
def people(db: None) -> People:
    consultant = services.create_user("consultant@example.com", PASSWORD, "Consultant")
    client = services.create_user("client@example.com", PASSWORD, "Client")
    stranger = services.create_user("stranger@example.com", PASSWORD, "Stranger")
    workspace = services.create_workspace("Workspace one", consultant)
    services.add_member(workspace, client, Role.CLIENT, actor=consultant)
    other = services.create_workspace("Workspace two", stranger)
    return People(consultant, client, stranger, workspace, other)


@pytest.fixture
def as_consultant(client: Client, people: People) -> Client:
    client.force_login(people.consultant)
    return client


@pytest.fixture(autouse=True)
def own_files(settings: Settings, tmp_path: Path) -> Path:
    """Uploads go to the test's own folder."""
    settings.MEDIA_ROOT = tmp_path / "media"
    return tmp_path / "media"


@pytest.fixture(autouse=True)
def fresh_broker() -> None:
    """Every test starts with full buckets and empty queues."""
    client = broker.client()
    client.delete("web", "gpu", *client.scan_iter("draftproof:limit:*"))
