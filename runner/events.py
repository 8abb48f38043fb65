"""What ``execute_run`` reports while it works. The listener decides where it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from calculator.answers import OutputRecord
from calculator.measurement import ClientHealth, Measurement, SpeculationCounters
from runner.warmup import WarmUp


@dataclass(frozen=True, slots=True)
class Phase:
    """The run entered a phase; the names are the run's states on the site."""

    name: Literal["starting", "warming", "measuring", "stopping"]


@dataclass(frozen=True, slots=True)
class EngineReady:
    fingerprint: dict[str, Any]
    start_s: float


@dataclass(frozen=True, slots=True)
class WarmedUp:
    result: WarmUp


@dataclass(frozen=True, slots=True)
class TrialStarted:
    trial: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Requests finished so far in the trial; at most one event a second."""

    trial: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class LogTail:
    lines: list[str]


@dataclass(frozen=True, slots=True)
class TrialRecorded:
    trial: int
    duration_s: float
    measurements: tuple[Measurement, ...]
    counters: SpeculationCounters | None
    client: ClientHealth
    invalid_reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OutputChecked:
    """The untimed greedy pass, without text. Told again, and then it counts, once it is scored."""

    record: OutputRecord


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last event of every run.

    ``status`` ``unsupported`` is a finding (the engine refused the combination).
    """

    status: Literal["recorded", "unsupported", "failed", "cancelled"]
    code: str | None = None
    reason: str | None = None
    log_tail: list[str] = field(default_factory=list)


Event = (
    Phase
    | EngineReady
    | WarmedUp
    | TrialStarted
    | Progress
    | LogTail
    | TrialRecorded
    | OutputChecked
    | RunEnded
)
