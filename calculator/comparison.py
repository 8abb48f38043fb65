"""Candidate against baseline at each load level, paired by request, with intervals.

Latency effects are geometric means of the per-request ratio candidate / baseline: "a typical
request takes 0.55 of the time". The before and after numbers beside them are arithmetic means, so
the quotient of the two can differ a little from the ratio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from calculator.acceptance import Acceptance, measured_acceptance
from calculator.answers import OutputRecord
from calculator.columns import OUTCOMES, TrialColumns, Trials
from calculator.effects import (
    LATENCIES,
    SIDES,
    Effect,
    LevelData,
    Side,
    Status,
    latency_effect,
    level_effects,
)
from calculator.measurement import Outcome, TrialRecord
from calculator.outputs import OutputCheck, check_outputs
from calculator.statistics import Evidence, Interval, first_against_later
from calculator.summary import Summary, summarise
from calculator.traits import sampled_lengths
from calculator.validity import mean_in_flight, trial_reasons

SCHEMA_VERSION = 1
CONFIDENCE = 0.95
MOST_FAILED_UNDER_SLO = 0.02

PROBLEMS: dict[str, str] = {
    "prompt_tokens_differ": (
        "The same request had different numbers of prompt tokens in the two arms: another chat "
        "template, or a doubled start token. They were not asked the same thing."
    ),
    "no_pairs": "No request was completed in both arms within one block: nothing can be compared.",
}


@dataclass(frozen=True, slots=True)
class Excluded:
    """A trial that was left out, with its codes of ``validity.REASONS``."""

    arm: str
    run: int
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Output tokens of paired requests; ``equal_share`` of the pairs had the same number."""

    baseline_mean: float | None
    candidate_mean: float | None
    equal_share: float | None


@dataclass(frozen=True, slots=True)
class SloResult:
    """``passes`` None: a clause has too few requests for its percentile."""

    passes: bool | None
    failing: list[str]


