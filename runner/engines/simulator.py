"""The simulator as an engine: a real server process whose behaviour a test has chosen."""

from __future__ import annotations

import http.client
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import runner
from runner.engines.base import Endpoint, EngineError, EngineRefused, EngineStopped
from runner.engines.simulator_behaviour import (
    READINESS_PROMPT,
    Behaviour,
    BehaviourError,
    from_document,
    to_document,
)
from runner.engines.simulator_server import VERSION
from runner.plan import Arm, Target

START_LIMIT_S = 60.0
_POLL_S = 0.02
_STOP_GRACE_S = 2.0


class SimulatorProcess:
    """One start of the simulator; implements ``runner.engines.base.Engine``.

    The behaviour is ``target.simulator[arm.method]``. Files go under ``workdir``.
    """

    def __init__(self, target: Target, arm: Arm, workdir: Path) -> None:
        self._target = target
        self._arm = arm
        self._log_path = workdir / "simulator.log"
        self._config_path = workdir / "simulator.json"
        self._port_path = workdir / "simulator.port"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._behaviour: Behaviour | None = None

    def start(self, should_stop: Callable[[], bool]) -> Endpoint:
        self._behaviour = self._read_behaviour()
        try:
            self._launch()
            self._await_port(should_stop)
            self._probe()
        except BaseException:
            self.stop()
            raise
        return Endpoint(url=f"http://127.0.0.1:{self._port}", model=self._target.model)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def metrics_text(self) -> str:
        try:
            return self._request("GET", "/metrics", None, limit_s=10.0).decode()
        except (OSError, http.client.HTTPException):
            return ""

    def log_tail(self, lines: int = 40) -> list[str]:
        try:
            return self._log_path.read_text(errors="replace").splitlines()[-lines:]
        except OSError:
            return []

    def fingerprint(self) -> dict[str, Any]:
        return {
            "engine": "simulator",
            "engine_version": VERSION,
            "model": self._target.model,
            "method": self._arm.method,
            "behaviour": to_document(self._behaviour) if self._behaviour else None,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin:
            process.stdin.close()  # the server ends with it
        try:
            process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _read_behaviour(self) -> Behaviour:
        settings = self._target.simulator.get(self._arm.method)
        if settings is None:
            raise EngineRefused(
                "unsupported",
                f"The simulator has no behaviour for the method {self._arm.method!r}.",
            )
        try:
            return from_document(settings)
        except BehaviourError as error:
            raise EngineError("bad_settings", str(error)) from None

    def _launch(self) -> None:
        self._config_path.parent.mkdir(parents=True, exist_ok=True)
        self._port_path.unlink(missing_ok=True)
        assert self._behaviour is not None
        config = {"model": self._target.model, "behaviour": to_document(self._behaviour)}
        self._config_path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "runner.engines.simulator_server", "--exit-with-stdin"]
        command += [f"--config={self._config_path}", f"--port-file={self._port_path}"]
        root = Path(runner.__file__).resolve().parent.parent
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**_passed_on(), "PYTHONPATH": str(root)},
                start_new_session=True,  # a group of its own, killed as a whole
            )

    def _await_port(self, should_stop: Callable[[], bool]) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while not self._port_path.exists():
            if should_stop():
                raise EngineStopped
            if not self.alive():
                code = self._process.returncode if self._process else None
                raise EngineError(
                    "exited_at_start",
                    f"The simulator ended with code {code} before it served anything.",
                    self.log_tail(),
                )
            if time.monotonic() > limit:
                raise EngineError(
                    "start_timeout",
                    f"The simulator did not listen within {START_LIMIT_S:.0f} seconds.",
                    self.log_tail(),
                )
            time.sleep(_POLL_S)
        self._port = int(self._port_path.read_text())

    def _probe(self) -> None:
        """A real completion: a port that is open proves nothing."""
        body = {"model": self._target.model, "prompt": READINESS_PROMPT, "max_tokens": 1}
        try:
            answer = json.loads(self._request("POST", "/v1/completions", json.dumps(body)))
            answer["choices"][0]["text"]
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            raise EngineError(
                "no_completion",
                f"The simulator listens but answered no completion ({type(error).__name__}).",
                self.log_tail(),
            ) from None

    def _request(
        self, method: str, path: str, body: str | None, limit_s: float = START_LIMIT_S
    ) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=limit_s)
        try:
            connection.request(method, path, body)
            return connection.getresponse().read()
        finally:
            connection.close()


def _passed_on() -> dict[str, str]:
    """What finds programs and libraries, and no secret of the site."""
    names = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    return {name: os.environ[name] for name in names if name in os.environ}
