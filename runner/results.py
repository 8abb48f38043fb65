"""An experiment in a folder, with no database: what was planned, measured and found.

::

    DIR/plan.json            the plan, the traffic file's name and SHA-256
    DIR/digest.key           while runs are missing: the key of the answers' digests
    DIR/runs/000-baseline/   run.json, trial-NNN.jsonl, the engine's log
    DIR/result.json          comparison and verdict of each candidate

Holds no prompt and no answer text: the traffic file stays where it is. run.json holds keyed digests
of the output check's answers, token by token. Whoever has the key and the digests can find those
answers out by trying, so both are readable by their owner only, and the key goes when the last run
has ended; after that they can't. What is measured later, for instance because a damaged part was
deleted, has no output check.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calculator import answers
from calculator.columns import Trials
from calculator.measurement import TrialRecord
from runner.analysis import baseline_of, compare_plan
from runner.events import RunEnded
from runner.files import whole_file
from runner.journal import read_trial, trial_path
from runner.plan import ExperimentPlan, PlanError, PlannedRun, validate
from runner.plan_codec import from_document, to_document

SCHEMA_VERSION = 1
_KEY_FILE = "digest.key"
_MEASURE_AGAIN = "Delete it to measure that part again, or choose another folder."
_LEAVE = "Choose another folder."


class FolderError(PlanError):
    """The folder can't be used; the text is one sentence that names it or a file in it."""


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
    warm_up: dict[str, Any] | None = None
    """runner.warmup.WarmUp; None: there was none."""
    output: dict[str, Any] | None = None
    """calculator.answers.OutputRecord as JSON; None: the output check was not made."""


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The folder of one experiment."""

    path: Path
    plan: ExperimentPlan
    traffic: str
    traffic_sha256: str
    digest_key: str
    """Empty: nothing more was to be measured, and it was forgotten."""

    def run_path(self, index: int, arm: str) -> Path:
        safe = re.sub(r"[^A-Za-z0-9_-]+", "-", arm)
        return self.path / "runs" / f"{index:03d}-{safe}"

    def read_run(self, planned: PlannedRun) -> RunFile:
        """What was written of ``planned`` so far; a fresh record when nothing was."""
        path = self.run_path(planned.index, planned.arm.name) / "run.json"
        if not path.exists():
            return RunFile(planned.index, planned.arm.name, planned.block)
        return _run_file(path)

    def write_run(self, run: RunFile) -> None:
        folder = self.run_path(run.index, run.arm)
        folder.mkdir(parents=True, exist_ok=True)
        document = {"schema_version": SCHEMA_VERSION, **asdict(run)}
        write_json(folder / "run.json", document, private=True)

    def is_recorded(self, planned: PlannedRun, known: RunFile) -> bool:
        """``planned`` was measured to its end, and no file of it was deleted since."""
        return known.status == "recorded" and len(self.recorded_trials(planned)) == len(
            planned.trials
        )

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
            yield _run_file(path)

    def trials(self) -> Iterator[TrialRecord]:
        """Every trial that was recorded to its end, read when its turn comes."""
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
    """Nobody else measures into ``path``. Raises FolderError where somebody does, and OSError."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(
                f"Another run is measuring into {path}: wait for it, or choose another folder."
            ) from None
        yield


def open_folder(path: Path, plan: ExperimentPlan, traffic: Path) -> ResultFolder:
    """Make ``path`` the folder of this experiment, or go on with it where it already is.

    Raises FolderError when ``path`` holds another experiment.
    """
    sha256 = _sha256(traffic)
    if (path / "plan.json").exists():
        known = load_folder(path)
        if known.plan != plan or known.traffic_sha256 != sha256:
            raise FolderError(
                f"{path} holds an experiment with another plan or other traffic; "
                "choose another folder, or give the same plan to go on with it."
            )
        return known
    if (path / "runs").exists():
        raise FolderError(f"{path} holds measurements whose plan.json is missing. {_LEAVE}")
    folder = ResultFolder(path, plan, traffic.name, sha256, secrets.token_hex(16))
    path.mkdir(parents=True, exist_ok=True)
    with whole_file(path / _KEY_FILE, private=True) as file:
        file.write(folder.digest_key)
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
    """The experiment that lies in ``path``. Raises FolderError when there is none."""
    if not (path / "plan.json").exists():
        raise FolderError(f"{path} holds no experiment: there is no plan.json.")
    with _readable(path / "plan.json", _LEAVE):
        document = _load(path / "plan.json")
        named = document["traffic"], document["traffic_sha256"]
        plan = _plan(path / "plan.json", document["plan"])
    key_file = path / _KEY_FILE
    with _readable(key_file, _LEAVE):
        key = key_file.read_text(encoding="ascii") if key_file.exists() else ""
    return ResultFolder(path, plan, *named, key)


def _plan(path: Path, document: Any) -> ExperimentPlan:
    try:
        plan = from_document(document)
    except PlanError as error:
        raise FolderError(f"{path}: {error}") from None
    problems = validate(plan)
    if problems:
        raise FolderError(f"{path}: {problems[0]}")
    return plan


def _run_file(path: Path) -> RunFile:
    with _readable(path):
        run = RunFile(**_load(path))
        if run.output is not None:
            answers.from_document(run.output)
        return run


@contextmanager
def _readable(path: Path, way_out: str = _MEASURE_AGAIN) -> Iterator[None]:
    """What is damaged, or of another version, is named."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FolderError(
            f"{path} can't be read ({type(error).__name__}): it is damaged or was written by "
            f"another version. {way_out}"
        ) from None


def evaluate(folder: ResultFolder) -> dict[str, Any]:
    """The result document: comparison and verdict of each candidate that was measured.

    Pure arithmetic over the folder's files: the same folder gives the same result.
    """
    plan = folder.plan
    trials = Trials.of(folder.trials())
    runs = list(folder.runs())
    outputs = {
        run.index: answers.from_document(run.output) for run in runs if run.output is not None
    }
    baseline = baseline_of(plan)
    measured = {trial.arm for trial in trials.columns}
    candidates: dict[str, Any] = {}
    for arm in plan.arms:
        if arm.name == baseline:
            continue
        candidates[arm.name] = {"comparison": None, "verdict": None}
        if {arm.name, baseline} <= measured:
            found, decided = compare_plan(plan, trials, arm.name, outputs)
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
    del summary["output"]
    return summary


def ended(run: RunFile, how: RunEnded) -> RunFile:
    """``run`` with its end."""
    run.status, run.code, run.reason = how.status, how.code, how.reason
    return run


def write_json(path: Path, document: Any, *, private: bool = False) -> None:
    """Write whole or not at all, so that a kill leaves the old file."""
    with whole_file(path, private=private) as file:
        json.dump(document, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def _load(path: Path) -> dict[str, Any]:
    """The object in ``path``, without its version. Raises ValueError for another version."""
    document = json.loads(path.read_text(encoding="utf-8"))
    version = document.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema_version {version}")
    return dict(document)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
