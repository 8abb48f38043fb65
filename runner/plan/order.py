"""The order of runs and trials, and which requests each of them replays. Seeded."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from runner.plan.checks import validate
from runner.plan.data import (
    ExperimentPlan,
    PlanError,
    PlannedRun,
    PlannedTrial,
    RequestInfo,
)


def needed_requests(plan: ExperimentPlan) -> int:
    """Different requests that one run uses up; every run uses the same ones."""
    design = plan.design
    measured = sum(level.requests for level in plan.levels)
    return measured + design.warmup_requests + design.output_check_requests


def schedule(plan: ExperimentPlan, requests: Sequence[RequestInfo]) -> tuple[PlannedRun, ...]:
    """The ordered runs of ``plan`` over ``requests``. Same plan and sample, same schedule.

    Arms go A B B A A B ..., so that a slow drift of the machine falls on all of them. Every run
    replays the same requests in the same order, so that each is paired across arms and blocks.
    Inside a run no prompt is sent twice: a cache of prompts or answers can't have seen it.
    Each slice has the sample's mix of categories. Raises PlanError.
    """
    problems = validate(plan)
    if problems:
        raise PlanError(problems[0])
    requests = _different(requests)
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


def _different(requests: Sequence[RequestInfo]) -> list[RequestInfo]:
    """The first request of each prompt."""
    return list(
        {request.prompt_key or request.id: request for request in reversed(requests)}.values()
    )[::-1]


def _require_enough(plan: ExperimentPlan, available: int) -> None:
    needed = needed_requests(plan)
    if available >= needed:
        return
    design = plan.design
    levels = " + ".join(str(level.requests) for level in plan.levels)
    raise PlanError(
        f"The sample has {available} replayable requests with a prompt of their own and this plan "
        f"uses {needed} ({levels} for the load levels, {design.warmup_requests} to warm up, "
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
