"""Reads one uploaded file in a process of its own, under limits of memory and time.

What is read is untrusted. A file that eats memory or time ends that process and not the worker.
``python -m webapp.samples.reading`` is that process: it knows no Django and no database, writes the
normalised requests, and prints what it counted as JSON.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.traffic.read import ReadLimits, ReadResult, TrafficError, read_file
from runner.traffic.store import write_requests

log = logging.getLogger(__name__)

MEMORY_BYTES = 2 * 1024**3
TIME_S = 120
ROOT = Path(__file__).resolve().parents[2]
UNCATEGORISED = "uncategorised"
_OUT_OF_MEMORY = 3


@dataclass(frozen=True, slots=True)
class Refused:
    """``reason`` names the line where there is one; it quotes nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Counts:
    """What was understood, as the columns of a Sample."""

    format: str
    rows: int
    replayable: int
    different_prompts: int
    trace_only: int
    skipped: dict[str, int]
    rejected: list[dict[str, Any]]
    rejected_count: int
    warnings: list[str]
    categories: dict[str, int]


def read_apart(
    source: Path, target: Path, limits: ReadLimits, *, memory_bytes: int = MEMORY_BYTES,
    time_s: int = TIME_S,
) -> Counts | Refused:  # fmt: skip
    """Read ``source`` into ``target`` in a child process; never raises for what the file holds."""
    job = {
        "source": str(source), "target": str(target), "limits": asdict(limits),
        "memory_bytes": memory_bytes, "time_s": time_s,
    }  # fmt: skip
    try:
        child = subprocess.run(
            [sys.executable, "-m", "webapp.samples.reading"],
            input=json.dumps(job), capture_output=True, text=True, cwd=ROOT, env={},
            timeout=time_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Refused(f"Reading it takes longer than {time_s} seconds; upload a part of it.")
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Refused(f"Reading it takes longer than {time_s} seconds; upload a part of it.")
    if child.returncode == _OUT_OF_MEMORY:
        return Refused("Reading it needs more memory than is allowed; upload a part of it.")
    if child.returncode:
        # Its error text stays unseen: it may quote the file.
        log.error("the reader of an upload ended with %s", child.returncode)
        return Refused("This file made the reader fail; try one in another format.")
    answer = json.loads(child.stdout)
    return Refused(answer["refused"]) if "refused" in answer else Counts(**answer)


def _main() -> int:
    job = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], job["memory_bytes"]))
    resource.setrlimit(resource.RLIMIT_CPU, (job["time_s"], job["time_s"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        result = read_file(job["source"], limits=ReadLimits(**job["limits"]))
        write_requests(job["target"], result.requests)
    except TrafficError as error:
        answer: dict[str, Any] = {"refused": _sentence(error)}
    except MemoryError:
        return _OUT_OF_MEMORY
    else:
        answer = asdict(_counts(result))
    json.dump(answer, sys.stdout)
    return 0


def _sentence(error: TrafficError) -> str:
    where = "" if error.line is None else f"Line {error.line}: "
    reason = error.reason if where else error.reason[:1].upper() + error.reason[1:]
    return f"{where}{reason}."


def _counts(result: ReadResult) -> Counts:
    names = (request.category or UNCATEGORISED for request in result.requests)
    return Counts(
        format=result.format,
        rows=result.rows,
        replayable=len(result.requests),
        different_prompts=result.different_prompts,
        trace_only=result.trace_only,
        skipped=dict(result.skipped),
        rejected=[asdict(item) for item in result.rejected],
        rejected_count=result.rejected_count,
        warnings=list(result.warnings),
        categories=dict(Counter(names).most_common(200)),
    )


if __name__ == "__main__":
    sys.exit(_main())
