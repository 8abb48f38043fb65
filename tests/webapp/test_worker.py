"""A real worker reads a real upload: by nudge, and by sweep where the nudge was lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.core.files.base import ContentFile
from django.utils import timezone

from tests.webapp.people import People, database_url_of_the_test
from webapp.samples import services, storage
from webapp.samples.models import Sample

GOOD = b'{"messages": [{"role": "user", "content": "Say hello to canary-77f1"}]}\n'


@pytest.fixture
def worker(transactional_db: None, own_files: Path, tmp_path: Path) -> Iterator[Path]:
    """A worker of queue ``web`` on the test's database; gives its log."""
    # Its files lie where the test's lie: MEDIA_ROOT is VAR_DIR/media in both.
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "DATABASE_URL": database_url_of_the_test(),
        "REDIS_URL": settings.REDIS_URL,
        "DRAFTPROOF_VAR_DIR": str(own_files.parent),
    }
    command = [sys.executable, "-m", "celery", "-A", "webapp.celery", "worker", "-Q", "web"]
    command += ["-c", "1", "--without-gossip", "--without-mingle", "-n", f"{tmp_path.name}@%h"]
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=env, cwd=settings.BASE_DIR, stdout=out, stderr=subprocess.STDOUT
        )
    yield log
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0, log.read_text()


def _until_read(sample: Sample, log: Path) -> Sample:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        sample.refresh_from_db()
        if sample.status != Sample.Status.READING:
            return sample
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def test_a_worker_reads_uploads(people: People, worker: Path) -> None:
    file = ContentFile(GOOD, "a.jsonl")
    sample = services.upload(people.workspace, people.consultant, "", file)
    assert _until_read(sample, worker).replayable == 1

    lost = _never_nudged(people, b"no json\n")
    assert services.sweep() == 1
    assert _until_read(lost, worker).status == Sample.Status.REFUSED
    assert "canary-77f1" not in worker.read_text()


def _never_nudged(people: People, content: bytes) -> Sample:
    name = storage.new_name()
    storage.upload_path(name).write_bytes(content)
    sample = Sample.objects.create(
        workspace=people.workspace, name="lost", stored_name=name, delete_after=timezone.localdate()
    )
    minute_ago = timezone.now() - timedelta(minutes=1)
    Sample.objects.filter(pk=sample.pk).update(created_at=minute_ago)
    return sample
