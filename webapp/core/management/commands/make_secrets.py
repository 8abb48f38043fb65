"""``manage.py make_secrets``: random secrets for ``compose.yaml``, once."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Write random secrets for compose.yaml to var/secrets/; existing ones stay."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        folder = Path(settings.VAR_DIR) / "secrets"
        # The folder keeps others of this machine out. The files must be readable by the user
        # inside a container, whose number is another one.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = _kept(folder / "database_password", secrets.token_urlsafe(32))
        broker = _kept(folder / "redis_password", secrets.token_urlsafe(32))
        _kept(folder / "secret_key", secrets.token_urlsafe(64))
        _kept(
            folder / "database_url", f"postgresql://draftproof:{database}@postgres:5432/draftproof"
        )
        _kept(folder / "redis_url", f"redis://:{broker}@redis:6379/0")
        self.stdout.write(f"Secrets are in {folder}")


def _kept(path: Path, value: str) -> str:
    if not path.exists():
        draft = path.with_name(path.name + ".new")
        draft.write_text(value)
        draft.chmod(0o444)
        draft.replace(path)
    return path.read_text()
