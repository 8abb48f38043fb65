"""Who the tests of the site know."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from django.db import connection

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


def database_url_of_the_test() -> str:
    """The address of the database that the test uses, for processes that it starts."""
    given = connection.settings_dict
    user, password = quote(given["USER"], safe=""), quote(given["PASSWORD"], safe="")
    return f"postgresql://{user}:{password}@{given['HOST']}:{given['PORT']}/{given['NAME']}"
