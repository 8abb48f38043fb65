"""Carry out an experiment that a PLAN.toml describes, with no database.

Every arm is started several times, in the order A B B A ..., and each start replays the same
requests at each load level. DIR keeps every trial as soon as it is measured: the same command
again goes on where it was stopped or killed. At the end DIR/result.json holds comparison and
verdict of each candidate, and they are printed.

Units: times in ms or s as the names say, loads in requests in flight, prices in USD an hour.
`--example` prints a complete PLAN.toml with every key explained.

Exit code 0 when all was measured, 1 when a part failed, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any

from calculator import answers
from runner.commands.progress import ProgressLines, duration
from runner.commands.tables import describe
from runner.environment import host_fingerprint
from runner.events import EngineReady, Event, OutputChecked, RunEnded, WarmedUp
from runner.execute import execute_run
from runner.plan import (
    PlanError,
    PlannedRun,
    RequestInfo,
    assumed_timing,
    estimate_seconds,
    schedule,
)
from runner.plan_codec import PlanFile, from_toml
from runner.results import (
    FolderError,
    ResultFolder,
    RunFile,
    ended,
    evaluate,
    only_user,
    open_folder,
    write_json,
)
from runner.traffic.read import ReadResult, TrafficError, read_file
from runner.traffic.request import NormalisedRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, nargs="?", metavar="PLAN.toml", help="the experiment")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the measurements are kept")
    parser.add_argument(
        "--example", action="store_true", help="print an example plan with every key and end"
    )


def run(options: argparse.Namespace) -> int:
    if options.example:
        print(files("runner.commands").joinpath("example.toml").read_text(encoding="utf-8"))
        return 0
    if options.plan is None or options.out is None:
        print("python -m runner run: give PLAN.toml and --out DIR", file=sys.stderr)
        return 2
    try:
        file = from_toml(options.plan)
        read = read_file(file.traffic)
    except PlanError as error:
        print(f"{options.plan}: {error}", file=sys.stderr)
        return 2
    except (TrafficError, OSError) as error:
        print(f"the traffic file of {options.plan}: {error}", file=sys.stderr)
        return 2
    try:
        with only_user(options.out), _terminated_as_interrupt():
            return _carry_out(file, read, options)
    except FolderError as error:
        print(error, file=sys.stderr)
        return 2
    except PlanError as error:
        print(f"{options.plan}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"--out {options.out}: {error.strerror or error}", file=sys.stderr)
        return 1


def _carry_out(file: PlanFile, read: ReadResult, options: argparse.Namespace) -> int:
    experiment = _open(file, read, options.out)
    try:
        failed = experiment.measure()
    except KeyboardInterrupt:
        again = f"python -m runner run {options.plan} --out {options.out}"
        print(f"\nstopped; go on with: {again}", file=sys.stderr)
        return 130
    if not failed:
        experiment.folder.forget_key()
    result = evaluate(experiment.folder)
    write_json(options.out / "result.json", result)
    print(describe(result))
    return 1 if failed else 0


def _open(file: PlanFile, read: ReadResult, out: Path) -> _Experiment:
    for warning in read.warnings:
        print(f"traffic: {warning}", file=sys.stderr)
    if read.rejected_count:
        print(
            f"traffic: {read.rejected_count} of {read.rows} rows can't be used; "
            f"see python -m runner inspect {file.traffic}",
            file=sys.stderr,
        )
    infos = [RequestInfo(item.id, item.category, item.prompt_key) for item in read.requests]
    runs = schedule(file.plan, infos)
    folder = open_folder(out, file.plan, file.traffic)
    return _Experiment(folder, runs, {request.id: request for request in read.requests})


@dataclass(frozen=True, slots=True)
class _Experiment:
    folder: ResultFolder
    runs: tuple[PlannedRun, ...]
    requests: dict[str, NormalisedRequest]

    def measure(self) -> bool:
        """Carry out what is not yet recorded. True when a part of it failed."""
        plan = self.folder.plan
        timing = assumed_timing(plan, gpu=bool(host_fingerprint()["gpus"]))
        expected = duration(estimate_seconds(plan, timing))
        print(f"{len(self.runs)} runs, about {expected} in all", file=sys.stderr)
        given_up: set[str] = set()
        failed = False
        for planned in self.runs:
            known = self.folder.read_run(planned)
            if known.status == "unsupported":
                given_up.add(planned.arm.name)
            if planned.arm.name in given_up or self.folder.is_recorded(planned, known):
                continue
            how = self._carry_out(planned, known)
            if how.status != "recorded":
                given_up.add(planned.arm.name)
                failed = failed or how.status != "unsupported"
                if planned.arm.method == "none":
                    return True  # without a baseline there is nothing to compare with
        return failed

    def _carry_out(self, planned: PlannedRun, known: RunFile) -> RunEnded:
        known.status = None
        lines = ProgressLines(planned, len(self.runs), sys.stderr)
        how = execute_run(
            planned,
            self.folder.plan,
            self.requests,
            workdir=self.folder.run_path(planned.index, planned.arm.name),
            digest_key=self.folder.digest_key,
            emit=_both(lines.show, self._keep(known)),
            should_stop=lambda: False,
            skip_trials=self.folder.recorded_trials(planned),
        )
        self.folder.write_run(ended(known, how))
        return how

    def _keep(self, known: RunFile) -> Callable[[Event], None]:
        def keep(event: Event) -> None:
            if isinstance(event, EngineReady):
                known.fingerprint, known.start_s = event.fingerprint, event.start_s
                self.folder.write_run(known)
            elif isinstance(event, WarmedUp):
                known.warm_up = asdict(event.result)
            elif isinstance(event, OutputChecked) and self.folder.digest_key:
                # Without the key its digests would fit no other run's.
                known.output = answers.to_document(event.record)

        return keep


def _both(first: Callable[[Event], None], second: Callable[[Event], None]) -> Any:
    def emit(event: Event) -> None:
        first(event)
        second(event)

    return emit


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM ends us as Ctrl-C does: the engine is stopped before we go."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
