"""Every address of the site, as a stranger and as nobody: a new one that is open fails here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from tests.webapp.people import People
from tests.webapp.rows import answered, ended_experiment, frozen_estimate
from webapp.estimates import services

PUBLIC = {"healthz", "readyz", "sign-in", "shared", "shared-json"}
OWN = {"workspaces", "sign-out"}
"""For everybody who is signed in; they show what is one's own."""


def patterns(resolver: URLResolver | None = None) -> Iterator[URLPattern]:
    for item in (resolver or get_resolver()).url_patterns:
        if isinstance(item, URLResolver):
            yield from patterns(item)
        else:
            yield item


@pytest.fixture
def addresses(people: People) -> dict[str, str]:
    """Every named address, with objects of a workspace that the stranger is not in."""
    experiment = ended_experiment(people)
    answered(experiment)
    estimate = frozen_estimate(people, experiment)
    link, token = services.share(estimate, people.consultant)
    objects = {
        "workspace": people.workspace,
        "sample-new": people.workspace,
        "experiment-new": people.workspace,
        "sample": experiment.sample,
        "experiment": experiment,
        "estimate": estimate,
        "link": link,
    }
    found: dict[str, str] = {}
    for pattern in patterns():
        name = pattern.name
        assert name, f"{pattern} has no name"
        keys = set(pattern.pattern.converters)
        if not keys:
            found[name] = reverse(name)
        elif keys == {"token"}:
            found[name] = reverse(name, args=[token])
        else:
            owner = objects.get(name) or objects[name.split("-")[0]]
            numbers = [0] * (len(keys) - 1)  # run, trial and sequence, which all exist
            found[name] = reverse(name, args=[owner.public_id, *numbers])
    return found


def test_a_stranger_gets_404_everywhere(
    client: Client, people: People, addresses: dict[str, str]
) -> None:
    client.force_login(people.stranger)
    for name in addresses.keys() - PUBLIC - OWN:
        for method in (client.get, client.post):
            status = method(addresses[name]).status_code
            assert status in (404, 405), (name, method, status)
        assert 404 in (
            client.get(addresses[name]).status_code,
            client.post(addresses[name]).status_code,
        ), name


def test_nobody_is_sent_to_sign_in_everywhere(client: Client, addresses: dict[str, str]) -> None:
    for name in addresses.keys() - PUBLIC:
        for method in (client.get, client.post):
            answer = method(addresses[name])
            assert answer.status_code == 302, (name, answer.status_code)
            assert answer.headers["Location"].startswith("/sign-in"), name


def test_public_addresses_are_few_and_answer(client: Client, addresses: dict[str, str]) -> None:
    assert addresses.keys() >= PUBLIC | OWN
    for name in PUBLIC - {"readyz"}:
        assert client.get(addresses[name]).status_code == 200, name


def test_every_page_has_the_strict_policy(
    client: Client, people: People, addresses: dict[str, str]
) -> None:
    client.force_login(people.consultant)
    for name in addresses.keys() - {"healthz", "readyz"}:
        answer = client.get(addresses[name])
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy, name
        assert "unsafe" not in policy, name
        text = b"".join(answer).decode()  # streamed or not
        for forbidden in (" style=", " onclick=", " hx-on", "<style", "javascript:", "http://cdn"):
            assert forbidden not in text, (name, forbidden)
