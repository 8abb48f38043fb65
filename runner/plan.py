"""An experiment as data, and the order in which it is measured. Pure and seeded.

``ExperimentPlan`` is what a PLAN.toml, or a row of the site, says. ``schedule`` turns it into
ordered runs (A B B A ...) and trials, each with the ids of the requests it replays.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any, Literal

Method = Literal["none", "ngram", "suffix", "draft_model"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One engine configuration. ``method`` "none" is the baseline; exactly one arm has it."""

    name: str
    method: Method = "none"
    parameters: dict[str, Any] = field(default_factory=dict)
    """Parameters of the method from the allow-list in ``runner.arms``."""


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A closed loop: ``concurrency`` requests in flight until ``requests`` were sent."""

    concurrency: int
    requests: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is served and how. ``engine`` "simulator" serves behaviour instead of a model."""

    engine: Literal["vllm", "simulator"]
    model: str
    """A local folder or a Hugging Face id; the served name for the simulator."""
    dtype: str = "auto"
    max_model_len: int | None = None
    enforce_eager: bool = False
    simulator: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For the simulator: behaviour by method name, e.g. {"none": {...}, "ngram": {...}}."""


@dataclass(frozen=True, slots=True)
class Slo:
    """The promise to users; a clause that is None is not promised."""

    ttft_p95_ms: float | None = None
    tpot_p95_ms: float | None = None
    e2e_p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What one engine costs per hour, who says so and since when (ISO date)."""

    usd_per_hour: Decimal
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class Design:
    """How often and how long. Defaults are those of the site."""

    runs_per_arm: int = 3
    seed: int = 1
    warmup_requests: int = 2
    output_check_requests: int = 6
    output_check_tokens: int = 32
    max_output_tokens: int | None = None
    request_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What the verdict is asked for."""

    min_gain_percent: float = 5.0
    """The smallest gain that matters."""
    own_concurrency: int | None = None
    """Requests in flight at the client's own busy hour, when known."""
    requests_per_month: float | None = None
    peak_to_mean: float = 2.0


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """One question asked of one sample and one target."""

    target: Target
    arms: tuple[Arm, ...]
    levels: tuple[LoadLevel, ...]
    price: Price
    slo: Slo = Slo()
    design: Design = Design()
    decision: Decision = Decision()


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One load level of one run. ``cache_salt`` keeps its prefix cache apart."""

    index: int
    level: LoadLevel
    request_ids: tuple[str, ...]
    cache_salt: str


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One server start of one arm; the k-th run of every arm is block k."""

    index: int
    arm: Arm
    block: int
    warmup_ids: tuple[str, ...]
    trials: tuple[PlannedTrial, ...]
    output_check_ids: tuple[str, ...]


class PlanError(Exception):
    """The plan can't be carried out; the text is one sentence that says what to change."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What the schedule needs to know of a request: no text."""

    id: str
    category: str | None = None


def needed_requests(plan: ExperimentPlan) -> int:
    """Different requests that one run uses up; every run uses the same ones."""
    design = plan.design
    measured = sum(level.requests for level in plan.levels)
    return measured + design.warmup_requests + design.output_check_requests


def schedule(plan: ExperimentPlan, requests: Sequence[RequestInfo]) -> tuple[PlannedRun, ...]:
    """The ordered runs of ``plan`` over ``requests``. Same plan and sample, same schedule.

    Arms go A B B A A B ..., so that a slow drift of the machine falls on all of them. Every run
    replays the same requests in the same order, so that each is paired across arms and blocks.
    Inside a run no request is sent twice: a cache of prompts or answers can't have seen it.
    Each slice has the sample's mix of categories. Raises PlanError.
    """
    problems = validate(plan)
    if problems:
        raise PlanError(problems[0])
    _require_enough(plan, len(requests))
    rng = random.Random(f"schedule {plan.design.seed}")  # noqa: S311 - order, not secrecy
    levels, checked, warmup = _slices(plan, _stratified(requests, rng), rng)
    runs: list[PlannedRun] = []
    for block in range(plan.design.runs_per_arm):
        order = _level_order(len(plan.levels), block, plan.design.seed)
        for arm in plan.arms if block % 2 == 0 else reversed(plan.arms):
            index = len(runs)
            trials = tuple(
                PlannedTrial(
                    index=position,
                    level=plan.levels[which],
                    request_ids=levels[which],
                    cache_salt=_salt(plan.design.seed, index, position, levels[which]),
                )
                for position, which in enumerate(order)
            )
            runs.append(PlannedRun(index, arm, block, warmup, trials, checked))
    return tuple(runs)


