"""``manage.py serve`` as a person runs it: real services, real children, real signals."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from webapp.core.embedded import base

ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    "web": "gunicorn",
    "worker": "--queues=web",
    "gpu": "--queues=gpu",
    "beat": "beat",
}


class Site:
    def __init__(self, var: Path) -> None:
        self.var = var
        # As in a terminal of somebody who has set nothing.
        hidden = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")
        self.environ = {key: value for key, value in os.environ.items() if key not in hidden}
        self.environ["DRAFTPROOF_VAR_DIR"] = str(var)
        self.port = base.free_port()
        self.log = var / "said.log"
        self.process: subprocess.Popen[bytes] | None = None

    def serve(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "serve", "--port", str(self.port)],
                cwd=ROOT,
                env=self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def manage(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout

    def said(self) -> str:
        return self.log.read_text()

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self.port}/readyz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        return False

    def children(self) -> dict[str, int]:
        """The main process of each part that runs on this folder."""
        assert self.process is not None
        found: dict[str, int] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                words = (entry / "cmdline").read_text()
                if int(parent) == self.process.pid:
                    found |= {name: int(entry.name) for name, w in PARTS.items() if w in words}
        return found


def eventually(condition: Callable[[], object], seconds: float, told: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.2)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    var = Path(tempfile.mkdtemp(prefix="draftproof-site-"))
    var.chmod(0o755)
    made = Site(var)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait(10)
    subprocess.run(
        [sys.executable, "-m", "webapp.core.embedded", "remove"],
        cwd=ROOT,
        env=made.environ,
        check=True,
        capture_output=True,
    )
    shutil.rmtree(var)


@pytest.fixture
def running(site: Site) -> Site:
    """The site, started by the first test that asks."""
    if site.process is None or site.process.poll() is not None:
        process = site.serve()
        address = f"The site is at http://127.0.0.1:{site.port}"
        eventually(lambda: address in site.said() or process.poll() is not None, 120, site.said)
        assert process.poll() is None, site.said()
    return site


def test_it_comes_up_whole_and_only_once(running: Site) -> None:
    assert running.ready()
    eventually(lambda: running.children().keys() == PARTS.keys(), 20, running.said)
    code, told = running.manage("serve", "--port", str(base.free_port()))
    assert code == 1
    assert running.process is not None
    assert f"The site runs from this folder already (process {running.process.pid}" in told
    assert f"http://127.0.0.1:{running.port}" in told
    assert len(told.strip().splitlines()) == 1


def test_services_under_a_running_site_are_not_stopped(running: Site) -> None:
    code, told = running.manage("services", "stop")
    assert code == 1
    assert "The site uses them" in told
    code, told = running.manage("services", "status")
    assert code == 0
    assert told.count("running") == 2


@pytest.mark.parametrize("part", ["web", "beat"])
def test_a_killed_part_is_started_again_and_said_so(running: Site, part: str) -> None:
    before = running.children()[part]
    os.kill(before, signal.SIGKILL)
    eventually(
        lambda: f"{part} ended with signal 9; again in 1 s" in running.said(), 20, running.said
    )
    eventually(lambda: running.children().get(part, before) != before, 20, running.said)
    eventually(running.ready, 30, running.said)


def test_killed_services_come_back(running: Site) -> None:
    code, told = running.manage("services", "status")
    assert code == 0
    for line in told.splitlines():
        os.kill(int(line.rpartition(" ")[2]), signal.SIGKILL)
    eventually(lambda: "had stopped and runs again" in running.said(), 40, running.said)
    eventually(running.ready, 40, running.said)


def test_a_taken_port_is_one_sentence(site: Site) -> None:
    other = Site(site.var / "other")
    other.var.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, told = other.manage("serve", "--port", str(taken.getsockname()[1]))
    assert code == 1
    assert "is in use or not allowed" in told
    assert len(told.strip().splitlines()) == 1


def test_a_polite_end_ends_all(running: Site) -> None:
    eventually(lambda: running.children().keys() == PARTS.keys(), 40, running.said)
    pids = list(running.children().values())
    assert running.process is not None
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    assert running.said().rstrip().endswith("Ending.")
    assert all(_gone(pid) for pid in pids)
    code, told = running.manage("services", "status")
    assert (code, told.count("running")) == (0, 2)


def test_a_killed_supervisor_leaves_no_orphans(running: Site) -> None:
    eventually(lambda: running.children().keys() == PARTS.keys(), 40, running.said)
    pids = list(running.children().values())
    assert running.process is not None
    running.process.kill()
    running.process.wait(10)
    eventually(lambda: all(_gone(pid) for pid in pids), 60, running.said)
    assert running.manage("services", "stop")[0] == 0
