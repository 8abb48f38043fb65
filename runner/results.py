"""An experiment in a folder, with no database: what was planned, measured and found.

::

    DIR/plan.json            the plan, the traffic file's name and SHA-256
    DIR/digest.key           while runs are missing: the key of the answers' digests
    DIR/runs/000-baseline/   run.json, trial-NNN.jsonl, the engine's log
    DIR/result.json          comparison and verdict of each candidate

Holds no prompt and no answer text: the traffic file stays where it is. Of the output check's
answers it holds keyed digests. With the key the answers could be found out by trying, so the key is
readable by its owner only and goes when the last run has ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calculator.measurement import TrialRecord
from runner.analysis import baseline_of, compare_plan
from runner.events import RunEnded
from runner.journal import read_trial, trial_path
from runner.plan import ExperimentPlan, PlanError, PlannedRun, validate
from runner.plan_codec import from_document, to_document

SCHEMA_VERSION = 1
_KEY_FILE = "digest.key"


@dataclass(slots=True)
class RunFile:
    """``run.json``: what is known of one run beside its trials."""

    index: int
    arm: str
    block: int
    status: str | None = None
    """None while it runs, or after it was killed."""
    code: str | None = None
    reason: str | None = None
    start_s: float | None = None
    fingerprint: dict[str, Any] = field(default_factory=dict)
    output_digests: dict[str, list[str]] | None = None
    """None: the output check was not made."""


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The folder of one experiment."""

    path: Path
    plan: ExperimentPlan
    traffic: str
    traffic_sha256: str
    digest_key: str

    def run_path(self, index: int, arm: str) -> Path:
        safe = re.sub(r"[^A-Za-z0-9_-]+", "-", arm)
        return self.path / "runs" / f"{index:03d}-{safe}"

    def read_run(self, planned: PlannedRun) -> RunFile:
        """What was written of ``planned`` so far; a fresh record when nothing was."""
        path = self.run_path(planned.index, planned.arm.name) / "run.json"
        if not path.exists():
            return RunFile(planned.index, planned.arm.name, planned.block)
        with _readable(path):
            return RunFile(**_load(path))

    def write_run(self, run: RunFile) -> None:
        folder = self.run_path(run.index, run.arm)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", asdict(run))

    def recorded_trials(self, planned: PlannedRun) -> set[int]:
        """Indexes of the trials whose journal has its end marker and belongs to this plan."""
        folder = self.run_path(planned.index, planned.arm.name)
        found = set()
        for trial in planned.trials:
            path = trial_path(folder, trial.index)
            with _readable(path):
                journal = read_trial(path)
            if journal is not None and journal.ended:
                found.add(trial.index)
        return found

    def runs(self) -> Iterator[RunFile]:
        """Every run that was begun, in the plan's order."""
        for path in sorted(self.path.glob("runs/*/run.json")):
            with _readable(path):
                run = RunFile(**_load(path))
            yield run

    def trials(self) -> Iterator[TrialRecord]:
        """Every trial that was recorded to its end."""
        for path in sorted(self.path.glob("runs/*/trial-*.jsonl")):
            with _readable(path):
                journal = read_trial(path)
            if journal is not None and journal.ended:
                yield journal.record()

    def forget_key(self) -> None:
        """Nothing more is to be measured here."""
        (self.path / _KEY_FILE).unlink(missing_ok=True)


@contextmanager
def only_user(path: Path) -> Iterator[None]:
    """Nobody else measures into ``path``. Raises PlanError where somebody does, and OSError."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PlanError(
                f"Another run is measuring into {path}: wait for it, or choose another folder."
            ) from None
        yield


def open_folder(path: Path, plan: ExperimentPlan, traffic: Path) -> ResultFolder:
    """Make ``path`` the folder of this experiment, or go on with it where it already is.

    Raises PlanError when ``path`` holds another experiment.
    """
    sha256 = _sha256(traffic)
    if (path / "plan.json").exists():
        known = load_folder(path)
        if known.plan != plan or known.traffic_sha256 != sha256:
            raise PlanError(
                f"{path} holds an experiment with another plan or other traffic; "
                "choose another folder, or give the same plan to go on with it."
            )
        return known
    folder = ResultFolder(path, plan, traffic.name, sha256, secrets.token_hex(16))
    path.mkdir(parents=True, exist_ok=True)
    key_file = path / _KEY_FILE
    key_file.touch(mode=0o600)
    key_file.write_text(folder.digest_key, encoding="ascii")
    write_json(
        path / "plan.json",
        {
            "schema_version": SCHEMA_VERSION,
            "plan": to_document(plan),
            "traffic": folder.traffic,
            "traffic_sha256": sha256,
        },
    )
    return folder


def load_folder(path: Path) -> ResultFolder:
    """The experiment that lies in ``path``. Raises PlanError when there is none."""
    if not (path / "plan.json").exists():
        raise PlanError(f"{path} holds no experiment: there is no plan.json.")
    with _readable(path / "plan.json"):
        document = _load(path / "plan.json")
        plan = from_document(document["plan"])
        named = document["traffic"], document["traffic_sha256"]
    problems = validate(plan)
    if problems:
        raise PlanError(f"{path / 'plan.json'}: {problems[0]}")
    key_file = path / _KEY_FILE
    key = key_file.read_text(encoding="ascii") if key_file.exists() else ""
    return ResultFolder(path, plan, *named, key)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What is damaged, or of another version, is named."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"{path} can't be read ({type(error).__name__}): it is damaged or was written by "
            "another version. Delete it to measure that part again, or choose another folder."
        ) from None


def evaluate(folder: ResultFolder) -> dict[str, Any]:
    """The result document: comparison and verdict of each candidate that was measured.

    Pure arithmetic over the folder's files: the same folder gives the same result.
    """
    plan = folder.plan
    trials = list(folder.trials())
    runs = list(folder.runs())
    digests = {run.index: run.output_digests for run in runs if run.output_digests is not None}
    baseline = baseline_of(plan)
    measured = {trial.arm for trial in trials}
    candidates: dict[str, Any] = {}
    for arm in plan.arms:
        if arm.name == baseline:
            continue
        candidates[arm.name] = {"comparison": None, "verdict": None}
        if {arm.name, baseline} <= measured:
            found, decided = compare_plan(plan, trials, arm.name, digests)
            candidates[arm.name] = {"comparison": found, "verdict": decided}
    return {
        "schema_version": SCHEMA_VERSION,
        "plan": to_document(plan),
        "traffic": {"name": folder.traffic, "sha256": folder.traffic_sha256},
        "baseline": baseline,
        "candidates": candidates,
        "runs": [_run_summary(run) for run in runs],
    }


def _run_summary(run: RunFile) -> dict[str, Any]:
    summary = asdict(run)
    del summary["output_digests"]
    return summary


def ended(run: RunFile, how: RunEnded) -> RunFile:
    """``run`` with its end."""
    run.status, run.code, run.reason = how.status, how.code, how.reason
    return run


def write_json(path: Path, document: Any) -> None:
    """Write whole or not at all, so that a kill leaves the old file."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
