"""From a headline number down to one chunk: what the pages say must be what was measured."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse

from calculator.measurement import Measurement as Measured
from calculator.measurement import Outcome
from tests.webapp.lab import CANARY, FASTER, make_experiment, measure
from tests.webapp.people import People
from tests.webapp.rows import answered, ended_experiment
from webapp.comparisons.models import Comparison
from webapp.experiments.measurements import copy_in, load, with_chunks
from webapp.experiments.models import Experiment, Measurement, Trial

pytestmark = pytest.mark.django_db(transaction=True)


def address(experiment: Experiment, name: str = "experiment-evidence", *numbers: int) -> str:
    return reverse(name, args=[experiment.public_id, *numbers])


def rows(client: Client, experiment: Experiment, **query: str) -> list[dict[str, str]]:
    answer = client.get(address(experiment, "experiment-evidence-csv"), query)
    assert answer["Content-Type"].startswith("text/csv")
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(text)))


def test_the_headline_is_the_geometric_mean_of_the_rows(
    as_consultant: Client, people: People
) -> None:
    experiment = measure(make_experiment(people, FASTER, levels=((1, 6), (2, 6))))
    document = Comparison.objects.get(experiment=experiment).document
    for level in document["levels"]:
        if not level["pairs"]:
            continue  # the machine was busy, and the trial is not believed
        for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
            ratios = defaultdict(list)
            load_level = str(level["concurrency"])
            for row in rows(as_consultant, experiment, level=load_level, metric=metric):
                before, after = float(row[f"baseline_{metric}"]), float(row[f"candidate_{metric}"])
                ratios[row["request"]].append(math.log(after / before))
            means = [sum(logs) / len(logs) for logs in ratios.values()]
            headline = level["effects"][metric]["ratio"]["estimate"]
            assert math.exp(sum(means) / len(means)) == pytest.approx(headline)
            assert len(means) == level["pairs"]
    page = as_consultant.get(address(experiment)).content.decode()
    assert CANARY not in page
    links = re.findall(r"/experiments/[0-9a-f-]+/runs/\d+/trials/\d+/requests/\d+", page)
    assert links
    for link in links[:3]:
        one = as_consultant.get(link)
        assert one.status_code == 200
        assert CANARY not in one.content.decode()
        listed = one.context["chunks"]
        assert listed[0].at_ms == pytest.approx(one.context["measured"].ttft_ms, abs=0.01)
        assert listed[-1].at_ms == pytest.approx(one.context["measured"].e2e_ms, abs=0.1)


def test_chunks_come_back_as_they_went_in_and_only_when_asked_for(people: People) -> None:
    trial = Trial.objects.filter(run__experiment=ended_experiment(people)).first()
    assert trial is not None
    one = Measured(
        "a", 0, None, Outcome.OK, 0, 0, 9_000_000, 1, 2_000_000, 9_000_000, 5, 0, 3, 1, 2, "stop",
        retry_after_s=None, marks=("only_reasoning",), chunk_gaps_us=(2000, 7000),
        chunk_bytes=(3, 4), chunk_tokens=(1, 2),
    )  # fmt: skip
    copy_in(trial.pk, [one])
    found = with_chunks(trial.pk, "a")
    assert found is not None
    assert (found.chunk_gaps_us, found.chunk_bytes, found.chunk_tokens) == (
        [2000, 7000],
        [3, 4],
        [1, 2],
    )
    bare = replace(one, chunk_gaps_us=(), chunk_bytes=(), chunk_tokens=())
    assert load([trial.pk]) == {trial.pk: (bare,)}
    assert with_chunks(trial.pk, "b") is None


def test_a_request_is_shown_beside_itself_in_the_other_arm(
    as_consultant: Client, people: People
) -> None:
    experiment = ended_experiment(people)
    answered(experiment)
    page = as_consultant.get(address(experiment, "experiment-request", 0, 0, 3))
    text = page.content.decode()
    for part in ("Request r3", "baseline, start 1", "100 ms", "226 ms"):
        assert part in text
    names = [trace["name"] for trace in page.context["figure"]["data"]]
    assert names == ["baseline", "ngram", "suffix"]
    assert page.context["figure"]["data"][0]["y"] == [1, 3, 5, 7]
    assert page.context["figure"]["data"][1]["x"] == [50, 73, 93, 113]


def test_what_was_not_measured_is_not_found(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    answered(experiment)
    for numbers in ((0, 0, 99), (0, 9, 0), (99, 0, 0)):
        page = as_consultant.get(address(experiment, "experiment-request", *numbers))
        assert page.status_code == 404
    Comparison.objects.all().delete()
    assert as_consultant.get(address(experiment)).status_code == 404


def test_failures_and_marks_are_said(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    answered(experiment)
    Measurement.objects.filter(trial__run__arm="ngram", sequence=0).update(
        outcome="refused", error_kind="http_429", retry_after_s=9, marks=["tokens_estimated"],
        chunk_gaps_us=[], chunk_bytes=[], chunk_tokens=[], chunks=0,
    )  # fmt: skip
    page = as_consultant.get(address(experiment))
    assert page.context["pairs"][0].ratio is None
    assert "refused" in page.content.decode()
    one = as_consultant.get(address(experiment, "experiment-request", 1, 0, 0)).content.decode()
    assert "refused: http 429" in one
    assert "9.00 s (Retry-After)" in one
    assert "its own tokeniser counted" in one
    assert "Nothing of an answer came" in one


def test_many_requests_come_in_pages(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    answered(experiment)
    Trial.objects.update(requests=120)
    page = as_consultant.get(address(experiment), {"page": "1"})
    assert "Later requests" in page.content.decode()
    last = as_consultant.get(address(experiment), {"page": "99", "metric": "none", "level": "x"})
    assert last.status_code == 200
    assert (last.context["page"].number, last.context["metric"]) == (3, "e2e_ms")


def test_an_id_is_no_formula_in_a_spreadsheet(as_consultant: Client, people: People) -> None:
    experiment = ended_experiment(people)
    answered(experiment)
    Measurement.objects.filter(sequence=0).update(request_id='=HYPERLINK("http://x")')
    names = {row["request"] for row in rows(as_consultant, experiment)}
    assert '\'=HYPERLINK("http://x")' in names
    assert not any(name.startswith("=") for name in names)
