"""What the result page shows of an experiment: its comparisons, their charts, its runs."""

from __future__ import annotations

from typing import Any

from calculator.validity import REASONS
from runner.arms import deploy_command
from runner.plan import ExperimentPlan, Slo
from webapp.comparisons import charts
from webapp.comparisons.models import Comparison
from webapp.comparisons.selectors import for_experiment
from webapp.core.charts import Document, Figure, gain_against_load
from webapp.experiments import present
from webapp.experiments.models import Experiment


def result_context(experiment: Experiment, arm: str | None, level: str | None) -> dict[str, Any]:
    """``arm`` and ``level`` are what the address asks for; what is not there falls back."""
    plan = present.plan_of(experiment)
    runs = present.runs_of(experiment)
    rows = list(for_experiment(experiment))
    arms, settings = present.settings_side_by_side(runs)
    context: dict[str, Any] = {
        "plan": plan,
        "measured": present.measured(runs),
        "findings": present.findings(runs),
        "comparisons": rows,
        "settings_arms": arms,
        "settings_rows": settings,
        "different_settings": sum(row.differs for row in settings),
    }
    if rows:
        chosen = next((row for row in rows if row.arm == arm), rows[0])
        context |= comparison_context(chosen, plan, level)
    return context


def comparison_context(row: Comparison, plan: ExperimentPlan, level: str | None) -> dict[str, Any]:
    detail = chosen_level(row.document, row.verdict, level)
    return {
        "comparison": row,
        "document": row.document,
        "verdict": row.verdict,
        "level": detail,
        "promised": plan.slo != Slo(),
        "exclusions": exclusions(row.document),
        "figures": figures(row.document, detail, plan.decision.own_concurrency),
        "command": command(plan, row.arm),
    }


def exclusions(document: Document) -> list[tuple[str, str]]:
    """(code, what it means) of every reason for which a trial was left out."""
    codes = {
        code
        for level in document["levels"]
        for trial in level["excluded"]
        for code in trial["reasons"]
    }
    return [(code, text) for code, text in REASONS.items() if code in codes]


def chosen_level(document: Document, verdict: Document, wanted: str | None) -> Document | None:
    """The level that was asked for, else the headline's, else the first."""
    levels = document["levels"]
    by_load = {str(level["concurrency"]): level for level in levels}
    headline = str(verdict["headline_concurrency"])
    return by_load.get(wanted or headline) or by_load.get(headline) or next(iter(levels), None)


def figures(document: Document, level: Document | None, own: int | None) -> dict[str, Figure]:
    """The charts by name; one that has nothing to show is left out."""
    if level is None:
        return {}
    found = {
        "gain": gain_against_load(document["levels"], own),
        "categories": charts.gain_by_category(level),
        "e2e": charts.distribution(level, "e2e_ms", "Total time"),
        "ttft": charts.distribution(level, "ttft_ms", "Time to the first word"),
        "acceptance": charts.acceptance_by_position(level),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def command(plan: ExperimentPlan, arm_name: str) -> str:
    """The engine command of an arm; empty without such an arm, and for a simulated engine."""
    arm = next((arm for arm in plan.arms if arm.name == arm_name), None)
    if arm is None or plan.target.engine == "simulator":
        return ""
    return deploy_command(plan.target, arm)
