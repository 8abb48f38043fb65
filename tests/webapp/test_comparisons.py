"""From measurements to a verdict known beforehand; big experiments; what is never stored."""

from __future__ import annotations

import base64
import json
import time

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from redis import Redis

from calculator.measurement import Measurement as Measured
from calculator.measurement import Outcome
from runner.plan import Arm
from tests.webapp.lab import (
    ALIKE,
    CANARY,
    FASTER,
    STEADY,
    grown,
    make_experiment,
    make_plan,
    make_sample,
    make_target,
    measure,
    work_all,
)
from tests.webapp.people import People
from webapp.celery import app
from webapp.comparisons import services
from webapp.comparisons.models import Comparison
from webapp.comparisons.selectors import for_experiment
from webapp.experiments import services as experiments
from webapp.experiments.measurements import copy_in, load
from webapp.experiments.models import Experiment, Measurement, Run, Trial
from webapp.experiments.states import ExperimentState, RunState

# Slow enough that the load generator's own work is no matter.
SLOW = {**STEADY, "ttft_ms": 20.0, "step_ms": 30.0, "output_tokens": 9}
SLOW_TWICE = {**SLOW, "draft_tokens": 3, "acceptance_rate": 0.75}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.quiet
def test_a_candidate_that_is_twice_as_fast_is_switched_on(people: People) -> None:
    experiment = measure(
        make_experiment(people, {"none": SLOW, "ngram": SLOW_TWICE}, levels=((1, 6), (2, 8)))
    )
    assert (experiment.state, experiment.reason) == (ExperimentState.DONE, "")
    reasons = list(Trial.objects.exclude(reasons=[]).values_list("reasons", flat=True))
    assert reasons == []
    (found,) = for_experiment(experiment)
    assert found.arm == "ngram"
    assert found.verdict["code"] == "switch_on", found.verdict
    level = found.document["levels"][0]
    assert level["effects"]["e2e_ms"]["status"] == "better"
    assert level["effects"]["e2e_ms"]["ratio"]["high"] < 0.9
    assert set(level["categories"]) == {"code", "prose"}
    acceptance = level["acceptance"]
    assert acceptance["status"] == "measured"
    assert 0.5 < acceptance["acceptance_rate"]["estimate"] < 0.8


def test_a_candidate_that_is_no_faster_is_not_switched_on(people: People) -> None:
    experiment = measure(make_experiment(people, ALIKE, levels=((1, 12),)))
    (found,) = for_experiment(experiment)
    assert found.verdict["code"] in ("not_proven", "leave_off"), found.verdict


def test_each_candidate_has_its_own_comparison_and_a_refused_one_none(people: People) -> None:
    candidates = (Arm("second", "suffix"), Arm("first", "ngram"), Arm("third", "ngram"))
    experiment = measure(make_experiment(people, FASTER, candidates=candidates, levels=((1, 6),)))
    assert experiment.state == ExperimentState.DONE
    assert [found.arm for found in for_experiment(experiment)] == ["first", "third"]


def test_analysing_twice_gives_the_same_documents(people: People) -> None:
    experiment = measure(make_experiment(people, FASTER, levels=((1, 6),)))
    first = Comparison.objects.values("arm", "document", "verdict").get()
    services.analyse(experiment.pk)
    Experiment.objects.filter(pk=experiment.pk).update(state=ExperimentState.ANALYSING)
    assert services.sweep() == 1
    services.analyse(experiment.pk)
    assert Comparison.objects.values("arm", "document", "verdict").get() == first
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.DONE


def test_an_analysis_that_fails_ends_in_a_sentence_and_can_be_done_again(people: People) -> None:
    experiment = make_experiment(people, FASTER, levels=((1, 6),))
    work_all()
    Trial.objects.filter(run__experiment=experiment).update(client={"unknown": 1})
    measured = measure(experiment)
    assert measured.state == ExperimentState.FAILED
    assert "could not be computed" in measured.reason
    Trial.objects.filter(run__experiment=experiment).update(client=None)
    experiments.resume(experiment, people.consultant)
    assert experiment.state == ExperimentState.ANALYSING
    assert measure(experiment).state == ExperimentState.DONE


def test_measurements_come_back_as_they_went_in(people: People) -> None:
    experiment = make_experiment(people)
    trial = Trial.objects.filter(run__experiment=experiment).first()
    assert trial is not None
    rows = (
        Measured("a", 0, "code", Outcome.OK, 1, 2, 9, 3, 4, 8, 10, 5, 20, 2, 7, "stop", None),
        Measured("b", 1, None, Outcome.TIMEOUT, 1, 2, 9, error_kind="timeout"),
    )
    copy_in(trial.pk, rows)
    assert load([trial.pk]) == {trial.pk: rows}


def test_a_result_of_a_hundred_thousand_measurements_is_shown_from_documents(
    people: People, client: Client
) -> None:
    experiment = make_experiment(people, levels=((1, 6),))
    grown(experiment, 25_000)
    assert Measurement.objects.count() == 100_000
    services.analyse(experiment.pk)
    experiment.refresh_from_db()
    assert experiment.state == ExperimentState.DONE, experiment.reason
    client.force_login(people.consultant)
    address = f"/experiments/{experiment.public_id}/"
    client.get(address)  # the first page compiles templates
    with CaptureQueriesContext(
        connection,
    ) as queries:
        began = time.process_time()
        page = client.get(address)
        took_s = time.process_time() - began
    assert page.status_code == 200
    assert not any(Measurement._meta.db_table in query["sql"] for query in queries)
    assert took_s < 0.2


def test_no_text_of_a_sample_is_in_any_table(people: People) -> None:
    sample = make_sample(people)
    experiment = measure(make_experiment(people, FASTER, sample=sample, levels=((2, 6),)))
    assert experiment.state == ExperimentState.DONE
    failing = {"none": {**STEADY, "crash_after_requests": 4}, "ngram": STEADY}
    target = make_target(failing, "Failing")
    failed = experiments.draft(
        people.workspace, people.consultant, sample, target, "Fails", make_plan(target)
    )
    experiments.queue(failed, people.consultant)
    measure(failed)
    assert Run.objects.filter(state=RunState.FAILED).exists()
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(
                f'SELECT count(*) FROM "{table}" AS t WHERE t::text LIKE %s',  # noqa: S608
                [f"%{CANARY}%"],
            )
            assert cursor.fetchone() == (0,), table


def test_no_text_of_a_sample_is_in_any_message(people: People) -> None:
    """Task arguments are ids: every message that an experiment sends is looked through."""
    broker = Redis.from_url(app.conf.broker_url)
    for queue in ("web", "gpu"):
        broker.delete(queue)
    measure(make_experiment(people, FASTER, levels=((1, 6),)))
    messages = [m for queue in ("web", "gpu") for m in broker.lrange(queue, 0, -1)]
    assert len(messages) >= 3
    for message in messages:
        arguments = json.loads(base64.b64decode(json.loads(message)["body"]))[0]
        assert all(isinstance(argument, int) for argument in arguments)
        assert CANARY.encode() not in message
