"""What a plan's trials say: one candidate's comparison and verdict, as documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from calculator import comparison, verdict
from calculator.answers import OutputRecord
from calculator.columns import Trials
from calculator.measurement import TrialRecord
from runner.plan import ExperimentPlan


def baseline_of(plan: ExperimentPlan) -> str:
    """The name of the arm without speculation."""
    return next(arm.name for arm in plan.arms if arm.method == "none")


def compare_plan(
    plan: ExperimentPlan,
    trials: Trials | Iterable[TrialRecord],
    arm: str,
    outputs: Mapping[int, OutputRecord],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(comparison document, verdict document) of ``arm`` against the plan's baseline.

    ``outputs`` are the records of the output check, by the run's index. Trials of other arms are
    ignored.
    """
    found = comparison.compare(
        trials,
        baseline=baseline_of(plan),
        candidate=arm,
        usd_per_hour=plan.price.usd_per_hour,
        slo_ttft_p95_ms=plan.slo.ttft_p95_ms,
        slo_tpot_p95_ms=plan.slo.tpot_p95_ms,
        slo_e2e_p95_ms=plan.slo.e2e_p95_ms,
        outputs=outputs,
    )
    decided = verdict.decide(
        found,
        min_gain_percent=plan.decision.min_gain_percent,
        own_concurrency=plan.decision.own_concurrency,
        usd_per_hour=plan.price.usd_per_hour,
        requests_per_month=plan.decision.requests_per_month,
        peak_to_mean=plan.decision.peak_to_mean,
    )
    return comparison.to_document(found), verdict.to_document(decided)
