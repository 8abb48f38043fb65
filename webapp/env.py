"""Every environment variable the site reads: name, type, default, meaning. Nothing else may read.

``VARIABLES`` is what the documentation and the deployment files are checked against. Each secret
may be given as a file instead: ``NAME_FILE`` names it, and its text without surrounding white
space is the value. A value that cannot be used stops the process with one sentence.

The runner also works without the site; it reads DRAFTPROOF_VAR_DIR, ENGINE_PYTHON and
DRAFTPROOF_TORCH_INDEX itself.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
T = TypeVar("T")


class EnvError(Exception):
    """A variable holds something that cannot be used; the text says what to do."""


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One environment variable. ``default`` is used where it is unset or empty."""

    name: str
    parse: Callable[[str], T]
    default: T
    doc: str
    kind: str
    secret: bool = False

    def get(self, environ: Mapping[str, str] | None = None) -> T:
        """The value, from ``NAME`` or, for a secret, from the file ``NAME_FILE``."""
        text = self._text(os.environ if environ is None else environ)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            shown = "it" if self.secret else repr(text)
            raise EnvError(f"{self.name} cannot be used: {shown} {error}.") from None

    def _text(self, environ: Mapping[str, str]) -> str | None:
        direct = environ.get(self.name, "").strip()
        path = environ.get(f"{self.name}_FILE", "").strip() if self.secret else ""
        if direct and path:
            raise EnvError(f"Set {self.name} or {self.name}_FILE, not both.")
        if not path:
            return direct or None
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            kind = type(error).__name__
            raise EnvError(
                f"{self.name}_FILE names {path}, which cannot be read ({kind})."
            ) from None
        if not text:
            raise EnvError(f"{self.name}_FILE names {path}, which is empty.")
        return text


def _text(value: str) -> str:
    return value


def _flag(value: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False}
    if value.lower() not in known:
        raise ValueError("is neither yes nor no; write 1 or 0")
    return known[value.lower()]


def _words(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _hosts(value: str) -> tuple[str, ...]:
    hosts = _words(value)
    if any("/" in host or "*" in host for host in hosts):
        raise ValueError("must hold host names, separated by commas, without scheme or *")
    return hosts


def _origins(value: str) -> tuple[str, ...]:
    origins = _words(value)
    if not all(origin.startswith(("http://", "https://")) for origin in origins):
        raise ValueError("must hold origins like https://draftproof.example.com, with commas")
    return origins


def _between(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"is no whole number from {low} to {high}") from None
        if not low <= number <= high:
            raise ValueError(f"is not between {low} and {high}")
        return number

    return parse


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"is not one of: {', '.join(choices)}")
        return value

    return parse


def _path(value: str) -> Path:
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise ValueError("is a relative path; give an absolute one")
    return path


def _secret_key(value: str) -> str:
    if len(value) < 50 or len(set(value)) < 5:
        raise ValueError("is too short; use at least 50 random characters")
    return value


def _base_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must look like https://draftproof.example.com")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError("must be scheme, host and port only; the site lives at the root")
    if parts.scheme == "http" and not is_loopback(value):
        raise ValueError("is plain http for a host that others reach; use https")
    return f"{parts.scheme}://{parts.netloc}"


def _database_url(value: str) -> str:
    if urlsplit(value).scheme not in ("postgresql", "postgres") or not database_name(value):
        raise ValueError("must look like postgresql://user:password@host:5432/name")
    return value


def _redis_url(value: str) -> str:
    if urlsplit(value).scheme not in ("redis", "rediss", "unix"):
        raise ValueError("must look like redis://:password@host:6379/0")
    return value


