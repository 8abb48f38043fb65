"""A child process that is ended with all its descendants, whatever happens to us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
_KILL_AFTER_S = 15.0
_TAIL_BYTES = 256 * 1024


class ChildProcess:
    """``command`` in a process group of its own, under ``guard.py``; output goes to ``log_path``.

    ``stop`` is safe to call twice and from any thread. If we die, the guard ends the command.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str],
        cwd: Path | None = None,
        grace_s: float = 5.0,
    ) -> None:
        self.log_path = log_path
        self._grace_s = grace_s
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            self._guard = subprocess.Popen(
                # -I -S: the guard needs nothing of any environment and starts at once.
                [sys.executable, "-I", "-S", str(GUARD), str(grace_s), *command],
                stdin=subprocess.PIPE,  # held open by us: its end tells the guard that we are gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """The process group of the guard, the command and its children."""
        return self._guard.pid

    @property
    def pid(self) -> int | None:
        """The command's own process; None once it is gone (or where /proc is missing)."""
        try:
            text = Path(f"/proc/{self.group}/task/{self.group}/children").read_text()
        except OSError:
            return None
        pids = text.split()
        return int(pids[0]) if pids else None

    @property
    def returncode(self) -> int | None:
        """None while it runs; 128 + N when signal N ended it."""
        return self._guard.poll()

    def alive(self) -> bool:
        return self.returncode is None

    def log_tail(self, lines: int = 40) -> list[str]:
        return tail(self.log_path, lines)

    def stop(self) -> None:
        """End it: politely, then by force. Nothing of its group is left when this returns."""
        if self._guard.poll() is None:
            self._guard.terminate()
            try:
                self._guard.wait(self._grace_s + _KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                self._kill_group()
                self._guard.wait()
        if (self._guard.returncode or 0) < 0:  # the guard itself was killed and left its group
            self._kill_group()
        if self._guard.stdin is not None:
            self._guard.stdin.close()

    def _kill_group(self) -> None:
        try:
            os.killpg(self.group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


def tail(path: Path, lines: int) -> list[str]:
    """The last ``lines`` lines of a log, without reading all of a large one."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return list(deque(text.splitlines(), maxlen=lines))


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago; who starts a server there must expect to lose it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
