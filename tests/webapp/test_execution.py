"""Runs carried out with real simulated servers: recorded, refused, dying, cancelled, resumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from celery import Celery
from django.db import connection
from pytest_django import Settings

from tests.webapp.lab import (
    ALIKE,
    FASTER,
    HOST,
    STEADY,
    make_experiment,
    make_plan,
    make_sample,
    make_target,
    measure,
    run_of,
    work_all,
)
from tests.webapp.people import People
from webapp.celery import app
from webapp.comparisons.services import sweep
from webapp.core.errors import Refusal
from webapp.experiments import services
from webapp.experiments.execution import execute_next
from webapp.experiments.models import Experiment, Measurement, Run, Trial
from webapp.experiments.reaper import reap
from webapp.experiments.selectors import for_workspace, progress
from webapp.experiments.states import TRIAL_MEASURED, ExperimentState, RunState, TrialState
from webapp.samples import services as samples

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def short_times(settings: Settings) -> None:
    settings.EXPERIMENT_TIMES = {
        "lease_ttl_s": 3.0, "heartbeat_s": 0.3, "poll_s": 0.05, "write_patience_s": 3.0,
    }  # fmt: skip


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def measured_of(run: Run) -> list[bool]:
    """Whether each trial has its measurements. A busy machine may have made them unbelievable."""
    return [trial.state in TRIAL_MEASURED for trial in run.trials.all()]


class Worker:
    """A worker on a thread of this process, so that the test can act while it measures."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        try:
            execute_next(HOST)
        finally:
            connection.close()

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_an_experiment_is_measured_and_recorded(people: People) -> None:
    experiment = make_experiment(people, FASTER)
    assert work_all() == 4
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.ANALYSING
    runs = list(experiment.runs.all())
    assert [run.arm for run in runs] == ["baseline", "ngram", "ngram", "baseline"]
    for run in runs:
        assert run.state == RunState.RECORDED
        assert run.fingerprint["engine"] == "simulator"
        assert run.fingerprint["device"] == "cpu"
        assert run.engine_start_s is not None
        assert run.lease_until is None
        assert run.output is not None
        assert len(run.output["answers"]) == 2
        assert measured_of(run) == [True, True]
    speculating = Trial.objects.filter(run__arm="ngram")
    assert all(trial.counters and trial.counters["drafts"] > 0 for trial in speculating)
    rows = Measurement.objects.filter(trial__run__experiment=experiment)
    assert rows.count() == 4 * 12
    by_run = [
        sorted(rows.filter(trial__run=run).values_list("trial__concurrency", "request_id"))
        for run in runs
    ]
    assert by_run[1:] == by_run[:1] * 3  # the same requests at each level of every run


def test_progress_tells_how_far_it_is(people: People) -> None:
    experiment = make_experiment(people)
    before = progress(experiment)
    assert (before.done, before.total, before.trials_total, before.runs_total) == (0, 48, 8, 4)
    assert before.concurrencies == [1, 2]
    assert "No worker" in before.waiting
    assert before.seconds_left is not None
    execute_next(HOST)
    experiment.refresh_from_db()
    after = progress(experiment)
    assert (after.done, after.share, after.percent) == (12, 0.25, 25.0)
    assert after.runs_ended == 1
    assert after.seconds_left is not None
    assert after.runs[0].state == RunState.RECORDED
    assert [cell and cell.done for cell in after.runs[0].cells] == [6, 6]
    assert "free engine slot" in after.waiting
    measure(experiment)
    done = progress(experiment)
    assert (done.share, done.seconds_left, done.waiting) == (1.0, None, "")


def test_an_arm_that_the_engine_refuses_is_a_finding(people: People) -> None:
    experiment = make_experiment(people, {"none": STEADY})
    assert work_all() == 3  # the refused arm is not started a second time
    experiment.refresh_from_db()
    refused = experiment.runs.filter(arm="ngram")
    assert {run.state for run in refused} == {RunState.UNSUPPORTED}
    assert all("no behaviour for the method 'ngram'" in run.reason for run in refused)
    measure(experiment)
    assert experiment.state == ExperimentState.DONE
    assert "refused the candidate" in experiment.reason
    assert "no behaviour" in experiment.reason


