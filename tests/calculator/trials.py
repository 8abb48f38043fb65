"""Trials with a known truth: what each arm's server really does is set here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from calculator.measurement import (
    ClientHealth,
    Measurement,
    Outcome,
    SpeculationCounters,
    TrialRecord,
)

CLIENT = ClientHealth(
    lateness_p99_ms=0.1, cpu_s=0.1, overhead_share=0.01, peak_in_flight=1, loop_stall_max_ms=1.0
)
NS = 1_000_000


def trial(
    arm: str,
    run: int,
    block: int,
    *,
    requests: int = 8,
    concurrency: int = 1,
    speed: float = 1.0,
    ttft_ms: float = 50.0,
    start_sd: float = 0.02,
    noise_sd: float = 0.03,
    tokens: int = 60,
    rng: np.random.Generator | None = None,
    counters: SpeculationCounters | None = None,
    category: Callable[[int], str | None] = lambda i: "even" if i % 2 == 0 else "odd",
) -> TrialRecord:
    """One trial of a server with 100 ms per token over ``speed``; starts and answers vary."""
    rng = rng or np.random.default_rng([run, block])
    start = float(np.exp(rng.normal(0, start_sd)))
    measurements: list[Measurement] = []
    clock = 0
    for i in range(requests):
        # The request's own difficulty is the same in every arm and start.
        own = float(np.exp(0.3 * np.random.default_rng([7, i]).normal()))
        step_ms = 100 * own / speed * start * float(np.exp(rng.normal(0, noise_sd)))
        first = clock + int(ttft_ms * NS * float(np.exp(rng.normal(0, noise_sd))))
        last = first + int(step_ms * NS) * (tokens - 1)
        measurements.append(
            Measurement(
                f"r{i}", i, category(i), Outcome.OK, clock, clock, last,
                first, first, last, 30, 0, tokens, 1, tokens, "stop",
            )
        )  # fmt: skip
        clock = last
    return TrialRecord(
        arm, run, block, concurrency, clock / 1e9 / concurrency, tuple(measurements), counters,
        replace(CLIENT, peak_in_flight=concurrency),
    )  # fmt: skip


def pair_of_arms(
    speed: float, *, runs: int = 2, seed: int = 1, concurrency: int = 1, requests: int = 8
) -> list[TrialRecord]:
    """Baseline and candidate ("ngram") in A B B A order."""
    rng = np.random.default_rng(seed)
    trials: list[TrialRecord] = []
    for block in range(runs):
        arms = ["baseline", "ngram"] if block % 2 == 0 else ["ngram", "baseline"]
        for arm in arms:
            trials.append(
                trial(
                    arm, len(trials), block, speed=speed if arm == "ngram" else 1.0, rng=rng,
                    concurrency=concurrency, requests=requests,
                    counters=SpeculationCounters(100, 400, 300, (90, 80, 70, 60), 480, 240, 8)
                    if arm == "ngram" else SpeculationCounters(generation_tokens=480),
                )
            )  # fmt: skip
    return trials


def without_gaps(record: TrialRecord) -> TrialRecord:
    """``record`` with the duration that its requests take with all slots always busy."""
    held_ns = sum(m.done_ns - m.sent_ns for m in record.measurements)
    return replace(record, duration_s=held_ns / 1e9 / record.concurrency)


def change(record: TrialRecord, index: int, **values: object) -> TrialRecord:
    """``record`` with one measurement changed."""
    measurements = list(record.measurements)
    measurements[index] = replace(measurements[index], **values)  # type: ignore[arg-type]
    return replace(record, measurements=tuple(measurements))
