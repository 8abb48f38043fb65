"""A frozen estimate and the links that share it: made, looked at, ended, altered."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from calculator.estimate import document_sha256
from tests.webapp import documents
from tests.webapp.people import People
from tests.webapp.rows import ended_experiment
from webapp.accounts.access import owned
from webapp.core.errors import Refusal
from webapp.core.models import AuditEvent
from webapp.estimates import selectors, services
from webapp.estimates.models import Estimate, ShareLink
from webapp.experiments.models import Experiment, Run


@pytest.fixture
def estimate(people: People) -> Estimate:
    document = {"schema_version": 1, "title": "An estimate", "value": 0.1 + 0.2, "none": None}
    return Estimate.objects.create(
        workspace=people.workspace,
        created_by=people.consultant,
        experiment_public_id=uuid.uuid4(),
        arm="ngram",
        title="An estimate",
        document=document,
        sha256=document_sha256(document),
    )


def test_a_link_shows_its_estimate_and_counts(people: People, estimate: Estimate) -> None:
    link, token = services.share(estimate, people.consultant)
    assert len(token) >= 43
    assert selectors.estimate_for_token(token) == estimate
    assert selectors.estimate_for_token(token) == estimate
    link.refresh_from_db()
    assert (link.views, link.works) == (2, True)
    assert timedelta(days=29) < link.expires_at - timezone.now() <= timedelta(days=30)
    assert list(selectors.links_of(estimate)) == [link]


def test_the_token_is_kept_nowhere(people: People, estimate: Estimate) -> None:
    link, token = services.share(estimate, people.consultant)
    assert token not in str(ShareLink.objects.filter(pk=link.pk).values().get())
    assert token not in str(list(AuditEvent.objects.values()))


def _revoke(link: ShareLink, people: People) -> None:
    services.revoke(link, people.consultant)


def _expire(link: ShareLink, people: People) -> None:
    ShareLink.objects.filter(pk=link.pk).update(expires_at=timezone.now())


def _alter(link: ShareLink, people: People) -> None:
    Estimate.objects.filter(pk=link.estimate_id).update(document={"schema_version": 1})


def _delete(link: ShareLink, people: People) -> None:
    link.estimate.delete()


@pytest.mark.parametrize("end", [_revoke, _expire, _alter, _delete])
def test_a_link_that_ended_shows_nothing(people: People, estimate: Estimate, end: object) -> None:
    link, token = services.share(estimate, people.consultant)
    assert selectors.estimate_for_token(token) is not None
    end(link, people)  # type: ignore[operator]
    assert selectors.estimate_for_token(token) is None
    assert ShareLink.objects.filter(pk=link.pk, views__gt=1).count() == 0


@pytest.mark.parametrize("token", ["", "unknown", "x" * 43, "\0", "é" * 43])
def test_an_unknown_token_shows_nothing(db: None, token: str) -> None:
    assert selectors.estimate_for_token(token) is None


def test_revoking_leaves_other_links_alone_and_is_written_once(
    people: People, estimate: Estimate
) -> None:
    first, first_token = services.share(estimate, people.consultant)
    _, second_token = services.share(estimate, people.consultant)
    assert first_token != second_token
    services.revoke(first, people.consultant)
    services.revoke(first, people.consultant)
    assert not first.works
    assert selectors.estimate_for_token(first_token) is None
    assert selectors.estimate_for_token(second_token) == estimate
    assert AuditEvent.objects.filter(action="link.revoked").count() == 1


@pytest.mark.parametrize("days", [0, -1, 366])
def test_a_link_works_for_a_year_at_most(people: People, estimate: Estimate, days: int) -> None:
    with pytest.raises(Refusal, match="1 to 365 days"):
        services.share(estimate, people.consultant, days=days)


def test_an_altered_document_is_neither_shown_nor_shared(
    people: People, estimate: Estimate, caplog: pytest.LogCaptureFixture
) -> None:
    assert selectors.checked_document(estimate) == estimate.document
    Estimate.objects.filter(pk=estimate.pk).update(document={"value": 1})
    estimate.refresh_from_db()
    with pytest.raises(Refusal, match="was altered"):
        services.share(estimate, people.consultant)
    with pytest.raises(Refusal, match="was altered"):
        selectors.checked_document(estimate)
    assert str(estimate.public_id) in caplog.text


def test_a_link_is_reached_through_its_workspace(people: People, estimate: Estimate) -> None:
    link, _ = services.share(estimate, people.consultant)
    assert owned(ShareLink, people.consultant, link.public_id, write=True) == link
    with pytest.raises(Http404):
        owned(ShareLink, people.stranger, link.public_id)


def test_a_version_is_made_once(people: People, estimate: Estimate) -> None:
    estimate.pk = None
    estimate.public_id = uuid.uuid4()
    with pytest.raises(IntegrityError), transaction.atomic():
        estimate.save(force_insert=True)


# --- freezing ---------------------------------------------------------------------------------
def _freeze(people: People, experiment: Experiment, **changes: object) -> Estimate:
    comparison = documents.comparison("ngram") | changes
    return services.from_experiment(
        experiment, comparison, documents.verdict(), people.consultant, " What it costs "
    )


def test_an_estimate_is_frozen_from_an_ended_experiment(people: People) -> None:
    experiment = ended_experiment(people)
    estimate = _freeze(people, experiment)
    document = Estimate.objects.get(pk=estimate.pk).document
    assert (document["title"], document["arm"], document["baseline"]) == (
        "What it costs", "ngram", "baseline"
    )  # fmt: skip
    assert document["verdict"]["code"] == "switch_on_below"
    assert [level["concurrency"] for level in document["levels"]] == [1, 4, 8]
    assert document["price"] == {
        "usd_per_hour": "2.00", "source": "test price list", "as_of": "2026-01-31"
    }  # fmt: skip
    assert document["design"]["levels"][2] == {"concurrency": 8, "requests": 12}
    assert document["inputs"]["requests_per_month"] is None
    assert document["fleet"] == {"baseline": None, "candidate": None, "saving_percent": None}
    assert document["target"]["engine_version"] is None
    assert any("simulator" in note for note in document["notes"])
    assert document["command"] == ""
    assert AuditEvent.objects.get(action="estimate.made").details["version"] == 1


def test_a_known_volume_gives_fleets_and_a_bill(people: People) -> None:
    experiment = ended_experiment(people)
    experiment.plan["decision"]["requests_per_month"] = 1_000_000.0
    fleet = _freeze(people, experiment).document["fleet"]
    assert fleet["baseline"]["replicas"] >= fleet["candidate"]["replicas"] >= 1
    assert fleet["baseline"]["usd_per_month"] == f"{fleet['baseline']['replicas'] * 730 * 2}.00"


def test_a_vllm_estimate_names_its_engine_and_its_command(people: People) -> None:
    experiment = ended_experiment(people)
    experiment.plan["target"] |= {"engine": "vllm", "model": "/srv/models/private-folder/target"}
    Run.objects.filter(arm="ngram").update(fingerprint={"engine_version": "0.33.0"})
    document = _freeze(people, experiment).document
    assert document["target"]["engine_version"] == "0.33.0"
    assert document["command"].startswith("vllm serve ")
    assert '"method":"ngram"' in document["command"]
    assert "private-folder" not in str(document)
    assert not any("simulator" in note for note in document["notes"])


def test_freezing_again_makes_the_next_version(people: People) -> None:
    experiment = ended_experiment(people)
    first, second = _freeze(people, experiment), _freeze(people, experiment)
    other = _freeze(people, experiment, candidate="suffix")
    assert [first.version, second.version, other.version] == [1, 2, 1]


def test_odd_numbers_survive_the_database(people: People) -> None:
    odd = documents.comparison("ngram")
    odd["levels"][0]["effects"]["ttft_ms"]["ratio"] = {"estimate": -0.0, "low": 1e16, "high": 1e-9}
    estimate = _freeze(people, ended_experiment(people), levels=odd["levels"])
    _, token = services.share(Estimate.objects.get(pk=estimate.pk), people.consultant)
    assert selectors.estimate_for_token(token) == estimate


@pytest.mark.parametrize("state", ["draft", "running", "failed"])
def test_what_has_not_ended_has_no_estimate(people: People, state: str) -> None:
    experiment = ended_experiment(people, state)
    with pytest.raises(Refusal, match="Wait for the end"):
        _freeze(people, experiment)
    assert not Estimate.objects.exists()


def test_a_partial_experiment_says_so(people: People) -> None:
    document = _freeze(people, ended_experiment(people, "partial")).document
    assert "Part of the planned measurements is missing." in document["notes"]


@pytest.mark.parametrize(("title", "words"), [(" ", "1 to 200"), ("x" * 201, "1 to 200")])
def test_an_estimate_needs_a_title(people: People, title: str, words: str) -> None:
    comparison, verdict = documents.comparison("ngram"), documents.verdict()
    with pytest.raises(Refusal, match=words):
        services.from_experiment(
            ended_experiment(people), comparison, verdict, people.consultant, title
        )


def test_an_arm_outside_the_plan_is_refused(people: People) -> None:
    with pytest.raises(Refusal, match="not part of the experiment"):
        _freeze(people, ended_experiment(people), candidate="other")
