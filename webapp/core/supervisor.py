"""The whole site on one machine: services, web, workers and beat, started and watched from here.

For one machine and for the demo. A deployment by containers starts the same commands one by one
(``compose.yaml``; a test holds the two together).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TextIO

from django.conf import settings
from django.core.management import call_command

from webapp import env
from webapp.core import embedded

READY_SECONDS = 90
LOG_KEEP_BYTES = 10 * 1024 * 1024
RESTART_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STEADY_SECONDS = 60.0  # a child that lived so long begins again with the shortest wait
SERVICES_EVERY_SECONDS = 10.0
# Who may go on for how long after being asked to end: a worker ends with the task under way.
STOP_SECONDS = {"web": 35.0, "beat": 10.0, "worker": 75.0, "gpu": 90.0}
# Nobody sends new work, then the work ends, then the pages go.
STOP_ORDER = ("beat", "gpu", "worker", "web")
# Linux tells a child when its parent is gone, however that came: no orphan holds the GPU. A parent
# that went before the child could ask for that is noticed by the change of parent.
_FOLLOW = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,15);"
    "os.getppid()==int(sys.argv[1]) and os.execv(sys.argv[2],sys.argv[2:])"
)


class SupervisorError(Exception):
    """The site could not be started; the text says why and what to do."""


def commands(address: str) -> dict[str, list[str]]:
    """The command line of each part, by name; ``address`` is host:port of the web process."""
    celery = [sys.executable, "-m", "celery", "-A", "webapp.celery"]
    quiet = ["--without-gossip", "--without-mingle", "--loglevel=INFO"]
    web = [sys.executable, "-m", "gunicorn", "webapp.wsgi:application", f"--bind={address}"]
    # The timeout watches a worker's heartbeat, not a request; /dev/shm because a heartbeat file on
    # a slow disk would stop it. Workers are replaced before slow leaks matter.
    web += ["--worker-class=gthread", "--workers=2", "--threads=8", "--timeout=30"]
    web += ["--graceful-timeout=30", "--max-requests=2000", "--max-requests-jitter=200"]
    web += ["--worker-tmp-dir=/dev/shm", "--no-control-socket"]
    beat_file = settings.VAR_DIR / "run" / "beat-schedule"
    worker = [*celery, "worker", "--queues=web", "--hostname=web@%h", "--concurrency=1", *quiet]
    worker += ["--max-tasks-per-child=50"]
    # One run at a time, each in a fresh process, and none fetched while another runs.
    gpu = [*celery, "worker", "--queues=gpu", "--hostname=gpu@%h", "--concurrency=1", *quiet]
    gpu += ["--max-tasks-per-child=1", "--prefetch-multiplier=1", "--disable-prefetch"]
    beat = [*celery, "beat", f"--schedule={beat_file}", "--pidfile=", "--loglevel=INFO"]
    return {"web": web, "worker": worker, "gpu": gpu, "beat": beat}


@dataclass
class _Child:
    name: str
    command: list[str]
    environ: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    due: float = 0.0

    def start(self) -> None:
        command = self.command
        if sys.platform == "linux":
            command = [sys.executable, "-c", _FOLLOW, str(os.getpid()), *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=settings.BASE_DIR,
                env=self.environ,
                # Ctrl-C in a terminal reaches us only; we end the children in order.
                start_new_session=True,
            )
        self.started = time.monotonic()

    def ended(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def tail(self, lines: int = 8) -> str:
        with contextlib.suppress(OSError):
            text = self.log.read_text(errors="replace").splitlines()[-lines:]
            return "".join(f"\n  {line}" for line in text)
        return ""

    def ask_to_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def stop(self, seconds: float) -> bool:
        """Ask it to end and wait; False where it had to be killed."""
        self.ask_to_end()
        if self.process is None:
            return True
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
            return False
        return True


@dataclass
class Supervisor:
    """``with Supervisor() as site:`` has the site up inside the block; ``site.address`` is where.

    Args:
        port: None takes 8000, or a free one where 8000 is taken.
        parts: which of "web", "worker", "gpu", "beat" to run.
        say: gets one line for whatever a person should know.

    Raises SupervisorError, with one sentence, where the site cannot be started.
    """

    port: int | None = None
    parts: tuple[str, ...] = ("web", "worker", "gpu", "beat")
    say: Callable[[str], None] = print
    address: str = field(init=False, default="")
    _children: dict[str, _Child] = field(init=False, default_factory=dict)
    _over: threading.Event = field(init=False, default_factory=threading.Event)
    _watcher: threading.Thread | None = field(init=False, default=None)
    _held: TextIO | None = field(init=False, default=None)

    def __enter__(self) -> Supervisor:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Services, migrations, static files, then every part; returns when /readyz says ready."""
        self._held = _hold()
        port = _port(self.port)
        self.address = f"http://127.0.0.1:{port}"
        prepare(self.say)
        self._children = self._made(f"127.0.0.1:{port}")
        _note(self._held, self.address)
        for child in self._children.values():
            child.start()
        if "web" in self._children:
            self._wait_ready()
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self._watcher.start()

    def wait(self) -> None:
        """Until SIGINT or SIGTERM (main thread only)."""
        asked = threading.Event()
        before = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)}
        for sig in before:
            signal.signal(sig, lambda *_: asked.set())
        try:
            while not asked.wait(0.5):
                pass
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def stop(self) -> None:
        """End all parts in order. The services stay up: other commands may use them."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join(30)
            self._watcher = None
        running = [name for name in STOP_ORDER if name in self._children]
        # All but the web process are asked at once, so that their waits do not add up.
        for name in running:
            if name != "web":
                self._children[name].ask_to_end()
        for name in running:
            if not self._children[name].stop(STOP_SECONDS[name]):
                self.say(f"{name} did not end in {STOP_SECONDS[name]:.0f} s and was killed")
        self._children = {}
        if self._held is not None:
            self._held.truncate(0)
            self._held.close()
            self._held = None

    def _made(self, bind: str) -> dict[str, _Child]:
        logs, run = settings.VAR_DIR / "log", settings.VAR_DIR / "run"
        for folder in (logs, run):
            folder.mkdir(parents=True, exist_ok=True)
        environ = dict(os.environ)
        if not environ.get(env.BASE_URL.name):
            environ[env.BASE_URL.name] = self.address
        made = {}
        for name, command in commands(bind).items():
            if name in self.parts:
                log = logs / f"{name}.log"
                if log.exists() and log.stat().st_size > LOG_KEEP_BYTES:
                    log.replace(log.with_suffix(".log.1"))
                made[name] = _Child(name, command, environ, log)
        return made

    def _wait_ready(self) -> None:
        web = self._children["web"]
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if web.ended() is not None:
                raise SupervisorError(f"The web process ended at start: {web.log}:{web.tail()}")
            if _ready(f"{self.address}/readyz"):
                return
            time.sleep(0.2)
        raise SupervisorError(
            f"{self.address}/readyz was not ready in {READY_SECONDS} s: {web.log}:{web.tail()}"
        )

    def _watch(self) -> None:
        checked = time.monotonic()
        while not self._over.wait(0.5):
            for child in self._children.values():
                self._mend(child)
            if time.monotonic() - checked > SERVICES_EVERY_SECONDS:
                checked = time.monotonic()
                self._mend_services()

    def _mend(self, child: _Child) -> None:
        """Start a child that died again, later each time it dies young."""
        code = child.ended()
        if code is None:
            return
        now = time.monotonic()
        if child.due == 0.0:
            if now - child.started > STEADY_SECONDS:
                child.failures = 0
            wait = RESTART_SECONDS[min(child.failures, len(RESTART_SECONDS) - 1)]
            child.failures += 1
            child.due = now + wait
            how = f"signal {-code}" if code < 0 else f"status {code}"
            self.say(f"{child.name} ended with {how}; again in {wait:.0f} s (log: {child.log})")
        elif now >= child.due:
            child.due = 0.0
            child.start()

    def _mend_services(self) -> None:
        if not uses_embedded():
            return
        try:
            stopped = [service.name for service in embedded.status() if service.pid is None]
            if stopped:
                embedded.start()
                self.say(f"{' and '.join(stopped)} had stopped and runs again")
        except embedded.EmbeddedError as error:
            self.say(str(error))


def uses_embedded() -> bool:
    """Is at least one of the two services ours to start?"""
    return env.DATABASE_URL.get() is None or env.REDIS_URL.get() is None


def prepare(say: Callable[[str], None] = print) -> None:
    """Start the embedded services where no others are given; migrate; gather static files."""
    if uses_embedded():
        try:
            urls = embedded.start()
        except embedded.EmbeddedError as error:
            raise SupervisorError(str(error)) from error
        for given, ours, name in (
            (env.DATABASE_URL.get(), urls.database_url == settings.DATABASE_URL, "PostgreSQL"),
            (env.REDIS_URL.get(), urls.redis_url == settings.REDIS_URL, "Valkey"),
        ):
            if given is None and not ours:
                raise SupervisorError(f"{name} had to move to another port; start once more.")
    say("Database migrations")
    call_command("migrate", interactive=False, verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)


def end_by_sigterm_as_by_ctrl_c() -> None:
    """SIGTERM raises KeyboardInterrupt, so that ``with Supervisor()`` ends its parts in order."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def running() -> tuple[int, str] | None:
    """(pid, address) of the supervisor that runs on this var folder, or None."""
    path = _lock_path()
    if not path.exists():
        return None
    with path.open("r+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with contextlib.suppress(ValueError, KeyError):
                noted = json.loads(handle.read())
                return noted["pid"], noted["address"]
            return 0, ""
    return None


def _lock_path() -> Path:
    return Path(settings.VAR_DIR) / "run" / "site.lock"


def _hold() -> TextIO:
    """Two sites on one folder would have two beats: the kernel lets one hold the lock."""
    path = _lock_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = path.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        pid, address = running() or (0, "")
        raise SupervisorError(
            f"The site runs from this folder already (process {pid}, {address}); end it first."
        ) from None
    return handle


def _note(handle: TextIO, address: str) -> None:
    handle.seek(0)
    handle.truncate(0)
    json.dump({"pid": os.getpid(), "address": address}, handle)
    handle.flush()


def _candidates(wanted: int | None) -> Iterator[int]:
    if wanted is not None:
        yield wanted
        return
    yield 8000
    yield 0


def _port(wanted: int | None) -> int:
    for port in _candidates(wanted):
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As gunicorn does: a port in TIME_WAIT after our own last run is not taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise SupervisorError(
        f"Port {wanted} is in use or not allowed: end what uses it, or choose another with --port."
    )


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
