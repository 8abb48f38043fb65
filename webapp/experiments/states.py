"""Every state, and every change between them that is allowed. The one table."""

from __future__ import annotations

from django.db import models


class ExperimentState(models.TextChoices):
    DRAFT = "draft", "Draft"
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    ANALYSING = "analysing", "Analysing"
    DONE = "done", "Done"
    PARTIAL = "partial", "Partly measured"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"


class RunState(models.TextChoices):
    PENDING = "pending", "Waiting"
    STARTING = "starting", "Engine starting"
    WARMING = "warming", "Warming up"
    MEASURING = "measuring", "Measuring"
    STOPPING = "stopping", "Stopping"
    RECORDED = "recorded", "Recorded"
    UNSUPPORTED = "unsupported", "Not supported"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class TrialState(models.TextChoices):
    PENDING = "pending", "Waiting"
    RUNNING = "running", "Running"
    RECORDED = "recorded", "Recorded"
    INVALID = "invalid", "Not believable"
    FAILED = "failed", "Failed"


RUN_ACTIVE = (RunState.STARTING, RunState.WARMING, RunState.MEASURING, RunState.STOPPING)
RUN_ENDED = (RunState.RECORDED, RunState.UNSUPPORTED, RunState.FAILED, RunState.CANCELLED)

EXPERIMENT_MOVES: dict[str, tuple[str, ...]] = {
    ExperimentState.DRAFT: (ExperimentState.QUEUED,),
    ExperimentState.QUEUED: (
        ExperimentState.RUNNING,
        ExperimentState.CANCELLED,
        ExperimentState.FAILED,
    ),
    ExperimentState.RUNNING: (
        ExperimentState.ANALYSING,
        ExperimentState.CANCELLED,
        ExperimentState.FAILED,
    ),
    ExperimentState.ANALYSING: (
        ExperimentState.DONE,
        ExperimentState.PARTIAL,
        ExperimentState.FAILED,
    ),
    # Measuring again what is missing: the way back after a cancel, a failure or a loss.
    ExperimentState.PARTIAL: (ExperimentState.QUEUED,),
    ExperimentState.CANCELLED: (ExperimentState.QUEUED,),
    ExperimentState.FAILED: (ExperimentState.QUEUED,),
    ExperimentState.DONE: (),
}

RUN_MOVES: dict[str, tuple[str, ...]] = {
    # Pending runs of an arm that the engine refused once are unsupported without a start.
    RunState.PENDING: (
        RunState.STARTING,
        RunState.UNSUPPORTED,
        RunState.CANCELLED,
        RunState.FAILED,
    ),
    RunState.STARTING: (RunState.WARMING, RunState.STOPPING, *RUN_ENDED),
    RunState.WARMING: (RunState.MEASURING, RunState.STOPPING, *RUN_ENDED),
    RunState.MEASURING: (RunState.STOPPING, *RUN_ENDED),
    RunState.STOPPING: RUN_ENDED,
    **dict.fromkeys(RUN_ENDED, ()),
}

TRIAL_MEASURED = (TrialState.RECORDED, TrialState.INVALID)

TRIAL_MOVES: dict[str, tuple[str, ...]] = {
    TrialState.PENDING: (TrialState.RUNNING, TrialState.FAILED),
    TrialState.RUNNING: (TrialState.RECORDED, TrialState.INVALID, TrialState.FAILED),
    TrialState.RECORDED: (),
    TrialState.INVALID: (),
    TrialState.FAILED: (),
}


def sources(moves: dict[str, tuple[str, ...]], target: str) -> list[str]:
    """The states from which ``target`` may be entered: the WHERE of a conditional UPDATE."""
    return [state for state, targets in moves.items() if target in targets]
