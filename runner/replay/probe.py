"""How late are our own time stamps? Another process says when it sent a byte, we when we saw it.

What a server's bytes wait for (the loop's callbacks, the other streams of one burst, a core) these
wait for as well, so their delay is the ruler's own error during this very trial.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from time import perf_counter_ns

EVERY_S = 0.02
_STAMP = struct.Struct("=q")
# Gaps are drawn, as even ones could keep step with the server. Ends when nobody reads any more.
_SENDER = """
import random, socket, struct, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
try:
    while True:
        time.sleep(random.expovariate(1 / float(sys.argv[2])))
        line.send(struct.pack("=q", time.perf_counter_ns()))
except OSError:
    pass
"""


class Probe:
    """From ``start`` to ``stop`` on the loop that is measured; ``delays_ns`` are what it saw."""

    def __init__(self) -> None:
        self.delays_ns: list[int] = []
        self._ours: socket.socket | None = None
        self._sender: subprocess.Popen[bytes] | None = None
        self._left = b""

    def start(self) -> None:
        """Begin to probe; without a process to spare (OSError) nothing is probed."""
        self._ours, theirs = socket.socketpair()
        self._ours.setblocking(False)
        command = [sys.executable, "-I", "-S", "-c", _SENDER, str(theirs.fileno()), str(EVERY_S)]
        try:
            self._sender = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        except OSError:
            return
        finally:
            theirs.close()
        asyncio.get_running_loop().add_reader(self._ours, self._take)

    def begin(self) -> None:
        """The timed window starts: forget what came before."""
        self.delays_ns.clear()

    def _take(self) -> None:
        now_ns = perf_counter_ns()
        assert self._ours is not None
        try:
            data = self._left + self._ours.recv(4096)
        except BlockingIOError:
            return
        whole = len(data) - len(data) % _STAMP.size
        self.delays_ns.extend(now_ns - sent_ns for (sent_ns,) in _STAMP.iter_unpack(data[:whole]))
        self._left = data[whole:]
        if not data:  # the sender is gone
            asyncio.get_running_loop().remove_reader(self._ours)

    def stop(self) -> None:
        """End the sender and close the line."""
        if self._ours is not None:
            asyncio.get_running_loop().remove_reader(self._ours)
            self._ours.close()
        if self._sender is not None:
            self._sender.kill()
            self._sender.wait()
