"""What the embedded services share: the record, ports, and how a failure is told."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from webapp.env import VAR_DIR

HOST = "127.0.0.1"
NAME = "draftproof"  # database and role


class EmbeddedError(Exception):
    """A service could not be started or stopped; the text says why and what to do."""


@dataclass(frozen=True)
class Record:
    """What is decided once and kept. ``outside`` is where the data lie if not below ``var/``."""

    outside: str
    postgres_port: int
    postgres_password: str
    valkey_port: int
    valkey_password: str

    @property
    def database_url(self) -> str:
        return f"postgresql://{NAME}:{self.postgres_password}@{HOST}:{self.postgres_port}/{NAME}"

    @property
    def redis_url(self) -> str:
        return f"redis://:{self.valkey_password}@{HOST}:{self.valkey_port}/0"

    @property
    def place(self) -> Path:
        """Told from ``var/`` itself, which may have been moved or copied since."""
        return Path(self.outside) if self.outside else home() / "data"

    def log(self, name: str) -> Path:
        return self.place / f"{name}.log"


def home() -> Path:
    """``<var>/services``: the record, the lock, and the data or a link to them."""
    return VAR_DIR.get().resolve() / "services"


def record_path() -> Path:
    return home() / "services.json"


def read() -> Record | None:
    """The record, or None before the first start. Raises EmbeddedError where it is unreadable."""
    try:
        return Record(**json.loads(record_path().read_text()))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise EmbeddedError(
            f"{record_path()} belongs to another user: run as that user, or set DRAFTPROOF_VAR_DIR "
            "to a folder of your own."
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise EmbeddedError(
            f"{record_path()} cannot be read ({type(error).__name__}); restore it from a backup, "
            f"or delete {home()} to begin with an empty database."
        ) from error


def write(record: Record) -> Record:
    """Record atomically, readable by its owner only."""
    path = record_path()
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        json.dump(asdict(record), handle, indent=1)
    draft.replace(path)
    return record


def failure(what: str, log: Path) -> EmbeddedError:
    """``what`` with the last lines of the log that knows why."""
    try:
        tail = log.read_text(errors="replace").splitlines()[-8:]
    except OSError:
        tail = []
    lines = "".join(f"\n  {line}" for line in tail)
    return EmbeddedError(f"{what}; its log is {log} and ends with:{lines or ' nothing'}")


def since(log: Path, begin: int) -> str:
    """What was logged after the first ``begin`` bytes."""
    with contextlib.suppress(OSError):
        return log.read_bytes()[begin:].decode(errors="replace")
    return ""


def size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def answers(port: int) -> bool:
    """Does anybody listen? By connecting: a trial bind would itself look like a stranger."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def free_port() -> int:
    """A free port below the range from which the kernel gives ports to outgoing connections."""
    for _ in range(200):
        port = 15000 + secrets.randbelow(15000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise EmbeddedError(f"No free port was found on {HOST} between 15000 and 30000.")


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """True as soon as the condition holds, False where it did not in this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