def _require_enough(plan: ExperimentPlan, available: int) -> None:
    needed = needed_requests(plan)
    if available >= needed:
        return
    design = plan.design
    levels = " + ".join(str(level.requests) for level in plan.levels)
    raise PlanError(
        f"The sample has {available} replayable requests and this plan uses {needed} different "
        f"ones ({levels} for the load levels, {design.warmup_requests} to warm up, "
        f"{design.output_check_requests} for the output check): add {needed - available} more "
        "requests, or lower the requests per load level or the number of levels."
    )


def _stratified(requests: Sequence[RequestInfo], rng: random.Random) -> list[str]:
    """All ids, shuffled, ordered so that every contiguous part has about the whole's mix."""
    by_category: dict[str | None, list[str]] = {}
    for request in requests:
        by_category.setdefault(request.category, []).append(request.id)
    # The j-th of c items stands at (j + 1/2) / c; ties keep one seeded order of categories.
    names = sorted(by_category, key=lambda name: (name is None, name or ""))
    rng.shuffle(names)
    placed: list[tuple[float, int, str]] = []
    for rank, name in enumerate(names):
        ids = by_category[name]
        rng.shuffle(ids)
        placed.extend(((j + 0.5) / len(ids), rank, item) for j, item in enumerate(ids))
    return [item for _, _, item in sorted(placed)]


def _slices(
    plan: ExperimentPlan, ids: list[str], rng: random.Random
) -> tuple[list[tuple[str, ...]], tuple[str, ...], tuple[str, ...]]:
    """Disjoint slices: one per level (in seeded order), the output check, the warm-up."""
    taken = 0
    parts: list[tuple[str, ...]] = []
    sizes = [level.requests for level in plan.levels]
    for size in [*sizes, plan.design.output_check_requests, plan.design.warmup_requests]:
        part = ids[taken : taken + size]
        rng.shuffle(part)
        parts.append(tuple(part))
        taken += size
    return parts[:-2], parts[-2], parts[-1]


def _level_order(levels: int, block: int, seed: int) -> list[int]:
    """Seeded, the same in each run of a block, and moved on by one from block to block."""
    order = list(range(levels))
    random.Random(f"levels {seed}").shuffle(order)  # noqa: S311 - order, not secrecy
    shift = block % levels
    return order[shift:] + order[:shift]


def _salt(seed: int, run: int, trial: int, ids: Sequence[str]) -> str:
    text = f"{seed} {run} {trial} {' '.join(ids)}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def validate(plan: ExperimentPlan) -> list[str]:
    """What is wrong with ``plan``, one sentence each; empty when it can be scheduled."""
    return [
        *_arm_problems(plan),
        *_level_problems(plan),
        *_design_problems(plan.design),
        *_promise_problems(plan),
    ]


def _arm_problems(plan: ExperimentPlan) -> Iterable[str]:
    from runner.arms import validate_arm  # arms knows Arm; only this function knows arms

    if not plan.target.model.strip():
        yield "Name a target model: a local folder or a Hugging Face id."
    if plan.target.max_model_len is not None and plan.target.max_model_len < 1:
        yield "The target's max_model_len must be at least 1."
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


def _level_problems(plan: ExperimentPlan) -> Iterable[str]:
    if not plan.levels:
        yield "Add at least one load level."
    concurrencies = [level.concurrency for level in plan.levels]
    if len(set(concurrencies)) < len(concurrencies):
        yield "Each load level needs a concurrency of its own."
    for level in plan.levels:
        if level.concurrency < 1:
            yield "A load level needs a concurrency of at least 1."
        elif level.requests < level.concurrency:
            yield (
                f"The level of {level.concurrency} in flight has {level.requests} requests: "
                f"it needs at least {level.concurrency} to reach its load."
            )


