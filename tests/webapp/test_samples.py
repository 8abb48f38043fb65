"""A sample from upload to the end of its text: good, bad, too large, deleted, forgotten."""

from __future__ import annotations

import gzip
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection, transaction
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from runner.traffic.read import ReadLimits
from tests.webapp.people import People
from webapp.core.errors import Refusal
from webapp.core.models import AuditEvent
from webapp.experiments.models import Experiment
from webapp.fleet.models import TargetModel
from webapp.samples import reading, selectors, services, storage
from webapp.samples.models import Sample

CANARY = "canary-5f1d-never-to-be-seen"
Upload = Callable[..., Sample]


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def chat(text: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], **fields}


GOOD = lines(
    chat(f"Explain {CANARY}", category="explain", max_tokens=16),
    chat("Write a poem", category="creative"),
    chat("Say hello"),
    {"messages": f"broken {CANARY}"},
)


@pytest.fixture
def upload(
    people: People, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> Upload:
    """Uploads a file as the consultant and runs what follows the commit."""

    def inner(content: bytes, name: str = "traffic.jsonl", **options: int) -> Sample:
        file = SimpleUploadedFile(name, content)
        with django_capture_on_commit_callbacks(execute=True):
            return services.upload(people.workspace, people.consultant, "", file, **options)

    return inner


def read(sample: Sample) -> Sample:
    services.read(sample.pk)
    return Sample.objects.get(pk=sample.pk)


def on_disk() -> list[str]:
    return sorted(path.name for path in storage.folder().iterdir())


def test_a_good_file_becomes_requests_and_counts(upload: Upload) -> None:
    sample = read(upload(GOOD, "../../My traffic.jsonl"))
    assert sample.status == Sample.Status.READY
    assert sample.name == "My traffic.jsonl"
    assert (sample.rows, sample.replayable, sample.rejected_count) == (4, 3, 1)
    assert sample.rejected[0]["line"] == 4
    assert sample.categories == {"explain": 1, "creative": 1, "uncategorised": 1}
    assert sample.format == "openai_chat"
    assert sample.size_bytes == len(GOOD)
    assert sample.delete_after == timezone.localdate() + timedelta(days=7)
    requests = selectors.load_requests(sample)
    assert [request.category for request in requests] == ["explain", "creative", None]
    assert requests[0].max_output_tokens == 16


def test_files_have_random_names_and_only_we_read_them(upload: Upload) -> None:
    sample = read(upload(GOOD))
    assert on_disk() == [sample.stored_name, f"{sample.stored_name}.requests"]
    assert "traffic" not in sample.stored_name
    for path in storage.folder().iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(storage.folder().stat().st_mode) == 0o700


def test_reading_twice_changes_nothing(upload: Upload) -> None:
    sample = read(upload(GOOD))
    assert read(sample) == sample
    assert AuditEvent.objects.filter(action="sample.read").count() == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"this is no json\nnor this\n", "line 1"),
        (lines({"text": "x"}), "unknown format"),
        (b"\xff\xfe\x00", "UTF-16"),
        (gzip.compress(GOOD)[:-12], "ends early"),
        (b"\n\n\n", "empty"),
    ],
)
def test_a_bad_file_is_refused_with_its_reason(upload: Upload, content: bytes, words: str) -> None:
    sample = read(upload(content))
    assert sample.status == Sample.Status.REFUSED
    assert words.lower() in sample.reason.lower()
    assert sample.reason.endswith(".")
    with pytest.raises(Refusal, match="has not been read"):
        selectors.load_requests(sample)


