"""An experiment as data, and the order in which it is measured. Pure and seeded.

``ExperimentPlan`` is what a PLAN.toml, or a row of the site, says. ``schedule`` turns it into
ordered runs (A B B A ...) and trials, each with the ids of the requests it replays.
"""

from runner.plan.checks import (
    validate,
)
from runner.plan.data import (
    Arm,
    Decision,
    Design,
    ExperimentPlan,
    LoadLevel,
    Method,
    PlanError,
    PlannedRun,
    PlannedTrial,
    Price,
    RequestInfo,
    Slo,
    Target,
)
from runner.plan.durations import (
    SIMULATOR_TIMING,
    VLLM_CPU_TIMING,
    VLLM_GPU_TIMING,
    Timing,
    assumed_timing,
    estimate_seconds,
    suggest,
)
from runner.plan.order import (
    needed_requests,
    schedule,
)

__all__ = [
    "SIMULATOR_TIMING",
    "VLLM_CPU_TIMING",
    "VLLM_GPU_TIMING",
    "Arm",
    "Decision",
    "Design",
    "ExperimentPlan",
    "LoadLevel",
    "Method",
    "PlanError",
    "PlannedRun",
    "PlannedTrial",
    "Price",
    "RequestInfo",
    "Slo",
    "Target",
    "Timing",
    "assumed_timing",
    "estimate_seconds",
    "needed_requests",
    "schedule",
    "suggest",
    "validate",
]