def _design_problems(design: Design) -> Iterable[str]:
    if design.runs_per_arm < 2:
        yield "Each arm needs at least 2 runs: one alone says nothing about its own spread."
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
    if not price.usd_per_hour.is_finite() or price.usd_per_hour < 0:
        yield "The price in USD per hour must be 0 or more."
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


@dataclass(frozen=True, slots=True)
class Timing:
    """What a plan's duration is estimated from. Replace it by numbers of earlier runs."""

    engine_start_s: float
    """From the start of the server to its first real completion, with the stop."""
    tokens_per_s_alone: float
    """Output tokens/s of the baseline with one request in flight."""
    batch_exponent: float = 0.66
    """Output tokens/s grow as concurrency ** exponent; 10.0 / 27.6 / 39.1 at 1 / 4 / 8 on CPU."""
    tokens_per_answer: float = 128.0
    """Mean answer where no limit is set."""
    speedup: float = 1.0
    """Expected for the candidates; 1 is the cautious choice."""


VLLM_CPU_TIMING = Timing(engine_start_s=75.0, tokens_per_s_alone=10.0)
SIMULATOR_TIMING = Timing(engine_start_s=2.0, tokens_per_s_alone=200.0, batch_exponent=0.9)


def estimate_seconds(plan: ExperimentPlan, timing: Timing | None = None) -> float:
    """Expected wall time of the whole experiment in seconds, all runs one after another."""
    if timing is None:
        timing = SIMULATOR_TIMING if plan.target.engine == "simulator" else VLLM_CPU_TIMING
    design = plan.design
    answer = timing.tokens_per_answer
    if design.max_output_tokens is not None:
        answer = min(answer, design.max_output_tokens)
    trials_s = sum(
        level.requests * answer / _tokens_per_s(timing, level.concurrency) for level in plan.levels
    )
    warmup_s = design.warmup_requests * answer / timing.tokens_per_s_alone
    check_tokens = design.output_check_requests * design.output_check_tokens
    check_s = check_tokens / _tokens_per_s(timing, 4)
    total = 0.0
    for arm in plan.arms:
        speed = 1.0 if arm.method == "none" else timing.speedup
        total += timing.engine_start_s + (trials_s + warmup_s + check_s) / speed
    return total * design.runs_per_arm


def _tokens_per_s(timing: Timing, concurrency: int) -> float:
    return float(timing.tokens_per_s_alone * concurrency**timing.batch_exponent)


def suggest(
    requests: int, *, concurrencies: Sequence[int] = (1, 4, 8), most_per_level: int = 60
) -> tuple[tuple[LoadLevel, ...], Design]:
    """Load levels and a design that fit a sample of ``requests`` replayable requests.

    Every level gets the same number, at least twice its concurrency; levels that would get less
    are left out. Raises PlanError when not even one level fits.
    """
    design = Design()
    if requests < 4 * (design.warmup_requests + design.output_check_requests):
        design = replace(design, warmup_requests=1, output_check_requests=min(4, requests // 4))
    left = requests - design.warmup_requests - design.output_check_requests
    wanted = sorted(concurrencies)
    while wanted:
        each = min(most_per_level, left // len(wanted))
        if each >= max(4, 2 * wanted[-1]):
            return tuple(LoadLevel(level, each) for level in wanted), design
        wanted.pop()
    raise PlanError(
        f"The sample has {requests} replayable requests; at least 8 are needed to measure anything."
    )


def fit_to_time(
    plan: ExperimentPlan, seconds: float, timing: Timing | None = None, *, least_per_level: int = 4
) -> ExperimentPlan:
    """``plan`` with fewer requests per level, so that it is expected to take ``seconds`` at most.

    A level never falls below its concurrency or ``least_per_level``, so the result may take longer.
    """
    while estimate_seconds(plan, timing) > seconds:
        levels = tuple(
            replace(level, requests=max(level.concurrency, least_per_level, level.requests - 1))
            for level in plan.levels
        )
        if levels == plan.levels:
            break
        plan = replace(plan, levels=levels)
    return plan
