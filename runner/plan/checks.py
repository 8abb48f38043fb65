"""What can be wrong with a plan, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date

from runner.plan.data import Design, ExperimentPlan, Target

MOST_USD_PER_HOUR = 1_000_000
LEAST_TURNS = 3
MOST_RUNS_PER_ARM = 100


def validate(plan: ExperimentPlan) -> list[str]:
    """What is wrong with ``plan``, one sentence each; empty when it can be scheduled."""
    return [
        *_target_problems(plan.target),
        *_arm_problems(plan),
        *_level_problems(plan),
        *_design_problems(plan.design),
        *_promise_problems(plan),
    ]


def _arm_problems(plan: ExperimentPlan) -> Iterable[str]:
    from runner.arms import validate_arm  # late: arms imports the plan's data

    baselines = sum(arm.method == "none" for arm in plan.arms)
    if baselines != 1:
        yield f'Exactly one arm must have the method "none" (the baseline); {baselines} have it.'
    if len(plan.arms) < 2:
        yield "Add at least one candidate arm beside the baseline."
    names = [arm.name for arm in plan.arms]
    if len(set(names)) < len(names):
        yield "Each arm needs a name of its own."
    if any(not name.strip() or len(name) > 60 for name in names):
        yield "An arm's name has between 1 and 60 characters."
    for arm in plan.arms:
        yield from validate_arm(arm)


def _target_problems(target: Target) -> Iterable[str]:
    from runner.arms import DTYPES, model_name_problem  # late: arms imports the plan's data

    if not target.model.strip():
        yield "Name a target model: a local folder or a Hugging Face id."
    elif target.engine == "vllm":
        problem = model_name_problem(target.model)
        if problem:
            yield f"The target model {problem}"
    if target.dtype not in DTYPES:
        yield f"The target's dtype must be one of {', '.join(DTYPES)}."
    if target.max_model_len is not None and target.max_model_len < 1:
        yield "The target's max_model_len must be at least 1."


def _level_problems(plan: ExperimentPlan) -> Iterable[str]:
    if not plan.levels:
        yield "Add at least one load level."
    concurrencies = [level.concurrency for level in plan.levels]
    if len(set(concurrencies)) < len(concurrencies):
        yield "Each load level needs a concurrency of its own."
    for level in plan.levels:
        if level.concurrency < 1:
            yield "A load level needs a concurrency of at least 1."
        elif level.requests < least_requests(level.concurrency):
            yield (
                f"The level of {level.concurrency} in flight has {level.requests} requests: "
                f"it needs at least {least_requests(level.concurrency)}, as with fewer its load "
                "holds for too small a part of the time."
            )


def least_requests(concurrency: int) -> int:
    """Fewer would leave slots empty for much of a trial: answers end at different times."""
    return 1 if concurrency == 1 else LEAST_TURNS * concurrency


def _design_problems(design: Design) -> Iterable[str]:
    if design.runs_per_arm < 2:
        yield "Each arm needs at least 2 runs: one alone says nothing about its own spread."
    if design.runs_per_arm > MOST_RUNS_PER_ARM:
        yield f"Each arm has at most {MOST_RUNS_PER_ARM} runs."
    for name in ("warmup_requests", "output_check_requests"):
        if getattr(design, name) < 0:
            yield f"The design's {name} must be 0 or more."
    if design.output_check_tokens < 1:
        yield "The design's output_check_tokens must be at least 1."
    if design.max_output_tokens is not None and design.max_output_tokens < 1:
        yield "The design's max_output_tokens must be at least 1, or absent."
    if not _above(design.request_timeout_s, 0):
        yield "The design's request_timeout_s must be more than 0 seconds."


def _promise_problems(plan: ExperimentPlan) -> Iterable[str]:
    price = plan.price
    if not price.usd_per_hour.is_finite() or not 0 <= price.usd_per_hour <= MOST_USD_PER_HOUR:
        yield f"The price in USD per hour must be from 0 to {MOST_USD_PER_HOUR:,}."
    if not price.source.strip():
        yield "Say where the price comes from."
    try:
        date.fromisoformat(price.as_of)
    except ValueError:
        yield "The price's as_of must be a date such as 2026-01-31."
    for name in ("ttft_p95_ms", "tpot_p95_ms", "e2e_p95_ms"):
        limit = getattr(plan.slo, name)
        if limit is not None and not _above(limit, 0):
            yield f"The SLO's {name} must be more than 0 ms, or absent."
    decision = plan.decision
    if not (math.isfinite(decision.min_gain_percent) and 0 <= decision.min_gain_percent < 100):
        yield "The smallest gain that matters must be from 0 to below 100 percent."
    if decision.own_concurrency is not None and decision.own_concurrency < 1:
        yield "Your own requests in flight must be at least 1, or absent."
    if decision.requests_per_month is not None and not _above(decision.requests_per_month, 0):
        yield "The requests per month must be more than 0, or absent."
    if not (math.isfinite(decision.peak_to_mean) and decision.peak_to_mean >= 1):
        yield "The peak-to-mean ratio must be at least 1."


def _above(value: float, bound: float) -> bool:
    return math.isfinite(value) and value > bound