def test_a_refused_baseline_ends_everything_at_once(people: People) -> None:
    experiment = make_experiment(people, {"ngram": STEADY})
    assert work_all() == 1
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.FAILED
    assert "baseline was never measured" in experiment.reason
    assert "no behaviour" in experiment.reason


def test_an_engine_that_dies_at_start_fails_with_its_reason(people: People) -> None:
    dying = {**STEADY, "exit_at_start": "the weights are not there"}
    experiment = make_experiment(people, {"none": dying, "ngram": STEADY})
    work_all()
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.FAILED
    assert "before it served anything" in experiment.reason
    run = run_of(experiment, 0)
    assert run.state == RunState.FAILED
    assert any("the weights are not there" in line for line in run.log_tail)


def test_an_engine_that_dies_in_the_middle_costs_one_trial(people: People) -> None:
    # In the second trial: 6, then 4. A warm-up takes as many rounds as it needs, so there is none.
    dying = {**STEADY, "crash_after_requests": 10}
    experiment = make_experiment(people, {"none": STEADY, "ngram": dying}, warmup_requests=0)
    assert work_all() == 4
    experiment.refresh_from_db()
    lost = run_of(experiment, 1)
    assert lost.state == RunState.FAILED
    assert measured_of(lost) == [True, False]
    measure(experiment)
    assert experiment.state == ExperimentState.PARTIAL
    assert "2 of 8 trials could not be measured. Run 2 (ngram): The engine" in experiment.reason


def test_a_partial_experiment_measures_what_is_missing(people: People) -> None:
    dying = {**STEADY, "crash_after_requests": 10}
    experiment = make_experiment(people, {"none": STEADY, "ngram": dying}, warmup_requests=0)
    measure(experiment)
    assert experiment.state == ExperimentState.PARTIAL
    kept = set(Measurement.objects.values_list("pk", flat=True))
    services.resume(experiment, people.consultant)
    assert experiment.state == ExperimentState.QUEUED
    added = Run.objects.filter(experiment=experiment, attempt=2)
    # One trial each is missing; alone in its run the engine lives long enough for it.
    assert [[trial.requests for trial in run.trials.all()] for run in added] == [[6], [6]]
    assert work_all() == 2
    measure(experiment)
    assert experiment.state == ExperimentState.DONE
    assert experiment.reason == ""
    assert kept < set(Measurement.objects.values_list("pk", flat=True))


def test_cancelling_stops_the_trial_under_way_and_keeps_the_rest(people: People) -> None:
    slow = {**STEADY, "step_ms": 30.0}
    experiment = make_experiment(people, {"none": slow, "ngram": slow}, levels=((2, 6), (1, 6)))
    with Worker():
        wait_for(lambda: Trial.objects.filter(state__in=TRIAL_MEASURED).exists())
        wait_for(lambda: Trial.objects.filter(state=TrialState.RUNNING, done__gt=0).exists())
        asked = time.monotonic()
        services.cancel(experiment, people.consultant)
        services.cancel(experiment, people.consultant)
        with pytest.raises(Refusal, match="still stopping"):
            services.resume(experiment, people.consultant)
    assert time.monotonic() - asked < 3
    run = run_of(experiment, 0)
    assert run.state == RunState.CANCELLED
    assert measured_of(run) == [True, False]
    assert not execute_next(HOST)
    assert experiment.state == ExperimentState.CANCELLED
    assert set(experiment.runs.values_list("state", flat=True)) == {RunState.CANCELLED}


def test_a_cancelled_experiment_can_go_on(people: People) -> None:
    experiment = make_experiment(people)
    execute_next(HOST)
    services.cancel(experiment, people.consultant)
    services.resume(experiment, people.consultant)
    assert work_all() == 3
    measure(experiment)
    assert experiment.state == ExperimentState.DONE
    assert Measurement.objects.count() == 4 * 12


def test_a_lost_lease_stops_the_engine_and_writes_nothing(people: People) -> None:
    slow = {**STEADY, "step_ms": 30.0}
    experiment = make_experiment(people, {"none": slow, "ngram": slow})
    with Worker():
        wait_for(lambda: Trial.objects.filter(state=TrialState.RUNNING, done__gt=0).exists())
        Run.objects.filter(state=RunState.MEASURING).update(lease_until="2020-01-01T00:00:00Z")
        assert reap() == 1
    lost, successor = run_of(experiment, 0), run_of(experiment, 0, attempt=2)
    assert (lost.state, lost.code) == (RunState.FAILED, "worker_lost")
    assert successor.state == RunState.PENDING
    assert not Measurement.objects.exists()