def is_loopback(url: str) -> bool:
    """Whether the address names this machine only."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def database_name(url: str) -> str:
    return unquote(urlsplit(url).path.lstrip("/"))


SECRET_KEY: Variable[str | None] = Variable(
    "DRAFTPROOF_SECRET_KEY", _secret_key, None,
    "Signs sessions. On this machine alone one is made and kept in VAR_DIR/secret-key; a site that"
    " others reach must be given one.", "text, 50 characters or more", secret=True,
)  # fmt: skip
DEBUG = Variable(
    "DRAFTPROOF_DEBUG", _flag, False,
    "Shows error details in the browser. Never on where others reach the site.", "1 or 0",
)  # fmt: skip
BASE_URL = Variable(
    "DRAFTPROOF_BASE_URL", _base_url, "http://127.0.0.1:8000",
    "The address that people type. https switches on secure cookies, the redirect to https and"
    " strict transport security; plain http is for this machine only.", "address",
)  # fmt: skip
ALLOWED_HOSTS: Variable[tuple[str, ...]] = Variable(
    "DRAFTPROOF_ALLOWED_HOSTS", _hosts, (),
    "Further host names that the site answers to, beside the base address and this machine.",
    "host names with commas",
)  # fmt: skip
CSRF_ORIGINS: Variable[tuple[str, ...]] = Variable(
    "DRAFTPROOF_CSRF_ORIGINS", _origins, (),
    "Further origins that may send forms, beside the base address.", "origins with commas",
)  # fmt: skip
TRUST_PROXY = Variable(
    "DRAFTPROOF_TRUST_PROXY", _flag, False,
    "Believe X-Forwarded-Proto and the last X-Forwarded-For address. On only behind a proxy that"
    " sets both itself.", "1 or 0",
)  # fmt: skip
VAR_DIR = Variable(
    "DRAFTPROOF_VAR_DIR", _path, ROOT / "var",
    "Everything the site keeps on disk: uploads, engines, models, embedded services.", "folder",
)  # fmt: skip
DATABASE_URL: Variable[str | None] = Variable(
    "DATABASE_URL", _database_url, None,
    "PostgreSQL. Unset: the embedded server under VAR_DIR.", "address", secret=True,
)  # fmt: skip
REDIS_URL: Variable[str | None] = Variable(
    "REDIS_URL", _redis_url, None,
    "Redis or Valkey. Unset: the embedded server under VAR_DIR.", "address", secret=True,
)  # fmt: skip
PROCESS = Variable(
    "DRAFTPROOF_PROCESS", _one_of("web", "worker", "manage"), "manage",
    "What this process is; the entry points set it. It decides on the database connection pool,"
    " time limits and the name shown in the database.", "web, worker or manage",
)  # fmt: skip
UPLOAD_MAX_MB = Variable(
    "DRAFTPROOF_UPLOAD_MAX_MB", _between(1, 1024), 64,
    "The largest traffic file that is accepted, in MiB as sent.", "1 to 1024",
)  # fmt: skip
LOG_FORMAT = Variable(
    "DRAFTPROOF_LOG_FORMAT", _one_of("plain", "json"), "plain",
    "How log lines are written to standard error.", "plain or json",
)  # fmt: skip
LOG_LEVEL = Variable(
    "DRAFTPROOF_LOG_LEVEL", _one_of("DEBUG", "INFO", "WARNING", "ERROR"), "INFO",
    "The least important log lines that are written.", "DEBUG, INFO, WARNING or ERROR",
)  # fmt: skip
PASSWORD: Variable[str | None] = Variable(
    "DRAFTPROOF_PASSWORD", _text, None,
    "The password that `manage.py create_user` gives; unset: it asks.", "text", secret=True,
)  # fmt: skip
ENGINE_PYTHON: Variable[Path | None] = Variable(
    "ENGINE_PYTHON", _path, None,
    "The Python of an existing engine environment. Unset: the one under VAR_DIR/engines.",
    "path of a program",
)  # fmt: skip
MODEL: Variable[str | None] = Variable(
    "MODEL", _text, None,
    "The model of the demo: a local folder or a Hugging Face id. Unset: the demo model.",
    "folder or id",
)  # fmt: skip

TORCH_INDEX: Variable[str | None] = Variable(
    "DRAFTPROOF_TORCH_INDEX",
    _text,
    None,
    "The package index that holds PyTorch's CPU builds, asked only where the plain one does not fit"
    " the engine. Unset: PyTorch's own.",
    "address",
)

VARIABLES: tuple[Variable[object], ...] = (  # type: ignore[assignment]
    SECRET_KEY, DEBUG, BASE_URL, ALLOWED_HOSTS, CSRF_ORIGINS, TRUST_PROXY, VAR_DIR, DATABASE_URL,
    REDIS_URL, PROCESS, UPLOAD_MAX_MB, LOG_FORMAT, LOG_LEVEL, PASSWORD, ENGINE_PYTHON, MODEL,
    TORCH_INDEX,
)  # fmt: skip


def secret_key() -> str:
    """The given key; else, where only this machine is served, one made once and kept."""
    given = SECRET_KEY.get()
    if given is not None:
        return given
    if not is_loopback(BASE_URL.get()):
        raise EnvError(
            "Set DRAFTPROOF_SECRET_KEY or DRAFTPROOF_SECRET_KEY_FILE: others reach this site, so"
            " its key may not be one that was made up at start."
        )
    return _kept_key(VAR_DIR.get() / "secret-key")


def _kept_key(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    key = secrets.token_urlsafe(64)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.touch(mode=0o600, exist_ok=True)
    part.write_text(key, encoding="ascii")
    try:
        # A link fails where the file exists: of two first starts at once, one key wins.
        os.link(part, path)
    except FileExistsError:
        key = path.read_text(encoding="ascii").strip()
    finally:
        part.unlink()
    return key


def service_urls() -> tuple[str, str]:
    """(database address, Redis address); the embedded ones where none is given."""
    database, redis = DATABASE_URL.get(), REDIS_URL.get()
    if database is None or redis is None:
        from webapp.core import embedded

        own = embedded.urls()
        database, redis = database or own.database_url, redis or own.redis_url
    return database, redis


def database_settings(url: str) -> dict[str, object]:
    """The address as Django wants it; what follows ``?`` goes to libpq (sslmode, host, ...)."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database_name(url),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", unquote(parts.hostname or "")),
        "PORT": str(parts.port or options.pop("port", "")),
        "OPTIONS": options,
    }
