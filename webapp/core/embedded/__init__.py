"""PostgreSQL and Valkey (which speaks Redis) of our own, for a machine that has neither.

Both come as wheels, listen on 127.0.0.1 only, and keep everything under ``var/services/``. Ports
and passwords are made once and recorded in ``services.json`` (mode 0600).

No Django here: settings ask this package for the addresses. ``python -m webapp.core.embedded``
does the same from a terminal.
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from webapp.core.embedded import base, postgres, programs, valkey
from webapp.core.embedded.base import HOST, EmbeddedError, Record

__all__ = ["HOST", "EmbeddedError", "Service", "Urls", "remove", "start", "status", "stop", "urls"]

START_TRIES = 5


@dataclass(frozen=True)
class Urls:
    """Addresses with their passwords: never log them."""

    database_url: str
    redis_url: str


@dataclass(frozen=True)
class Service:
    """One server now. ``pid`` is None while it does not run, ``port`` 0 before one is chosen."""

    name: str
    port: int
    pid: int | None


def urls() -> Urls:
    """Addresses of both services; starts nothing.

    Ports are chosen on the first call and kept, unless a stranger sits on one of them by now.
    """
    record = base.read()
    if record is None or _moved(record) != record:
        with _locked():
            record = _settled()
    return Urls(record.database_url, record.redis_url)


def start() -> Urls:
    """Start what is not running, and return the addresses. Safe to call at any time, from several.

    Raises EmbeddedError: one sentence, and the last lines of the server's log where there are any.
    """
    with _locked():
        record = _settled()
        user = programs.service_user(record)
        found = programs.prepare(record, user)
        record = _started(
            "PostgreSQL",
            record,
            lambda now: postgres.start(now, found, user),
            lambda now: replace(now, postgres_port=base.free_port()),
        )
        postgres.ensure_database(record)
        record = _started(
            "Valkey",
            record,
            lambda now: valkey.start(now, found, user),
            lambda now: replace(now, valkey_port=base.free_port()),
        )
        return Urls(record.database_url, record.redis_url)


def stop() -> None:
    """Stop what is running; nothing happens where nothing runs. Data stay."""
    with _locked():
        record = base.read()
        if record is not None:
            _stop(record)


def status() -> tuple[Service, Service]:
    """PostgreSQL and Valkey as they are now."""
    record = base.read()
    if record is None:
        return Service("PostgreSQL", 0, None), Service("Valkey", 0, None)
    return (
        Service("PostgreSQL", record.postgres_port, postgres.pid(record)),
        Service("Valkey", record.valkey_port, valkey.pid(record)),
    )


def remove() -> None:
    """Stop both and delete their data. There is no way back."""
    if not base.home().exists():
        return
    with _locked():
        record = base.read()
        if record is None:
            return
        _stop(record)
        shutil.rmtree(record.place)
        link = base.home() / "data"
        if link.is_symlink():
            link.unlink()
        base.record_path().unlink()


def _stop(record: Record) -> None:
    valkey.stop(record)
    postgres.stop(record)


def _started(
    name: str,
    record: Record,
    attempt: Callable[[Record], bool],
    elsewhere: Callable[[Record], Record],
) -> Record:
    for _ in range(START_TRIES):
        if attempt(record):
            return record
        record = base.write(elsewhere(record))
    raise EmbeddedError(f"{name} found no free port on {HOST} in {START_TRIES} tries.")


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One starter or stopper at a time, across processes; the kernel frees it on any death."""
    try:
        base.home().mkdir(parents=True, exist_ok=True)
        handle = (base.home() / "lock").open("w")
    except OSError as error:
        raise EmbeddedError(
            f"{base.home()} cannot be written ({error.strerror}): set DRAFTPROOF_VAR_DIR to a "
            "folder of your own, or DATABASE_URL and REDIS_URL."
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _settled() -> Record:
    """The record, made where there is none, with new ports where strangers hold the old ones."""
    record = base.read()
    if record is None:
        if (base.home() / "data" / "postgres").exists():
            raise EmbeddedError(
                f"{base.home()} holds a database but not its password: restore services.json from "
                f"a backup, or delete {base.home()} to begin with an empty database."
            )
        record = Record(
            outside=programs.new_outside(programs.service_user(None)),
            postgres_port=base.free_port(),
            postgres_password=secrets.token_urlsafe(24),
            valkey_port=base.free_port(),
            valkey_password=secrets.token_urlsafe(24),
        )
    return base.write(_moved(record))


def _moved(record: Record) -> Record:
    """The record with the port that our server really has, or another where a stranger sits."""
    running = postgres.running(record)
    if running is not None:
        record = replace(record, postgres_port=running[1])
    elif base.answers(record.postgres_port):
        record = replace(record, postgres_port=base.free_port())
    if base.answers(record.valkey_port) and valkey.pid(record) is None:
        record = replace(record, valkey_port=base.free_port())
    return record
