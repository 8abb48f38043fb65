"""Upload, status, what was understood, deletion: as consultant, client, stranger and nobody."""

from __future__ import annotations

import json
from datetime import date
from uuid import uuid4

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from tests.webapp.lab import CANARY, make_sample
from tests.webapp.people import People
from webapp.core import throttle
from webapp.samples.models import Sample
from webapp.samples.services import read


def traffic(rows: int = 12) -> SimpleUploadedFile:
    lines = [json.dumps({"prompt": f"{CANARY} {n}", "max_tokens": 8}) for n in range(rows)]
    return SimpleUploadedFile("october.jsonl", "\n".join(lines).encode())


def signed_in(client: Client, user: object) -> Client:
    client.force_login(user)  # type: ignore[arg-type]
    return client


def new_address(people: People) -> str:
    return reverse("sample-new", args=[people.workspace.public_id])


def test_upload_leads_to_a_page_that_waits_and_then_tells(
    as_consultant: Client, people: People
) -> None:
    answer = as_consultant.post(
        new_address(people), {"file": traffic(), "name": "", "keep_days": 3}, follow=True
    )
    sample = Sample.objects.get()
    assert answer.redirect_chain == [(reverse("sample", args=[sample.public_id]), 302)]
    assert sample.name == "october.jsonl"
    assert "The file is being read" in answer.content.decode()

    status = reverse("sample-status", args=[sample.public_id])
    waiting = as_consultant.get(status)
    assert "HX-Refresh" not in waiting.headers
    assert 'hx-trigger="every 2s"' in waiting.content.decode()

    read(sample.pk)
    done = as_consultant.get(status)
    assert done.headers["HX-Refresh"] == "true"
    assert "hx-trigger" not in done.content.decode()

    page = as_consultant.get(reverse("sample", args=[sample.public_id])).content.decode()
    assert "What was understood" in page
    assert CANARY not in page


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"keep_days": 7}, "Choose a file to upload."),
        ({"keep_days": 7, "file": SimpleUploadedFile("a.jsonl", b"")}, "The file is empty"),
        ({"keep_days": 99, "file": traffic()}, "less than or equal to 30"),
    ],
)
def test_a_bad_upload_says_what_to_do(
    as_consultant: Client, people: People, data: dict[str, object], sentence: str
) -> None:
    answer = as_consultant.post(new_address(people), data)
    assert answer.status_code == 200
    assert sentence in answer.content.decode()
    assert not Sample.objects.exists()


def test_a_file_over_the_limit_says_so(
    as_consultant: Client, people: People, settings: Settings
) -> None:
    settings.UPLOAD_MAX_BYTES = 100
    answer = as_consultant.post(new_address(people), {"file": traffic(), "keep_days": 7})
    assert answer.status_code == 200
    assert "larger than this site takes" in answer.content.decode()


def test_a_refused_file_shows_the_line_and_the_reason(
    as_consultant: Client, people: People
) -> None:
    bad = SimpleUploadedFile("bad.jsonl", b'{"prompt": "secret-words"\n')
    as_consultant.post(new_address(people), {"file": bad, "keep_days": 7})
    sample = Sample.objects.get()
    read(sample.pk)
    page = as_consultant.get(reverse("sample", args=[sample.public_id])).content.decode()
    assert "This file could not be used" in page
    assert "line 1" in page.lower()
    assert "secret-words" not in page


def test_rejected_and_skipped_rows_are_listed(as_consultant: Client, people: People) -> None:
    sample = Sample.objects.create(
        workspace=people.workspace,
        name="Mixed",
        status=Sample.Status.READY,
        rows=9,
        replayable=4,
        skipped={"embedding_request": 3},
        rejected=[{"line": 7, "reason": "Not valid JSON."}],
        rejected_count=2,
        categories={"code": 3, "prose": 1},
        warnings=["Two rows have no limit."],
        delete_after=date(2030, 1, 31),
    )
    page = as_consultant.get(reverse("sample", args=[sample.public_id])).content.decode()
    for text in ("embedding request", "Not valid JSON.", "The first 1 of 2 rejected rows.",
                 "75 %", "Two rows have no limit.", "31 January 2030"):  # fmt: skip
        assert text in page


def test_deleting_the_text_asks_first_and_keeps_the_counts(
    as_consultant: Client, people: People
) -> None:
    sample = make_sample(people, 12)
    address = reverse("sample-delete", args=[sample.public_id])
    assert as_consultant.get(address).status_code == 405
    page = as_consultant.post(address, follow=True).content.decode()
    assert "The text was deleted." in page
    sample.refresh_from_db()
    assert sample.status == Sample.Status.DELETED
    assert sample.replayable == 12


def test_a_client_sees_but_does_not_change(client: Client, people: People) -> None:
    sample = make_sample(people, 12)
    signed_in(client, people.client)
    page = client.get(reverse("sample", args=[sample.public_id]))
    assert page.status_code == 200
    assert "Delete the text" not in page.content.decode()
    assert client.get(new_address(people)).status_code == 403
    assert client.post(new_address(people), {"file": traffic()}).status_code == 403
    refused = client.post(reverse("sample-delete", args=[sample.public_id]))
    assert refused.status_code == 403
    assert "You may look, but not change this" in refused.content.decode()
    sample.refresh_from_db()
    assert sample.status == Sample.Status.READY


def test_a_stranger_finds_nothing(client: Client, people: People) -> None:
    sample = make_sample(people, 12)
    signed_in(client, people.stranger)
    for name in ("sample", "sample-status"):
        assert client.get(reverse(name, args=[sample.public_id])).status_code == 404
    assert client.post(reverse("sample-delete", args=[sample.public_id])).status_code == 404
    assert client.get(new_address(people)).status_code == 404
    missing = client.get(reverse("sample", args=[uuid4()]))
    assert missing.status_code == 404
    assert "There is nothing here" in missing.content.decode()


def test_nobody_is_sent_to_sign_in(client: Client, people: People) -> None:
    answer = client.get(new_address(people))
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/sign-in?next=/w/")


def test_too_many_uploads_get_a_page(as_consultant: Client, people: People) -> None:
    while throttle.allow(throttle.UPLOAD, f"user-{people.consultant.pk}"):
        pass
    answer = as_consultant.post(new_address(people), {"file": traffic(), "keep_days": 7})
    assert answer.status_code == 429
    assert "Too many tries" in answer.content.decode()
    assert int(answer.headers["Retry-After"]) > 0