def test_the_text_of_a_refused_file_is_not_kept(
    upload: Upload, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    sample = upload(b"no json\n")
    with django_capture_on_commit_callbacks(execute=True):
        services.read(sample.pk)
    assert on_disk() == []


def test_a_gzip_bomb_is_refused(upload: Upload) -> None:
    bomb = gzip.compress(b"\0" * (80 * 1024 * 1024), compresslevel=9)
    sample = read(upload(bomb, "traffic.jsonl.gz"))
    assert sample.status == Sample.Status.REFUSED
    assert "50 times" in sample.reason


def test_gzip_is_read(upload: Upload) -> None:
    sample = read(upload(gzip.compress(GOOD), "traffic.jsonl.gz"))
    assert sample.replayable == 3


def test_an_empty_file_is_refused_at_once(upload: Upload) -> None:
    with pytest.raises(Refusal, match="is empty"):
        upload(b"")
    assert on_disk() == []
    assert not Sample.objects.exists()


def test_a_file_that_is_too_large_leaves_nothing(upload: Upload, settings: Settings) -> None:
    settings.UPLOAD_MAX_BYTES = 1024 * 1024
    with pytest.raises(Refusal, match="larger than 1 MiB"):
        upload(b"x" * (1024 * 1024 + 1))
    assert on_disk() == []
    assert not Sample.objects.exists()


@pytest.mark.parametrize("days", [0, 31])
def test_a_sample_is_kept_for_30_days_at_most(upload: Upload, days: int) -> None:
    with pytest.raises(Refusal, match="1 to 30 days"):
        upload(GOOD, keep_days=days)


def test_an_upload_that_cannot_be_recorded_leaves_no_file(people: People) -> None:
    people.workspace.delete()
    with pytest.raises(ValueError, match="unsaved"):
        services.upload(people.workspace, people.consultant, "", ContentFile(GOOD, "a.jsonl"))
    assert on_disk() == []


def test_memory_is_limited(tmp_path: Path) -> None:
    source = tmp_path / "big"
    row = lines(chat("x" * 1000))
    with source.open("wb") as file:
        for _ in range(60):
            file.write(row * 1000)
    found = reading.read_apart(
        source, tmp_path / "out", ReadLimits(), memory_bytes=120 * 1024**2, time_s=60
    )
    assert isinstance(found, reading.Refused)
    assert "more memory" in found.reason


def test_time_is_limited(tmp_path: Path) -> None:
    source = tmp_path / "pipe"
    os.mkfifo(source)  # nobody writes: opening it waits for ever
    found = reading.read_apart(source, tmp_path / "out", ReadLimits(), time_s=1)
    assert isinstance(found, reading.Refused)
    assert "longer than 1 seconds" in found.reason


def test_a_file_that_was_lost_is_said_so(upload: Upload) -> None:
    sample = upload(GOOD)
    storage.upload_path(sample.stored_name).unlink()
    assert "missing on disk" in read(sample).reason


def test_delete_removes_text_and_keeps_counts(
    upload: Upload,
    people: People,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    sample = read(upload(GOOD))
    with django_capture_on_commit_callbacks(execute=True):
        services.delete_text(sample, people.consultant)
    assert on_disk() == []
    kept = Sample.objects.get(pk=sample.pk)
    assert (kept.status, kept.replayable) == (Sample.Status.DELETED, 3)
    event = AuditEvent.objects.get(action="sample.deleted")
    assert event.actor == people.consultant
    assert event.details == {
        "rows": 4, "replayable": 3, "size_bytes": len(GOOD), "sha256": sample.sha256
    }  # fmt: skip
    with pytest.raises(Refusal, match="was deleted"):
        selectors.load_requests(kept)
    services.delete_text(kept, people.consultant)
    assert AuditEvent.objects.filter(action="sample.deleted").count() == 1


@pytest.mark.django_db(transaction=True)
def test_deleted_while_being_read_stays_deleted(people: People) -> None:
    sample = services.upload(people.workspace, people.consultant, "", ContentFile(GOOD, "a.jsonl"))
    with ThreadPoolExecutor(1) as pool:
        with _reader_held_at_the_end(pool, sample) as reader:
            services.delete_text(sample, people.consultant)
        reader.result(timeout=30)
    assert Sample.objects.get(pk=sample.pk).status == Sample.Status.DELETED
    assert on_disk() == []


@pytest.mark.django_db(transaction=True)
def test_two_readers_at_once_read_once(people: People) -> None:
    sample = services.upload(people.workspace, people.consultant, "", ContentFile(GOOD, "a.jsonl"))
    part = storage.folder() / f"{sample.stored_name}.part"
    with ThreadPoolExecutor(1) as pool:
        with _reader_held_at_the_end(pool, sample) as reader:
            services.read(sample.pk)  # comes back at once and leaves the other's work alone
            assert part.exists()
        reader.result(timeout=30)
    assert Sample.objects.get(pk=sample.pk).status == Sample.Status.READY
    assert AuditEvent.objects.filter(action="sample.read").count() == 1


@contextmanager
def _reader_held_at_the_end(pool: ThreadPoolExecutor, sample: Sample) -> Iterator[Future[None]]:
    """A second connection has read the file and waits for the row, which we hold."""
    part = storage.folder() / f"{sample.stored_name}.part"
    with transaction.atomic():
        Sample.objects.select_for_update().get(pk=sample.pk)
        reader = pool.submit(_read_on_own_connection, sample.pk)
        deadline = time.monotonic() + 30
        while not part.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield reader


def _read_on_own_connection(sample_id: int) -> None:
    try:
        services.read(sample_id)
    finally:
        connection.close()


def _experiment(people: People, sample: Sample, state: str) -> Experiment:
    target, _ = TargetModel.objects.get_or_create(name="m", engine="simulator", location="m")
    return Experiment.objects.create(
        workspace=people.workspace, sample=sample, target=target, name="e", state=state, plan={}
    )


@pytest.mark.parametrize(
    ("state", "kept"),
    [("draft", False), ("queued", True), ("running", True), ("analysing", False), ("done", False)],
)
def test_text_stays_while_an_experiment_needs_it(
    upload: Upload, people: People, state: str, kept: bool
) -> None:
    sample = read(upload(GOOD))
    _experiment(people, sample, state)
    if kept:
        with pytest.raises(Refusal, match="is measuring with this sample"):
            services.delete_text(sample, people.consultant)
    else:
        services.delete_text(sample, people.consultant)
    assert (Sample.objects.get(pk=sample.pk).status == Sample.Status.READY) is kept


def test_forget_deletes_what_is_past_its_day(
    upload: Upload,
    people: People,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    old, used, fresh = (read(upload(GOOD)) for _ in range(3))
    yesterday = timezone.localdate() - timedelta(days=1)
    Sample.objects.filter(pk__in=(old.pk, used.pk)).update(delete_after=yesterday)
    Sample.objects.filter(pk=fresh.pk).update(delete_after=timezone.localdate())
    _experiment(people, used, "running")
    with django_capture_on_commit_callbacks(execute=True):
        assert services.forget() == 1
    statuses = {sample.pk: sample.status for sample in Sample.objects.all()}
    assert statuses == {old.pk: "deleted", used.pk: "ready", fresh.pk: "ready"}
    assert {name.split(".")[0] for name in on_disk()} == {used.stored_name, fresh.stored_name}
    assert AuditEvent.objects.get(action="sample.deleted").actor is None


def test_forget_removes_files_that_no_row_knows(upload: Upload) -> None:
    sample = read(upload(GOOD))
    stray, young = storage.new_name(), storage.new_name()
    for name in (stray, f"{stray}.part", young):
        (storage.folder() / name).write_bytes(b"x")
    before = timezone.now().timestamp() - 2 * 24 * 3600
    for path in storage.folder().iterdir():
        if path.name != young:
            os.utime(path, (before, before))
    services.forget()
    assert on_disk() == sorted([sample.stored_name, f"{sample.stored_name}.requests", young])


def test_sweep_nudges_for_what_nobody_has_read(upload: Upload) -> None:
    lost, fresh, done = upload(GOOD), upload(GOOD), read(upload(GOOD))
    long_ago = timezone.now() - timedelta(minutes=5)
    Sample.objects.filter(pk__in=(lost.pk, done.pk)).update(created_at=long_ago)
    assert services.sweep() == 1
    assert fresh.status == Sample.Status.READING


def _all_rows() -> Iterable[str]:
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT to_jsonb(t)::text FROM "{table}" t')  # noqa: S608
            yield from (row[0] for row in cursor.fetchall())


def test_text_is_in_no_row_and_no_log_line(
    upload: Upload, people: People, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good = read(upload(GOOD))
    bad = read(upload(lines({"text": CANARY}) + CANARY.encode()))
    assert CANARY in selectors.load_requests(good)[0].messages[0]["content"]
    services.delete_text(good, people.consultant)
    rows = list(_all_rows())
    assert any(str(bad.public_id) in row for row in rows)
    assert not [row for row in rows if CANARY in row]
    assert CANARY not in caplog.text
