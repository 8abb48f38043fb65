"""Starts the known-delay server as a process of its own and asks it how late it was."""

from __future__ import annotations

import http.client
import json
import os
import select
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import runner
from runner.engines.base import Endpoint
from runner.ruler.script import MODEL

START_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Promise:
    """When the server's tokens come."""

    ttft_ms: float = 50.0
    gap_ms: float = 10.0
    tokens: int = 100

    @property
    def answer_s(self) -> float:
        """Seconds from request to last token."""
        return (self.ttft_ms + (self.tokens - 1) * self.gap_ms) / 1000


@dataclass(frozen=True, slots=True)
class Late:
    """How late events were written, in ms; None where there were none."""

    count: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class Lateness:
    """The server's own lateness since it was last forgotten."""

    events: Late
    first_tokens: Late
    cpu_s: float
    """CPU time of the server's process since its start."""


class KnownDelayServer:
    """The process; use as a context manager.

    ``cores``: where it may run (None: anywhere). Raises OSError when it does not start.
    """

    def __init__(
        self,
        promise: Promise = Promise(),
        *,
        role_event: bool = False,
        cores: Collection[int] | None = None,
    ) -> None:
        self.promise = promise
        self._arguments = [
            f"--ttft-ms={promise.ttft_ms}", f"--gap-ms={promise.gap_ms}",
            f"--tokens={promise.tokens}", *(["--role-event"] if role_event else []),
        ]  # fmt: skip
        self._cores = cores
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        root = Path(runner.__file__).resolve().parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runner.ruler.server", *self._arguments],
            stdin=subprocess.PIPE,  # its end tells the server that we are gone
            stdout=subprocess.PIPE,
            cwd=root,
            start_new_session=True,  # Ctrl-C is for us; we end it
        )
        if self._cores is not None:
            os.sched_setaffinity(self._process.pid, self._cores)
        try:
            self._port = self._await_port(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _await_port(self, process: subprocess.Popen[bytes]) -> int:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
        line = process.stdout.readline() if ready else b""
        if not line.strip().isdigit():
            raise OSError("The known-delay server did not start.")
        return int(line)

    def __exit__(self, *exception: object) -> None:
        process = self._process
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.kill()
        process.wait()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self._port}", MODEL)

    def lateness(self) -> Lateness:
        """What the server says of itself."""
        document = self._ask("GET")
        return Lateness(
            Late(**document["events"]), Late(**document["first_tokens"]), document["cpu_s"]
        )

    def forget_lateness(self) -> None:
        """What was written until now no longer counts."""
        self._ask("DELETE")

    def _ask(self, method: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_LIMIT_S)
        try:
            connection.request(method, "/lateness")
            document: dict[str, Any] = json.loads(connection.getresponse().read())
            return document
        finally:
            connection.close()
