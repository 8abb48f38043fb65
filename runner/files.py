"""Files that are there whole or not at all: a kill in the middle leaves the old one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[IO[str]]:
    """Write text that becomes ``path`` at the end. ``private``: nobody but the owner reads it."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
