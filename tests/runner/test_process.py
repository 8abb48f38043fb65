"""A child process and all that it started are gone when we say so, and when we are gone."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.engines.places import ROOT
from runner.engines.process import ChildProcess, free_port, port_is_free, tail

# Starts a grandchild in a session of its own, tells both ids, then sleeps.
FAMILY = """
import subprocess, sys, os, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
below = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print(os.getpid(), below.pid, flush=True)
time.sleep(60)
"""


def exists(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody has collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def family(log: Path) -> tuple[int, int]:
    assert wait_for(lambda: log.exists() and len(log.read_text().split()) == 2)
    parent, child = map(int, log.read_text().split())
    return parent, child


def started(log: Path, code: str, grace_s: float = 0.5) -> ChildProcess:
    return ChildProcess(
        [sys.executable, "-c", code], log_path=log, env=dict(os.environ), grace_s=grace_s
    )


def test_stop_ends_grandchildren_that_left_the_group_and_ignore_signals(tmp_path: Path) -> None:
    child = started(tmp_path / "log", FAMILY)
    pids = family(tmp_path / "log")
    assert child.pid == pids[0]
    assert all(exists(pid) for pid in pids)
    child.stop()
    assert not child.alive()
    assert not any(exists(pid) for pid in pids)
    child.stop()  # twice is no error


def test_what_it_started_goes_when_it_is_killed(tmp_path: Path) -> None:
    child = started(tmp_path / "log", FAMILY)
    parent, below = family(tmp_path / "log")
    os.kill(parent, signal.SIGKILL)
    assert wait_for(lambda: not child.alive())
    assert child.returncode == 128 + signal.SIGKILL
    assert not exists(below)
    child.stop()


def test_an_engine_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    """The starter is killed with SIGKILL, so that it can do nothing about its children."""
    log = tmp_path / "log"
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from runner.engines.process import ChildProcess\n"
        f"ChildProcess([sys.executable, '-c', {FAMILY!r}], log_path=Path({str(log)!r}),\n"
        "             env=dict(os.environ), grace_s=0.2)\n"
        "time.sleep(60)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        pids = family(log)
        starter.kill()
        starter.wait()
        assert wait_for(lambda: not any(exists(pid) for pid in pids))
    finally:
        starter.kill()
        starter.wait()


def test_the_command_goes_even_when_its_guard_is_killed(tmp_path: Path) -> None:
    child = started(tmp_path / "log", FAMILY)
    parent, below = family(tmp_path / "log")
    os.kill(child.group, signal.SIGKILL)
    assert wait_for(lambda: not exists(parent))
    child.stop()
    assert not child.alive()
    with contextlib.suppress(ProcessLookupError):  # it had left the group: nobody's but ours
        os.kill(below, signal.SIGKILL)


def test_the_exit_code_and_the_output_are_kept(tmp_path: Path) -> None:
    code = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(7)"
    child = started(tmp_path / "deep" / "log", code)
    assert wait_for(lambda: not child.alive())
    assert child.returncode == 7
    assert sorted(child.log_tail()) == ["one", "two"]
    assert child.pid is None
    child.stop()


def test_a_program_that_does_not_exist_ends_with_a_code(tmp_path: Path) -> None:
    child = ChildProcess(["/no/such/program"], log_path=tmp_path / "log", env={})
    assert wait_for(lambda: not child.alive())
    assert child.returncode == 1
    assert "/no/such/program" in "\n".join(child.log_tail())
    child.stop()


def test_the_tail_of_a_long_log_is_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert tail(log, 3) == ["line 99997", "line 99998", "line 99999"]
    assert tail(tmp_path / "none", 3) == []


def test_a_free_port_is_free_until_somebody_listens() -> None:
    import socket

    port = free_port()
    assert port_is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not port_is_free(port)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM])
def test_a_polite_command_may_tidy_up(tmp_path: Path, signal_number: int) -> None:
    code = (
        "import signal, sys, time\n"
        "def bye(*_):\n    print('bye', flush=True); sys.exit(0)\n"
        f"signal.signal({int(signal_number)}, bye)\n"
        "print('up', flush=True); time.sleep(60)\n"
    )
    child = started(tmp_path / "log", code, grace_s=5)
    assert wait_for(lambda: child.log_tail() == ["up"])
    child.stop()
    assert child.log_tail() == ["up", "bye"]
    assert child.returncode == 0
