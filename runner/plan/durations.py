"""How long a plan takes, and plans that fit a sample or the time there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.plan.checks import least_requests
from runner.plan.data import Design, ExperimentPlan, LoadLevel, PlanError

LEAST_PER_LEVEL = 4
BATCH_EXPONENT = 0.66
"""vLLM on 2 CPU cores wrote 10.0 / 27.6 / 39.1 output tokens/s at 1 / 4 / 8 in flight."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What a plan's duration is estimated from. Replace it by numbers of earlier runs."""

    engine_start_s: float
    """From the start of the server to its first real completion, with the stop."""
    tokens_per_s_alone: float
    """Output tokens/s of the baseline with one request in flight."""
    batch_exponent: float = BATCH_EXPONENT
    """Output tokens/s grow as concurrency ** exponent."""
    tokens_per_answer: float = 128.0
    """Mean answer where no limit is set."""
    speedup: float = 1.0
    """Expected for the candidates; 1 is the cautious choice."""


VLLM_CPU_TIMING = Timing(engine_start_s=75.0, tokens_per_s_alone=10.0)
VLLM_GPU_TIMING = Timing(engine_start_s=90.0, tokens_per_s_alone=80.0, batch_exponent=0.9)
SIMULATOR_TIMING = Timing(engine_start_s=2.0, tokens_per_s_alone=200.0, batch_exponent=0.9)


WARMUP_ROUNDS = 2
"""The fewest that show a steady state."""


def assumed_timing(plan: ExperimentPlan, *, gpu: bool = False) -> Timing:
    """What is assumed before anything was measured: small models, cautious on speed."""
    if plan.target.engine == "simulator":
        return SIMULATOR_TIMING
    return VLLM_GPU_TIMING if gpu else VLLM_CPU_TIMING


def estimate_seconds(plan: ExperimentPlan, timing: Timing | None = None) -> float:
    """Expected wall time of the whole experiment in seconds, all runs one after another."""
    timing = timing or assumed_timing(plan)
    design = plan.design
    answer = timing.tokens_per_answer
    if design.max_output_tokens is not None:
        answer = min(answer, design.max_output_tokens)
    trials_s = sum(
        level.requests * answer / _tokens_per_s(timing, level.concurrency) for level in plan.levels
    )
    warmup_s = WARMUP_ROUNDS * design.warmup_requests * answer / timing.tokens_per_s_alone
    check_tokens = design.output_check_requests * design.output_check_tokens
    check_s = check_tokens / _tokens_per_s(timing, 4)
    total = 0.0
    for arm in plan.arms:
        speed = 1.0 if arm.method == "none" else timing.speedup
        total += timing.engine_start_s + (trials_s + warmup_s + check_s) / speed
    # The baseline's engine is started once more for each candidate, to score its answers.
    scorers = len(plan.arms) - 1 if design.output_check_requests else 0
    return total * design.runs_per_arm + scorers * timing.engine_start_s


def _tokens_per_s(timing: Timing, concurrency: int) -> float:
    return float(timing.tokens_per_s_alone * concurrency**timing.batch_exponent)


def suggest(
    requests: int, *, concurrencies: Sequence[int] = (1, 4, 8), most_per_level: int = 60
) -> tuple[tuple[LoadLevel, ...], Design]:
    """Load levels and a design that fit a sample of ``requests`` replayable requests.

    Every level gets what its load needs and an equal part of the rest; the highest levels are left
    out where that is not there. Raises PlanError when not even one level fits.
    """
    design = Design()
    if requests < 4 * (design.warmup_requests + design.output_check_requests):
        checked = max(min(4, requests // 4), requests // 8)
        design = replace(design, warmup_requests=1, output_check_requests=checked)
    left = requests - design.warmup_requests - design.output_check_requests
    wanted = sorted(concurrencies)
    while wanted:
        least = [max(LEAST_PER_LEVEL, least_requests(level)) for level in wanted]
        more = (left - sum(least)) // len(wanted)
        if more >= 0:
            counts = [max(n, min(most_per_level, n + more)) for n in least]
            levels = zip(wanted, counts, strict=True)
            return tuple(LoadLevel(level, requests) for level, requests in levels), design
        wanted.pop()
    raise PlanError(
        f"The sample has {requests} replayable requests, which is too few to measure anything: "
        "give it at least 8."
    )
