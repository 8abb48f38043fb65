"""Changes to samples: upload, read, delete, forget."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path

from django.conf import settings
from django.core.files.base import File
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from runner.traffic.read import ReadLimits
from webapp.accounts.models import User, Workspace
from webapp.core import audit
from webapp.core.errors import Refusal
from webapp.core.nudge import nudge, nudge_on_commit
from webapp.samples import reading, selectors, storage
from webapp.samples.models import Sample

log = logging.getLogger(__name__)

KEEP_DAYS = 7
KEEP_DAYS_MOST = 30
_MIB = 1024 * 1024
_READ_LOCK = 7301
"""First half of the advisory lock's key; the second is the sample."""


def upload(
    workspace: Workspace, user: User, name: str, file: File[bytes], *, keep_days: int = KEEP_DAYS
) -> Sample:
    """Store the file under a random name and have it read. Refused: empty, too large, too long."""
    if not 1 <= keep_days <= KEEP_DAYS_MOST:
        raise Refusal(f"A sample can be kept for 1 to {KEEP_DAYS_MOST} days.")
    stored_name = storage.new_name()
    size, sha256 = _store(file, storage.upload_path(stored_name))
    try:
        with transaction.atomic():
            sample = Sample.objects.create(
                workspace=workspace,
                uploaded_by=user,
                name=_clean_name(name or file.name or ""),
                size_bytes=size,
                sha256=sha256,
                stored_name=stored_name,
                delete_after=timezone.localdate() + timedelta(days=keep_days),
            )
            audit.record(user, workspace, "sample.uploaded", sample, size_bytes=size, sha256=sha256)
            nudge_on_commit("samples.read", sample.pk)
    except BaseException:
        storage.remove(stored_name)
        raise
    return sample


def read(sample_id: int) -> None:
    """Read an upload into requests and counts. Safe to do twice and from two workers at once."""
    with _only_reader(sample_id) as alone:
        sample = Sample.objects.filter(pk=sample_id, status=Sample.Status.READING).first()
        if not alone or sample is None:
            return
        part = storage.folder() / f"{sample.stored_name}{storage.PART_SUFFIX}"
        try:
            found = _read_file(sample, part)
            if isinstance(found, reading.Refused):
                _refuse(sample, found.reason)
            else:
                _keep(sample, found, part)
        finally:
            part.unlink(missing_ok=True)


def delete_text(sample: Sample, user: User | None) -> None:
    """Remove the upload and its requests; counts stay. Refused while an experiment needs it."""
    with transaction.atomic():
        locked = Sample.objects.select_for_update().get(pk=sample.pk)
        if locked.status == Sample.Status.DELETED:
            return
        if selectors.in_use(locked):
            raise Refusal(
                "An experiment is measuring with this sample; cancel it or wait for its end."
            )
        locked.status = Sample.Status.DELETED
        locked.save(update_fields=["status"])
        audit.record(
            user, locked.workspace, "sample.deleted", locked, rows=locked.rows,
            replayable=locked.replayable, size_bytes=locked.size_bytes, sha256=locked.sha256,
        )  # fmt: skip
        transaction.on_commit(partial(storage.remove, locked.stored_name))
    sample.status = locked.status


def forget() -> int:
    """Delete every text past its day, and files that no row knows. Returns how many samples."""
    count = 0
    for sample in selectors.past_retention(timezone.localdate()):
        try:
            delete_text(sample, None)
        except Refusal:
            log.info("sample %s is past its day but in use; tomorrow again", sample.pk)
        else:
            count += 1
    _remove_strays()
    return count


def sweep() -> int:
    """Nudge again for uploads that nobody has read. Returns how many."""
    waiting = list(selectors.unread(timedelta(seconds=30)).values_list("pk", flat=True)[:20])
    for sample_id in waiting:
        nudge("samples.read", sample_id)
    return len(waiting)


def _store(file: File[bytes], path: Path) -> tuple[int, str]:
    """Copy in chunks; (bytes, SHA-256). Nothing stays on disk of a file that is refused."""
    digest, size, most = hashlib.sha256(), 0, settings.UPLOAD_MAX_BYTES
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as target:
            for chunk in file.chunks():
                size += len(chunk)
                if size > most:
                    raise Refusal(f"The file is larger than {most // _MIB} MiB; upload a part.")
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        if not size:
            raise Refusal("The file is empty; choose one with at least one request in it.")
    except BaseException:
        path.unlink()
        raise
    return size, digest.hexdigest()


def _clean_name(name: str) -> str:
    printable = "".join(c for c in Path(name).name if c.isprintable()).strip()
    return printable[:200] or "Traffic sample"


@contextmanager
def _only_reader(sample_id: int) -> Iterator[bool]:
    """A lock that a killed worker cannot leave behind: it ends with the connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [_READ_LOCK, sample_id])
        row = cursor.fetchone()
    alone = bool(row and row[0])
    try:
        yield alone
    finally:
        if alone:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [_READ_LOCK, sample_id])


def _read_file(sample: Sample, part: Path) -> reading.Counts | reading.Refused:
    source = storage.upload_path(sample.stored_name)
    if not source.exists():
        return reading.Refused("The uploaded file is missing on disk; upload it again.")
    limits = ReadLimits(
        max_file_bytes=settings.UPLOAD_MAX_BYTES, max_text_bytes=256 * _MIB, max_ratio=50
    )
    return reading.read_apart(source, part, limits)


def _refuse(sample: Sample, reason: str) -> None:
    with transaction.atomic():
        changed = _while_reading(sample).update(status=Sample.Status.REFUSED, reason=reason)
        if changed:
            audit.record(None, sample.workspace, "sample.refused", sample)
            # Nothing will be done with it: keep what it said of itself, not its text.
            transaction.on_commit(partial(storage.remove, sample.stored_name))


def _keep(sample: Sample, found: reading.Counts, part: Path) -> None:
    with transaction.atomic():
        # The row is held while the file gets its name: a deletion comes before or after both.
        if not _while_reading(sample).select_for_update().exists():
            return
        part.replace(storage.requests_path(sample.stored_name))
        _while_reading(sample).update(status=Sample.Status.READY, **asdict(found))
        audit.record(
            None,
            sample.workspace,
            "sample.read",
            sample,
            format=found.format,
            replayable=found.replayable,
            rejected=found.rejected_count,
        )


def _while_reading(sample: Sample) -> QuerySet[Sample]:
    return Sample.objects.filter(pk=sample.pk, status=Sample.Status.READING)


def _remove_strays() -> None:
    """Files of deleted or lost rows: a crash between commit and removal leaves them."""
    old = set(storage.names_on_disk(time.time() - 24 * 3600))
    rows = Sample.objects.filter(stored_name__in=old).exclude(status=Sample.Status.DELETED)
    for name in old - set(rows.values_list("stored_name", flat=True)):
        storage.remove(name)
