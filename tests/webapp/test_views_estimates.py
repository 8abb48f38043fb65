"""An estimate's page, its share links, and the page that strangers see."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.webapp.people import People
from tests.webapp.rows import ended_experiment, frozen_estimate
from webapp.core import throttle
from webapp.estimates import services
from webapp.estimates.models import Estimate, ShareLink


@pytest.fixture
def estimate(people: People) -> Estimate:
    return frozen_estimate(people)


@pytest.fixture
def token(people: People, estimate: Estimate) -> str:
    return services.share(estimate, people.consultant)[1]


def shared(token: str) -> str:
    return reverse("shared", args=[token])


def test_the_page_shows_the_frozen_document(
    client: Client, people: People, estimate: Estimate
) -> None:
    client.force_login(people.client)
    page = client.get(reverse("estimate", args=[estimate.public_id])).content.decode()
    for text in ("Switch it on?", "Switch ngram on while fewer than 8", "$131.40",
                 "$0.00013", "Price list", "2026-11-01", "vllm serve some/model",
                 "Prices are net of tax."):  # fmt: skip
        assert text in page
    assert "Make a share link" not in page


def test_an_altered_document_is_not_shown(
    client: Client, people: People, estimate: Estimate
) -> None:
    Estimate.objects.filter(pk=estimate.pk).update(document={**estimate.document, "title": "x"})
    client.force_login(people.consultant)
    page = client.get(reverse("estimate", args=[estimate.public_id]))
    assert page.status_code == 409
    assert "altered" in page.content.decode()


def test_a_link_is_shown_once_and_opens_for_strangers(
    client: Client, people: People, estimate: Estimate
) -> None:
    client.force_login(people.consultant)
    made = client.post(reverse("estimate-share", args=[estimate.public_id]))
    address = made.context["fresh_address"]
    assert made.status_code == 200
    assert address in made.content.decode()
    token = address.rstrip("/").rsplit("/", 1)[1]
    again = client.get(reverse("estimate", args=[estimate.public_id])).content.decode()
    assert token not in again
    assert not ShareLink.objects.filter(token_sha256__contains=token).exists()

    stranger = Client()
    page = stranger.get(shared(token))
    assert page.status_code == 200
    assert "Switch ngram on while fewer than 8" in page.content.decode()
    assert ShareLink.objects.get().views == 1


def test_a_shared_page_leaves_no_trace(client: Client, token: str) -> None:
    for address in (shared(token), reverse("shared-json", args=[token])):
        page = client.get(address)
        assert page.headers["X-Robots-Tag"] == "noindex, nofollow"
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert page.headers["Cache-Control"] == "no-store"
        assert not page.cookies


def test_a_shared_page_tells_nothing_of_whoever_looks(
    client: Client, people: People, token: str
) -> None:
    client.force_login(people.consultant)
    page = client.get(shared(token))
    assert "consultant@example.com" not in page.content.decode()
    assert "Sign out" not in page.content.decode()
    assert people.workspace.name not in page.content.decode()
    assert not page.cookies


def test_the_json_is_the_document(client: Client, estimate: Estimate, token: str) -> None:
    answer = client.get(reverse("shared-json", args=[token]))
    assert json.loads(answer.content) == estimate.document


def test_unknown_expired_and_revoked_links_look_the_same(
    client: Client, people: People, estimate: Estimate
) -> None:
    expired, expired_token = services.share(estimate, people.consultant)
    ShareLink.objects.filter(pk=expired.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    revoked, revoked_token = services.share(estimate, people.consultant)
    services.revoke(revoked, people.consultant)
    for name in ("shared", "shared-json"):
        answers = [
            client.get(reverse(name, args=[token]))
            for token in ("never-made", expired_token, revoked_token)
        ]
        assert {answer.status_code for answer in answers} == {404}
        assert len({answer.content for answer in answers}) == 1
        assert len({str(sorted(answer.headers.items())) for answer in answers}) == 1
        assert answers[0].headers["Referrer-Policy"] == "no-referrer"


def test_revoking_closes_the_link(
    client: Client, people: People, estimate: Estimate, token: str
) -> None:
    link = ShareLink.objects.get()
    client.force_login(people.consultant)
    page = client.post(reverse("link-revoke", args=[link.public_id]), follow=True)
    assert "The link was revoked" in page.content.decode()
    assert "Revoked" in page.content.decode()
    assert Client().get(shared(token)).status_code == 404


def test_a_client_reads_and_a_stranger_finds_nothing(
    client: Client, people: People, estimate: Estimate, token: str
) -> None:
    link = ShareLink.objects.get()
    posts = (
        reverse("estimate-share", args=[estimate.public_id]),
        reverse("link-revoke", args=[link.public_id]),
    )
    client.force_login(people.client)
    assert client.get(reverse("estimate", args=[estimate.public_id])).status_code == 200
    assert [client.post(address).status_code for address in posts] == [403, 403]
    client.force_login(people.stranger)
    assert client.get(reverse("estimate", args=[estimate.public_id])).status_code == 404
    assert [client.post(address).status_code for address in posts] == [404, 404]
    link.refresh_from_db()
    assert link.revoked_at is None
    assert ShareLink.objects.count() == 1


def test_guessing_is_slowed_down(client: Client, token: str) -> None:
    while throttle.allow(throttle.SHARE_VIEW, "127.0.0.1"):
        pass
    assert client.get(shared(token)).status_code == 429


def test_an_estimate_links_back_to_its_measurements(client: Client, people: People) -> None:
    experiment = ended_experiment(people)
    estimate = frozen_estimate(people, experiment)
    client.force_login(people.client)
    page = client.get(reverse("estimate", args=[estimate.public_id])).content.decode()
    assert reverse("experiment", args=[experiment.public_id]) in page
