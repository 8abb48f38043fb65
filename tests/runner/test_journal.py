"""The record of a trial: complete when it ended, readable when its writer was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from calculator.measurement import ClientHealth, Measurement, Outcome, SpeculationCounters
from runner.journal import TrialHeader, TrialJournal, read_trial, trial_path

HEADER = TrialHeader("ngram", run=3, block=1, trial=0, concurrency=4, requests=500)
ROOT = Path(__file__).parents[2]


def measurement(sequence: int) -> Measurement:
    return Measurement(
        request_id=f"r{sequence}",
        sequence=sequence,
        category="k" if sequence % 2 else None,
        outcome=Outcome.OK if sequence % 3 else Outcome.TIMEOUT,
        scheduled_ns=sequence,
        sent_ns=sequence + 1,
        done_ns=sequence + 9,
        first_token_ns=sequence + 5,
        output_tokens=7,
    )


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = trial_path(tmp_path, 0)
    measured = tuple(measurement(n) for n in range(450))
    counters = SpeculationCounters(drafts=10.0, accepted_per_position=(5.0, 2.0))
    client = ClientHealth(1.0, 0.5, 0.01, 4, 2.0)
    with TrialJournal(path, HEADER) as journal:
        journal.add(measured)
        journal.end(
            duration_s=12.5, counters=counters, client=client, invalid_reasons=["too_short"]
        )
    read = read_trial(path)
    assert read is not None
    assert read.ended
    assert read.header == HEADER
    assert read.invalid_reasons == ["too_short"]
    record = read.record()
    assert record.measurements == measured
    assert (record.counters, record.client, record.duration_s) == (counters, client, 12.5)
    assert (record.arm, record.run, record.block, record.concurrency) == ("ngram", 3, 1, 4)


WRITER = """
import sys
from pathlib import Path
from tests.runner.test_journal import HEADER, measurement
from runner.journal import TrialJournal
with TrialJournal(Path(sys.argv[1]), HEADER) as journal:
    for n in range(10**9):
        journal.add([measurement(n)])
"""


def test_journal_of_a_killed_writer_holds_whole_measurements(tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (path.exists() and path.stat().st_size > 50_000):
            time.sleep(0.01)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    read = read_trial(path)
    assert read is not None
    assert not read.ended
    assert len(read.measurements) > 50
    assert read.measurements == tuple(measurement(n) for n in range(len(read.measurements)))


def test_every_cut_of_a_journal_can_be_read(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    with TrialJournal(whole, HEADER) as journal:
        journal.add([measurement(n) for n in range(3)])
        journal.end(duration_s=1.0, counters=None, client=None)
    content = whole.read_bytes()
    cut = tmp_path / "cut.jsonl"
    ends = {n for n, byte in enumerate(content) if byte == ord("\n")}
    near_ends = {n + shift for n in ends for shift in (-1, 0, 1)}
    for size in sorted(near_ends.union(range(0, len(content), 17)) - {len(content)}):
        cut.write_bytes(content[:size])
        read = read_trial(cut)
        assert read is None or not read.ended
        if read is not None:
            kept = content[:size].count(b"\n") - 1
            assert len(read.measurements) == min(3, kept)


def test_missing_or_foreign_file_is_no_journal(tmp_path: Path) -> None:
    assert read_trial(tmp_path / "none") is None
    (tmp_path / "other").write_text('{"type": "end"}\n')
    assert read_trial(tmp_path / "other") is None