@dataclass(frozen=True, slots=True)
class Category:
    pairs: int
    effects: dict[str, Effect]
    e2e_evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class LevelComparison:
    """One load level. ``evidence`` holds what the intervals were made of, by metric."""

    concurrency: int
    blocks: int
    pairs: int
    """Different requests that were completed in both arms in at least one block."""
    excluded: list[Excluded]
    effects: dict[str, Effect]
    categories: dict[str, Category]
    acceptance: Acceptance
    failures: dict[str, dict[str, int]]
    """By arm and outcome, over all trials: those that are not believed as well."""
    sent: dict[str, int]
    in_flight: dict[str, float | None]
    """Mean number of requests in flight over the believed trials, by arm."""
    lengths: Lengths
    distribution: dict[str, dict[str, Summary]]
    slo: dict[str, SloResult]
    evidence: dict[str, Evidence | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The measured level with the highest rate that keeps the promise; None: none does."""

    concurrency: int | None
    requests_per_s: float | None


@dataclass(frozen=True, slots=True)
class Control:
    """Baseline against itself: later server starts over first ones, as a ratio of E2E."""

    concurrency: int
    e2e_ms: Interval


@dataclass(frozen=True, slots=True)
class Comparison:
    baseline: str
    candidate: str
    levels: list[LevelComparison]
    output_check: OutputCheck
    aa_control: list[Control]
    capacity: dict[str, Capacity]
    capacity_change: Status
    """Candidate's capacity against the baseline's, each at the load where it has its own."""
    problems: list[str]
    """Codes of PROBLEMS: with any of them there is no verdict."""
    confidence: float = CONFIDENCE
    schema_version: int = SCHEMA_VERSION


def compare(
    trials: Trials | Iterable[TrialRecord],
    *,
    baseline: str,
    candidate: str,
    usd_per_hour: Decimal,
    slo_ttft_p95_ms: float | None = None,
    slo_tpot_p95_ms: float | None = None,
    slo_e2e_p95_ms: float | None = None,
    outputs: Mapping[int, OutputRecord] | None = None,
) -> Comparison:
    """Compare two arms over all load levels that either of them measured.

    ``trials`` are taken one by one and none is kept, so a generator needs memory for one of them;
    whoever compares several candidates makes ``Trials`` of them once. ``outputs`` maps a run's
    index to the record of its untimed greedy answers. Trials that may not be believed are left out
    and listed. A level that one arm did not measure has no effects. Never raises for failed or
    empty trials.
    """
    promise = {"ttft_ms": slo_ttft_p95_ms, "tpot_ms": slo_tpot_p95_ms, "e2e_ms": slo_e2e_p95_ms}
    measured = Trials.of(trials)
    ours = [trial for trial in measured.columns if trial.arm in (baseline, candidate)]
    levels: list[LevelComparison] = []
    control: list[Control] = []
    problems: set[str] = set()
    for concurrency in sorted({trial.concurrency for trial in ours}):
        at_level = [trial for trial in ours if trial.concurrency == concurrency]
        excluded, data = _believed(at_level, baseline, measured.categories)
        sides: dict[Side, list[TrialColumns]] = {
            side: [trial for trial in at_level if trial.arm == arm]
            for side, arm in zip(SIDES, (baseline, candidate), strict=True)
        }
        levels.append(_level(concurrency, data, sides, excluded, usd_per_hour, promise))
        later = first_against_later(data.log_latency("e2e_ms", "baseline"))
        control.append(Control(concurrency, Interval() if later is None else later.ratio()))
        if data.prompt_tokens_differ():
            problems.add("prompt_tokens_differ")
    if not any(level.pairs for level in levels):
        problems.add("no_pairs")
    runs = {arm: sorted({t.run for t in ours if t.arm == arm}) for arm in (baseline, candidate)}
    capacity: dict[str, Capacity] = {side: _capacity(levels, side) for side in SIDES}
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        levels=levels,
        output_check=check_outputs(
            outputs or {}, runs[baseline], runs[candidate], sampled_lengths(ours, baseline)
        ),
        aa_control=control,
        capacity=capacity,
        capacity_change=_capacity_change(levels, capacity),
        problems=sorted(problems),
    )


def to_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON: floats, strings, None; evidence is left out."""
    document = asdict(comparison)
    for level in document["levels"]:
        del level["evidence"]
        for category in level["categories"].values():
            del category["e2e_evidence"]
    return document


def _believed(
    trials: Sequence[TrialColumns], baseline: str, categories: Sequence[str]
) -> tuple[list[Excluded], LevelData]:
    excluded: list[Excluded] = []
    sides: dict[Side, dict[int, TrialColumns]] = {side: {} for side in SIDES}
    for trial in trials:
        reasons = trial_reasons(trial)
        if reasons:
            excluded.append(Excluded(trial.arm, trial.run, reasons))
        else:
            sides["baseline" if trial.arm == baseline else "candidate"][trial.block] = trial
    return excluded, LevelData(sides["baseline"], sides["candidate"], categories)


def _level(
    concurrency: int,
    data: LevelData,
    trials: Mapping[Side, Sequence[TrialColumns]],
    excluded: list[Excluded],
    usd_per_hour: Decimal,
    promise: Mapping[str, float | None],
) -> LevelComparison:
    effects, evidence = level_effects(data, float(usd_per_hour))
    distribution: dict[str, dict[str, Summary]] = {
        metric: {side: summarise(data.completed(side, metric)) for side in SIDES}
        for metric in LATENCIES
    }
    return LevelComparison(
        concurrency=concurrency,
        blocks=len(data.blocks),
        pairs=data.pairs(),
        excluded=excluded,
        effects=effects,
        categories=_categories(data),
        acceptance=measured_acceptance(data.trials("candidate")),
        failures={side: _failures(measured) for side, measured in trials.items()},
        sent={side: sum(trial.sent for trial in trials[side]) for side in SIDES},
        in_flight={side: _in_flight(data.trials(side)) for side in SIDES},
        lengths=_lengths(data),
        distribution=distribution,
        slo={
            side: _slo(
                data.trials(side),
                {name: distribution[name][side].p95 for name in LATENCIES},
                promise,
            )
            for side in SIDES
        },
        evidence=evidence,
    )


def _categories(data: LevelData) -> dict[str, Category]:
    matrices = {metric: data.matrices(metric) for metric in LATENCIES}
    categories: dict[str, Category] = {}
    for name, rows in data.categories().items():
        pairs = int(data.paired[rows].any(axis=1).sum())
        if pairs:
            found = {
                metric: latency_effect(metric, before[rows], after[rows])
                for metric, (before, after) in matrices.items()
            }
            effects = {metric: effect for metric, (effect, _) in found.items()}
            categories[name] = Category(pairs, effects, found["e2e_ms"][1])
    return categories


def _failures(trials: Sequence[TrialColumns]) -> dict[str, int]:
    counted = {
        outcome.value: sum(int((trial.outcome == index).sum()) for trial in trials)
        for index, outcome in enumerate(OUTCOMES)
        if outcome is not Outcome.OK
    }
    return {outcome: count for outcome, count in sorted(counted.items()) if count}


def _in_flight(trials: Sequence[TrialColumns]) -> float | None:
    known = [mean for trial in trials if (mean := mean_in_flight(trial)) is not None]
    return sum(known) / len(known) if known else None


def _lengths(data: LevelData) -> Lengths:
    before, after = data.token_pairs()
    if not before.size:
        return Lengths(None, None, None)
    return Lengths(float(before.mean()), float(after.mean()), float((before == after).mean()))


def _slo(
    trials: Sequence[TrialColumns],
    p95: Mapping[str, float | None],
    promise: Mapping[str, float | None],
) -> SloResult:
    """95th percentile of the completed requests against each promised clause, and failures."""
    completed = sum(int(trial.ok.sum()) for trial in trials)
    if not completed:
        return SloResult(None, ["nothing_completed"])
    failing: list[str] = []
    unknown = False
    for metric, limit in promise.items():
        if limit is None:
            continue
        reached = p95[metric]
        if reached is None:
            unknown = True
        elif reached > limit:
            failing.append(f"{metric.removesuffix('_ms')}_p95_ms")
    if 1 - completed / sum(trial.sent for trial in trials) > MOST_FAILED_UNDER_SLO:
        failing.append("failures")
    return SloResult(False if failing else None if unknown else True, failing)


def _capacity(levels: Sequence[LevelComparison], side: Side) -> Capacity:
    passing = [
        (rate, level.concurrency)
        for level in levels
        if level.slo[side].passes
        and (rate := getattr(level.effects["requests_per_s"], side).estimate) is not None
    ]
    if not passing:
        return Capacity(None, None)
    rate, concurrency = max(passing)
    return Capacity(concurrency, rate)


def _capacity_change(levels: Sequence[LevelComparison], capacity: Mapping[str, Capacity]) -> Status:
    """At one load the paired ratio decides. At two loads nothing is paired, so the arms' own
    intervals must not touch, which is stricter than 95 %."""
    at = {level.concurrency: level.effects["requests_per_s"] for level in levels}
    before, after = capacity["baseline"].concurrency, capacity["candidate"].concurrency
    if before is None or after is None:
        return "unknown"
    if before == after:
        return at[before].status
    first, second = at[before].baseline, at[after].candidate
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return "unknown"
    if second.low > first.high:
        return "better"
    return "worse" if second.high < first.low else "not_shown"
