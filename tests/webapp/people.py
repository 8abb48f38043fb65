"""Who the tests of the site know."""

from __future__ import annotations

from dataclasses import dataclass

from webapp.accounts.models import User, Workspace

PASSWORD = "a-long-test-password-7"


@dataclass(frozen=True)
class People:
    """A consultant and a client of one workspace, and a stranger who has another."""

    consultant: User
    client: User
    stranger: User
    workspace: Workspace
    other_workspace: Workspace