def test_a_sample_whose_text_is_gone_fails_with_a_sentence(people: People) -> None:
    sample = make_sample(people)
    experiment = make_experiment(people, sample=sample)
    execute_next(HOST)
    type(sample).objects.filter(pk=sample.pk).update(status="deleted")
    work_all()
    experiment.refresh_from_db()
    measure(experiment)
    assert experiment.state == ExperimentState.PARTIAL
    assert "upload it again" in experiment.reason
    with pytest.raises(Refusal, match="upload it again"):
        services.resume(experiment, people.consultant)


def test_a_sample_in_use_keeps_its_text(people: People) -> None:
    sample = make_sample(people)
    experiment = make_experiment(people, sample=sample)
    with pytest.raises(Refusal, match="cancel it"):
        samples.delete_text(sample, people.consultant)
    services.cancel(experiment, people.consultant)
    samples.delete_text(sample, people.consultant)


def test_redis_that_is_down_loses_nothing(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = make_experiment(people, queued=False)
    nobody = Celery("nobody", broker="redis://127.0.0.1:9/0", set_as_current=False)
    nobody.conf.broker_transport_options = app.conf.broker_transport_options
    monkeypatch.setattr("webapp.core.nudge.app", nobody)
    services.queue(experiment, people.consultant)
    assert experiment.state == ExperimentState.QUEUED
    assert work_all() == 4
    monkeypatch.undo()
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.ANALYSING
    assert sweep() == 1
    measure(experiment)
    assert experiment.state == ExperimentState.DONE


def test_what_cannot_be_measured_is_refused_before_it_starts(people: People) -> None:
    sample = make_sample(people, requests=10)
    with pytest.raises(Refusal, match="add 5 more requests"):
        make_experiment(people, sample=sample)
    with pytest.raises(Refusal, match="at least 2 runs"):
        make_experiment(people, sample=sample, runs_per_arm=1)
    assert not Experiment.objects.exists()


def test_samples_and_models_must_be_ones_own_and_offered(people: People) -> None:
    sample = make_sample(people)
    target = make_target(ALIKE)
    plan = make_plan(target)
    with pytest.raises(Refusal, match="this workspace"):
        services.draft(people.other_workspace, people.stranger, sample, target, "Mine", plan)
    with pytest.raises(Refusal, match="name"):
        services.draft(people.workspace, people.consultant, sample, target, " ", plan)
    target.enabled = False
    with pytest.raises(Refusal, match="no longer offered"):
        services.draft(people.workspace, people.consultant, sample, target, "Old", plan)


def test_starting_twice_is_once_and_the_end_is_the_end(people: People) -> None:
    experiment = make_experiment(people, queued=False)
    with pytest.raises(Refusal, match="not started"):
        services.cancel(experiment, people.consultant)
    services.queue(experiment, people.consultant)
    services.queue(experiment, people.consultant)
    assert experiment.runs.count() == 4
    services.resume(experiment, people.consultant)
    measure(experiment)
    for service in (services.cancel, services.resume):
        with pytest.raises(Refusal, match="has ended"):
            service(experiment, people.consultant)


def test_the_list_of_a_workspace_shows_verdicts_at_a_glance(
    people: People, django_assert_num_queries: Callable[[int], object]
) -> None:
    sample = make_sample(people)
    measured = make_experiment(people, FASTER, sample=sample)
    measure(measured)
    fresh = make_experiment(people, sample=sample, queued=False)
    with django_assert_num_queries(1):  # type: ignore[attr-defined]
        listed = [
            (row.pk, row.sample.name, row.verdicts) for row in for_workspace(people.workspace)
        ]
    assert listed[0] == (fresh.pk, "Traffic", [])
    (verdict,) = listed[1][2]
    assert verdict["arm"] == "ngram"
    assert verdict["sentence"]
    assert not for_workspace(people.other_workspace).exists()
