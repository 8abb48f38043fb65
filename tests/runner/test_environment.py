"""The machine's fingerprint, with a program of its own in the place of nvidia-smi."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PRINT = """
import json
from runner.environment import host_fingerprint
print(json.dumps(host_fingerprint()))
"""


def fingerprint(path: str) -> dict[str, Any]:
    told = subprocess.run(
        [sys.executable, "-c", PRINT],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def with_nvidia_smi(folder: Path, script: str) -> str:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(folder)


def test_machine_without_gpu(tmp_path: Path) -> None:
    found = fingerprint(str(tmp_path))
    assert found["gpus"] == []
    assert found["cpu_cores"] == len(os.sched_getaffinity(0))
    assert found["memory_bytes"] > 2**28
    assert found["python_version"].startswith("3.")
    assert found["runner_version"]


def test_gpus_are_named(tmp_path: Path) -> None:
    line = "Some GPU, 81559 MiB, 580.1"
    found = fingerprint(with_nvidia_smi(tmp_path, f"echo '{line}'; echo '{line}'"))
    one = {"name": "Some GPU", "memory": "81559 MiB", "driver_version": "580.1"}
    assert found["gpus"] == [one, one]


@pytest.mark.parametrize("script", ["exit 9", "echo broken"])
def test_driver_that_does_not_answer_means_no_gpu(tmp_path: Path, script: str) -> None:
    assert fingerprint(with_nvidia_smi(tmp_path, script))["gpus"] == []
