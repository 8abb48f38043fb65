"""Stands between us and an engine, so that no engine outlives the process that wanted it.

Run as a program: ``python guard.py GRACE_S COMMAND...``, as leader of a process group. It starts
COMMAND in that group and ends it, with all its descendants, on SIGTERM or when its own standard
input closes, as it does when the process that holds the other end is killed with ``kill -9``.
Its exit code is COMMAND's (128 + N for a signal N).

A guard instead of PR_SET_PDEATHSIG in the engine alone: that signal follows the *thread* that
started the child and does not reach grandchildren. Standard library only; it is never imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the guard works without it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, also those that left the process group."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file,
            ):
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_all_below() -> None:
    """SIGKILL to every descendant until none is left; as subreaper we inherit orphans."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = descendants(os.getpid())
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Guard:
    def __init__(self, grace_s: float, command: list[str]) -> None:
        self._grace_s = grace_s
        # Wakes select() when a signal comes, so that nothing is polled.
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent to handle
        signal.signal(signal.SIGCHLD, lambda *_: None)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=self._in_child,  # safe here: the guard has one thread
        )

    @staticmethod
    def _in_child() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True

    def run(self) -> int:
        """Until the command ended or somebody asked; returns the exit code to give."""
        watched = [sys.stdin.fileno(), self._wake_read]
        while self._child.poll() is None and not self._asked:
            ready, _, _ = select.select(watched, [], [], 5.0)
            if self._wake_read in ready:
                os.read(self._wake_read, 512)
            if watched[0] in ready and not os.read(watched[0], 512):
                self._asked = True
        if self._child.poll() is None:
            self._end_politely()
        kill_all_below()
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _end_politely(self) -> None:
        """SIGTERM first: it lets the engine give back its shared memory."""
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(self._grace_s)


if __name__ == "__main__":
    sys.exit(Guard(float(sys.argv[1]), sys.argv[2:]).run())
