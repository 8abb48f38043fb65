"""Claims: one run, one slot, one worker, in the plan's order; a stale fence writes nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from calculator.measurement import ClientHealth, Measurement, Outcome
from runner.events import (
    EngineReady,
    Event,
    OutputChecked,
    Phase,
    RunEnded,
    TrialRecorded,
    TrialStarted,
)
from tests.calculator.greedy import record
from tests.webapp.lab import HOST, make_experiment, make_sample, run_of
from tests.webapp.people import People
from webapp.experiments import services
from webapp.experiments.keeper import Keeper
from webapp.experiments.lease import Lease, LeaseLost, claim, renew
from webapp.experiments.models import Experiment, Run
from webapp.experiments.models import Measurement as MeasurementRow
from webapp.experiments.reaper import close_lost, reap
from webapp.experiments.recorder import Recorder
from webapp.experiments.states import RUN_ACTIVE, ExperimentState, RunState, TrialState
from webapp.fleet.models import Slot
from webapp.fleet.services import Device, register_host

pytestmark = pytest.mark.django_db(transaction=True)


def gpus(count: int, host: str = HOST) -> list[Slot]:
    register_host(host, [Device(f"gpu:{number}", "GPU") for number in range(count)])
    return list(Slot.objects.filter(host=host))


def claimed(host: str = HOST) -> Lease:
    lease = claim(host, "worker")
    assert lease is not None
    return lease


def at_once(workers: int, hosts: int) -> list[Lease]:
    """Claims by ``workers`` threads, each on its own connection, let loose together."""
    gate = threading.Barrier(workers)

    def work(number: int) -> Lease | None:
        try:
            gate.wait(10)
            return claim(f"host-{number % hosts}", f"worker-{number}")
        finally:
            connection.close()

    with ThreadPoolExecutor(workers) as pool:
        return [lease for lease in pool.map(work, range(workers)) if lease]


def measured(trial: int, requests: int = 3) -> TrialRecorded:
    rows = tuple(
        Measurement(f"r{n}", n, None, Outcome.OK, 0, 0, 9_000_000, 1, 2, 8_000_000, 5, 0, 7)
        for n in range(requests)
    )
    return TrialRecorded(trial, 0.009, rows, None, ClientHealth(0.1, 0.01, 0.01, 1, 0.5))


def walk(recorder: Recorder, *events: Event) -> None:
    for event in events:
        recorder(event)


def test_concurrent_claims_never_share_a_run_or_a_slot(people: People) -> None:
    sample = make_sample(people)
    for _ in range(4):
        make_experiment(people, sample=sample)
    for host in range(2):
        gpus(2, f"host-{host}")
    for _ in range(4):
        leases = at_once(workers=10, hosts=2)
        active = Run.objects.filter(state__in=RUN_ACTIVE)
        assert len({lease.run_id for lease in leases}) == len(leases)
        assert len(set(active.values_list("slot", flat=True))) == active.count()
        assert len(set(active.values_list("experiment", flat=True))) == active.count()
        for lease in leases[:2]:
            Recorder(lease, Keeper(lease))(RunEnded("failed", "test", "Ended by the test."))
    assert active.count() >= 2


def test_the_database_itself_refuses_a_second_engine_on_a_slot(people: People) -> None:
    sample = make_sample(people)
    first, second = (make_experiment(people, sample=sample) for _ in range(2))
    gpus(1)
    lease = claimed()
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(experiment=second, index=0).update(
            state=RunState.STARTING, slot_id=lease.slot_id
        )
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(experiment=first, index=1).update(state=RunState.STARTING)


def test_runs_go_in_order_one_at_a_time(people: People) -> None:
    experiment = make_experiment(people)
    gpus(4)
    order = []
    while lease := claim(HOST, "worker"):
        assert claim(HOST, "another") is None
        run = Run.objects.get(pk=lease.run_id)
        order.append((run.index, run.arm))
        Recorder(lease, Keeper(lease))(RunEnded("failed", "test", "Ended by the test."))
    assert order == [(0, "baseline"), (1, "ngram"), (2, "ngram"), (3, "baseline")]
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.RUNNING
    assert experiment.started_at is not None


def test_an_experiment_stays_on_its_slot_while_that_is_there(people: People) -> None:
    make_experiment(people)
    first, second = gpus(2)
    lease = claimed()
    assert lease.slot_id == first.pk
    Recorder(lease, Keeper(lease))(RunEnded("failed", "test", "Ended by the test."))
    Slot.objects.filter(pk=first.pk).update(enabled=False)
    assert claimed().slot_id == second.pk


def test_another_host_takes_over_only_when_the_first_is_gone(people: People) -> None:
    make_experiment(people)
    (slot,) = gpus(1)
    gpus(1, "other")
    lease = claimed()
    Recorder(lease, Keeper(lease))(RunEnded("failed", "test", "Ended by the test."))
    assert claim("other", "worker") is None
    Slot.objects.filter(pk=slot.pk).update(seen_at=timezone.now() - timedelta(hours=1))
    assert claim("other", "worker") is not None


def test_nothing_is_claimed_without_slot_or_work(people: People) -> None:
    assert claim(HOST, "worker") is None
    gpus(1)
    assert claim(HOST, "worker") is None
    make_experiment(people)
    Slot.objects.update(enabled=False)
    assert claim(HOST, "worker") is None
    assert claim("unknown host", "worker") is None


def test_a_stale_fence_writes_nothing(people: People) -> None:
    experiment = make_experiment(people)
    gpus(1)
    lease = claimed()
    recorder = Recorder(lease, Keeper(lease))
    walk(recorder, Phase("starting"), Phase("warming"), Phase("measuring"), TrialStarted(0))
    assert close_lost(lease.run_id, lease.fence, "worker_lost", "Lost.")
    before = list(Run.objects.order_by("pk").values())
    late: list[Event] = [
        Phase("stopping"),
        TrialStarted(1),
        measured(0),
        EngineReady({"engine": "late"}, 1.0),
        OutputChecked(record({"r0": ["aa"]})),
        RunEnded("recorded"),
    ]
    for event in late:
        with pytest.raises(LeaseLost):
            recorder(event)
    with pytest.raises(LeaseLost):
        renew(lease)
    assert list(Run.objects.order_by("pk").values()) == before
    assert not MeasurementRow.objects.exists()
    assert run_of(experiment, 0).trials.get(index=0).state == TrialState.FAILED


def test_a_successor_is_claimed_under_a_fence_of_its_own(people: People) -> None:
    experiment = make_experiment(people)
    gpus(1)
    lost = claimed()
    walk(
        Recorder(lost, Keeper(lost)),
        Phase("warming"), Phase("measuring"), TrialStarted(0), measured(0), TrialStarted(1),
    )  # fmt: skip
    Run.objects.filter(pk=lost.run_id).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert reap() == 1
    assert reap() == 0
    old, new = run_of(experiment, 0), run_of(experiment, 0, attempt=2)
    assert (old.state, old.code) == (RunState.FAILED, "worker_lost")
    assert "stopped answering" in old.reason
    assert [trial.index for trial in new.trials.all()] == [1]
    lease = claimed()
    assert lease.run_id == new.pk
    with pytest.raises(LeaseLost):
        renew(lost)
    renew(lease)


def test_a_run_is_given_up_after_two_successors(people: People) -> None:
    experiment = make_experiment(people)
    gpus(1)
    for attempt in (1, 2, 3):
        lease = claimed()
        assert Run.objects.get(pk=lease.run_id).attempt == attempt
        assert close_lost(lease.run_id, lease.fence, "worker_lost", "Lost.")
    last = run_of(experiment, 0, attempt=3)
    assert "3 times" in last.reason
    assert Run.objects.get(pk=claimed().run_id).index == 1
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.RUNNING


def test_a_trial_written_twice_is_there_once(people: People) -> None:
    """A commit whose answer was lost is tried again."""
    make_experiment(people)
    gpus(1)
    lease = claimed()
    recorder = Recorder(lease, Keeper(lease))
    walk(recorder, Phase("warming"), Phase("measuring"), TrialStarted(0), measured(0), measured(0))
    assert MeasurementRow.objects.count() == 3
    walk(recorder, Phase("stopping"), RunEnded("recorded"), RunEnded("recorded"))
    assert Run.objects.get(pk=lease.run_id).state == RunState.RECORDED


def test_ids_that_a_row_cannot_hold_are_kept_apart(people: People) -> None:
    make_experiment(people)
    gpus(1)
    lease = claimed()
    ids = ["a" * 300, "a" * 299 + "b", "nul\x00", "half \ud800"]
    rows = tuple(
        Measurement(name, n, name, Outcome.OK, 0, 0, 9, 1, 2, 8) for n, name in enumerate(ids)
    )
    event = TrialRecorded(0, 0.1, rows, None, ClientHealth(0.1, 0.01, 0.01, 1, 0.5))
    recorder = Recorder(lease, Keeper(lease))
    walk(recorder, TrialStarted(0), event, OutputChecked(record({name: ["aa"] for name in ids})))
    stored = list(MeasurementRow.objects.values_list("request_id", flat=True))
    assert len(set(stored)) == 4
    output = Run.objects.get(pk=lease.run_id).output
    assert output is not None
    assert set(output["answers"]) == set(stored)


def test_the_keeper_renews_the_lease_and_hears_a_cancellation(
    people: People, settings: object
) -> None:
    settings.EXPERIMENT_TIMES = {  # type: ignore[attr-defined]
        "lease_ttl_s": 5.0, "heartbeat_s": 0.05, "poll_s": 0.02,
    }  # fmt: skip
    experiment = make_experiment(people)
    gpus(1)
    lease = claimed()
    first = Run.objects.get(pk=lease.run_id).lease_until
    assert first is not None
    with Keeper(lease) as keeper:
        assert not keeper.cancelled.wait(0.2)
        renewed = Run.objects.get(pk=lease.run_id).lease_until
        assert renewed is not None
        assert renewed > first
        services.cancel(Experiment.objects.get(pk=experiment.pk), people.consultant)
        assert keeper.cancelled.wait(2)
        assert not keeper.lost.is_set()
        close_lost(lease.run_id, lease.fence, "worker_lost", "Lost.")
        assert keeper.lost.wait(2)
