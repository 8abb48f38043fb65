"""Where a sample's files lie: under random names in a folder that no address serves."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

REQUESTS_SUFFIX = ".requests"
PART_SUFFIX = ".part"


def folder() -> Path:
    path = Path(settings.MEDIA_ROOT) / "samples"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def new_name() -> str:
    return secrets.token_hex(24)


def upload_path(stored_name: str) -> Path:
    """The file as it was uploaded."""
    return folder() / stored_name


def requests_path(stored_name: str) -> Path:
    """Its normalised requests."""
    return folder() / f"{stored_name}{REQUESTS_SUFFIX}"


def remove(stored_name: str) -> None:
    """Remove every file of that name, half-written ones too; fine when they are gone already."""
    if not stored_name.isalnum():
        return
    for path in folder().glob(f"{stored_name}*"):
        path.unlink(missing_ok=True)


def names_on_disk(older_than: float) -> Iterator[str]:
    """Stored names that have a file last changed before ``older_than`` (seconds since 1970)."""
    for path in folder().iterdir():
        if path.stat().st_mtime < older_than:
            yield path.name.split(".", 1)[0]
