"""Keeps a lease alive while the engine works, on a thread and a connection of its own."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

from django.db import DatabaseError, InterfaceError, connection

from webapp.experiments import lease as leases
from webapp.experiments.lease import Lease, LeaseLost
from webapp.experiments.models import Experiment
from webapp.experiments.states import ExperimentState, TrialState
from webapp.experiments.timing import times

log = logging.getLogger(__name__)


class Keeper:
    """Heartbeats, shows progress and listens for a cancellation, until its block is left.

    ``cancelled`` and ``lost`` say why the run should stop. Progress is written from here, so that
    a slow database never holds up whoever measures.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.cancelled = threading.Event()
        self.lost = threading.Event()
        self._times = times()
        self._leave = threading.Event()
        self._lock = threading.Lock()
        self._progress: tuple[int, int] | None = None
        self._log: list[str] | None = None
        self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="lease-keeper", daemon=True)

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave.set()
        self._thread.join()

    def stop_asked(self) -> bool:
        return self.cancelled.is_set() or self.lost.is_set()

    def show_progress(self, trial_id: int, done: int) -> None:
        with self._lock:
            self._progress = (trial_id, done)

    def show_log(self, lines: list[str]) -> None:
        with self._lock:
            self._log = lines

    def _work(self) -> None:
        due = time.monotonic() + self._times.heartbeat_s
        try:
            while not self._leave.wait(self._times.poll_s):
                if self._tick(heartbeat=time.monotonic() >= due):
                    due = self._renewed + self._times.heartbeat_s
                if self.lost.is_set():
                    return
        finally:
            connection.close()

    def _tick(self, *, heartbeat: bool) -> bool:
        """True when the lease was renewed."""
        try:
            if heartbeat:
                leases.renew(self.lease)
                self._renewed = time.monotonic()
            self._listen()
            self._tell()
        except LeaseLost:
            self.lost.set()
        except (DatabaseError, InterfaceError) as error:
            log.warning("heartbeat failed (%s)", type(error).__name__)
            connection.close()
            # Nobody may trust a lease that could not be renewed for its whole length.
            if time.monotonic() - self._renewed > self._times.lease_ttl_s:
                self.lost.set()
            return False
        return heartbeat

    def _listen(self) -> None:
        state = Experiment.objects.values_list("state", flat=True).get(pk=self.lease.experiment_id)
        if state == ExperimentState.CANCELLED:
            self.cancelled.set()

    def _tell(self) -> None:
        with self._lock:
            progress, self._progress = self._progress, None
            lines, self._log = self._log, None
        if progress:
            trial_id, done = progress
            # A late count finds its trial ended and changes nothing.
            running = self.lease.held_trials().filter(pk=trial_id, state=TrialState.RUNNING)
            running.update(done=done)
        if lines is not None:
            leases.write(self.lease, log_tail=lines)
