"""``manage.py serve``: the whole site on this machine, until Ctrl-C."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.core.supervisor import (
    Supervisor,
    SupervisorError,
    end_by_sigterm_as_by_ctrl_c,
)


class Command(BaseCommand):
    help = "Run services, web, workers and beat on this machine until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port", type=int, help="where pages are served (8000, or a free one if it is taken)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        end_by_sigterm_as_by_ctrl_c()
        try:
            with Supervisor(port=options["port"], say=self._say) as site:
                self._say(f"The site is at {site.address} (logs: {settings.VAR_DIR / 'log'})")
                self._say("Ctrl-C ends it.")
                site.wait()
                self._say("Ending.")
        except SupervisorError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self._say("Ended before the site was up.")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
