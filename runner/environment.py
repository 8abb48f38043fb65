"""The fingerprint of the machine that measured: what a result depends on beside the plan."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def host_fingerprint() -> dict[str, Any]:
    """CPU, memory, GPUs, Python and our own version. What can't be read is None, never a guess."""
    return {
        "cpu_model": _cpu_model(),
        "cpu_cores": _usable_cores(),
        "memory_bytes": _memory_bytes(),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.release()}",
        "python_version": platform.python_version(),
        "runner_version": _runner_version(),
    }


def _cpu_model() -> str | None:
    text = _text("/proc/cpuinfo")
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip() or None
    return platform.processor() or None


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


@cache
def _gpus() -> list[dict[str, str]]:
    """Names, memory and drivers as nvidia-smi tells them; empty where there is none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        told = subprocess.run(
            [command, query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
    return [
        {"name": row[0], "memory": row[1], "driver_version": row[2]}
        for row in rows
        if len(row) == 3
    ]


def _runner_version() -> str | None:
    try:
        return version("draftproof")
    except PackageNotFoundError:
        return _version_of_checkout()


def _version_of_checkout() -> str | None:
    for line in _text(Path(__file__).parent.parent / "pyproject.toml").splitlines():
        if line.startswith("version ="):
            return line.split('"')[1]
    return None


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
