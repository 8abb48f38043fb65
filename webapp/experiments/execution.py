"""One run from claim to end: what a nudged worker does."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from runner.events import Event, RunEnded
from runner.execute import execute_run
from runner.plan import ExperimentPlan, PlanError, PlannedRun, RequestInfo, schedule
from runner.plan_codec import from_document
from runner.traffic.request import NormalisedRequest
from webapp.core.errors import Refusal
from webapp.core.nudge import nudge
from webapp.experiments import reaper, shutdown
from webapp.experiments.keeper import Keeper
from webapp.experiments.lease import Lease, LeaseLost, claim
from webapp.experiments.models import Experiment, Run, Trial
from webapp.experiments.patience import patiently
from webapp.experiments.recorder import Recorder, end_run
from webapp.experiments.settlement import EXECUTE_NEXT, settle
from webapp.fleet.services import register_host, this_host
from webapp.samples.selectors import load_requests

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """What a claimed run needs, loaded before the engine starts."""

    plan: ExperimentPlan
    planned: PlannedRun
    requests: dict[str, NormalisedRequest]
    digest_key: str
    skip_trials: frozenset[int]


STOPPED_CODE = "worker_stopped"
STOPPED_SENTENCE = (
    "The worker was shut down while it measured this run. Trials recorded before are kept."
)


def execute_next(host: str = "") -> bool:
    """Claim the next run that this host can do and carry it out; False when there is none."""
    host = host or this_host()
    close_old_connections()
    register_host(host)
    if shutdown.announced():
        return False
    lease = claim(host, f"{host}:{os.getpid()}")
    if lease is None:
        return False
    log.info("run %s of experiment %s claimed", lease.run_id, lease.experiment_id)
    try:
        _carry_out(lease)
    except LeaseLost:
        log.warning("run %s was taken away; nothing more is written for it", lease.run_id)
    try:
        patiently(lambda: settle(lease.experiment_id))
    except (DatabaseError, InterfaceError):
        log.error("the database is away; the reaper settles run %s later", lease.run_id)
    nudge(EXECUTE_NEXT)
    return True


def _carry_out(lease: Lease) -> None:
    # By public id: numbers are given again by another database that shares this folder.
    public_id = Run.objects.values_list("public_id", flat=True).get(pk=lease.run_id)
    workdir = Path(settings.VAR_DIR) / "runs" / f"{public_id}-{lease.fence}"
    try:
        with Keeper(lease) as keeper:
            _measure(lease, keeper, workdir)
    except LeaseLost:
        raise
    except Exception as error:
        # The class only: an error's own text may quote what was being sent.
        log.exception("run %s failed", lease.run_id)
        reason = f"The run stopped on an unexpected error ({type(error).__name__})."
        if isinstance(error, DatabaseError | InterfaceError):
            reason = "The database did not answer for too long, so the run was given up."
        _end(lease, RunEnded("failed", "internal_error", reason))
    finally:
        # What counts is in rows by now. An engine's log can quote what it was sent.
        shutil.rmtree(workdir, ignore_errors=True)


def _measure(lease: Lease, keeper: Keeper, workdir: Path) -> None:
    try:
        work = _load(lease)
    except (Refusal, PlanError) as error:
        _end(lease, RunEnded("failed", "not_measurable", str(error)))
        return
    _use_device(lease.device)
    recorder = Recorder(lease, keeper)
    # Idle in no transaction and with no connection held while the engine works.
    connection.close()
    execute_run(
        work.planned,
        work.plan,
        work.requests,
        workdir=workdir,
        digest_key=work.digest_key,
        emit=_unless_shut_down(recorder, keeper, lease),
        should_stop=lambda: keeper.stop_asked() or shutdown.announced(),
        skip_trials=work.skip_trials,
    )


def _load(lease: Lease) -> Work:
    """Raises Refusal or PlanError when the run can't be measured (any more)."""
    experiment = Experiment.objects.select_related("sample").get(pk=lease.experiment_id)
    run = Run.objects.get(pk=lease.run_id)
    plan = from_document(experiment.plan)
    requests = load_requests(experiment.sample)
    infos = [RequestInfo(item.id, item.category, item.prompt_key) for item in requests]
    runs = schedule(plan, infos)
    planned = runs[run.index]
    to_do = set(Trial.objects.filter(run=run).values_list("index", flat=True))
    return Work(
        plan=plan,
        planned=planned,
        requests={item.id: item for item in requests},
        digest_key=experiment.digest_key,
        skip_trials=frozenset(trial.index for trial in planned.trials) - to_do,
    )


def _use_device(device: str) -> None:
    """One engine sees one GPU: engines inherit this process's environment."""
    kind, _, number = device.partition(":")
    if kind == "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = number


def _unless_shut_down(recorder: Recorder, keeper: Keeper, lease: Lease) -> Callable[[Event], None]:
    """A run that stops because its worker does is lost, not cancelled: a successor goes on."""

    def emit(event: Event) -> None:
        stopped = isinstance(event, RunEnded) and event.status == "cancelled"
        if stopped and not keeper.stop_asked() and shutdown.announced():
            patiently(lambda: _hand_over(lease))
            return
        recorder(event)

    return emit


def _hand_over(lease: Lease) -> None:
    reaper.close_lost(lease.run_id, lease.fence, STOPPED_CODE, STOPPED_SENTENCE)


def _end(lease: Lease, ended: RunEnded) -> None:
    """Close the run; where even that can't be written, the reaper does when the lease lapses."""
    try:
        patiently(lambda: end_run(lease, ended))
    except (DatabaseError, InterfaceError):
        log.error("the end of run %s could not be written", lease.run_id)
