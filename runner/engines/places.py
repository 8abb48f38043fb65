"""Where what we install and make lies: below ``DRAFTPROOF_VAR_DIR``, or in ``var/``."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def var_dir() -> Path:
    """The folder for everything that can be made again; may not exist yet."""
    named = os.environ.get("DRAFTPROOF_VAR_DIR", "").strip()
    return Path(named).expanduser().resolve() if named else ROOT / "var"


def engines_dir() -> Path:
    return var_dir() / "engines"


def models_dir() -> Path:
    return var_dir() / "models"


def compile_cache_dir() -> Path:
    """vLLM's own cache of compiled graphs, kept with us instead of in a home folder."""
    return var_dir() / "cache" / "vllm"


@contextlib.contextmanager
def exclusive(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """One at a time in ``folder``, among processes; the lock goes with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
