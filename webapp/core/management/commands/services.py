"""``manage.py services start|stop|status``: the embedded PostgreSQL and Valkey."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.core import embedded, supervisor


class Command(BaseCommand):
    help = "Start, stop or show the embedded PostgreSQL and Valkey."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["start", "stop", "status"])

    def handle(self, *args: Any, **options: Any) -> None:
        action = options["action"]
        if not supervisor.uses_embedded():
            self.stdout.write("DATABASE_URL and REDIS_URL are set: there is nothing to start here.")
            return
        site = supervisor.running()
        if action == "stop" and site is not None:
            raise CommandError(
                f"The site uses them (process {site[0]}, {site[1]}): end it with Ctrl-C first."
            )
        try:
            if action == "start":
                embedded.start()
            elif action == "stop":
                embedded.stop()
            found = embedded.status()
        except embedded.EmbeddedError as error:
            raise CommandError(str(error)) from error
        for service in found:
            where = f"running, {embedded.HOST}:{service.port}, process {service.pid}"
            self.stdout.write(f"{service.name}: {'stopped' if service.pid is None else where}")
