"""Progress of an experiment on a terminal: a moving line, or calm lines where there is none."""

from __future__ import annotations

import time
from typing import TextIO

from runner.events import Event, Phase, Progress, RunEnded, TrialRecorded, TrialStarted, WarmedUp
from runner.plan import PlannedRun

_CALM_EVERY_S = 15.0


def say(line: str) -> None:
    """Print at once, also where the output is a pipe."""
    print(line, flush=True)


def duration(seconds: float) -> str:
    """``90`` -> ``1 min 30 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class ProgressLines:
    """Shows the events of one run."""

    def __init__(self, planned: PlannedRun, runs: int, out: TextIO) -> None:
        self._planned = planned
        self._name = f"[{planned.index + 1}/{runs}] {planned.arm.name}"
        self._out = out
        self._moving = out.isatty()
        self._open = False
        self._told = 0.0

    def show(self, event: Event) -> None:
        match event:
            case Phase(name="starting"):
                self._line("starting the engine")
            case Phase(name="warming"):
                self._line("warming up")
            case WarmedUp(result=found) if not found.steady:
                self._line(f"warming up: times still changed after {found.rounds} rounds")
            case TrialStarted(trial=trial):
                self._told = time.monotonic()
                self._line(f"{self._level(trial)}: {self._total(trial)} requests")
            case Progress(trial=trial, done=done, total=total):
                self._progress(f"{self._level(trial)}: {done} of {total}")
            case TrialRecorded(trial=trial, duration_s=seconds, invalid_reasons=reasons):
                doubts = f"; not believable: {', '.join(reasons)}" if reasons else ""
                self._line(f"{self._level(trial)}: measured in {duration(seconds)}{doubts}")
            case RunEnded(status=status, reason=reason, log_tail=tail):
                self._line(f"{status}: {reason}" if reason else status)
                for line in tail[-10:] if status != "recorded" else ():
                    self._line(f"  engine: {line}")
            case _:
                pass

    def _level(self, trial: int) -> str:
        return f"{self._planned.trials[trial].level.concurrency} in flight"

    def _total(self, trial: int) -> int:
        return len(self._planned.trials[trial].request_ids)

    def _progress(self, text: str) -> None:
        if self._moving:
            self._out.write(f"\r\x1b[2K{self._name}: {text}")
            self._open = True
            self._out.flush()
        elif time.monotonic() - self._told >= _CALM_EVERY_S:
            self._told = time.monotonic()
            self._line(text)

    def _line(self, text: str) -> None:
        if self._open:
            self._out.write("\r\x1b[2K")
            self._open = False
        self._out.write(f"{self._name}: {text}\n")
        self._out.flush()
