"""``manage.py create_user EMAIL``: a person, and if wanted a place in a workspace."""

from __future__ import annotations

import getpass
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from webapp import env
from webapp.accounts import services
from webapp.accounts.models import Role, User, Workspace
from webapp.core.errors import Refusal


class Command(BaseCommand):
    help = (
        "Make a person who can sign in. The password is asked for, or taken from"
        " DRAFTPROOF_PASSWORD or the file DRAFTPROOF_PASSWORD_FILE; never from the command line."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")
        parser.add_argument("--name", default="", help="how the person is shown")
        parser.add_argument("--workspace", help="put the person in it; made if there is none")
        parser.add_argument("--role", choices=Role.values, default=Role.CONSULTANT)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with transaction.atomic():
                user = services.create_user(options["email"], _password(), options["name"])
                if options["workspace"]:
                    _join(options["workspace"], user, options["role"])
        except (Refusal, env.EnvError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{user.email} can sign in.")


def _join(name: str, user: User, role: str) -> None:
    found = list(Workspace.objects.filter(name=name)[:2])
    if len(found) > 1:
        raise Refusal(f"Several workspaces are called {name}; rename one first.")
    if found:
        services.add_member(found[0], user, role)
    elif role == Role.CONSULTANT:
        services.create_workspace(name, user)
    else:
        raise Refusal(f"No workspace is called {name}; its first person must be a consultant.")


def _password() -> str:
    given = env.PASSWORD.get()
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise Refusal("Set DRAFTPROOF_PASSWORD_FILE, or run this in a terminal to be asked.")
    first = getpass.getpass("Password: ")
    if first != getpass.getpass("Again: "):
        raise Refusal("The two passwords differ.")
    return first
