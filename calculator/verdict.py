"""The rules that turn a Comparison into a Verdict.

Loads are tested in a fixed order, from the lowest up, each at 5 %, and the first one that shows no
gain ends the sequence. That keeps the chance of any false claim at 5 % without a correction for
the number of loads: P. H. Westfall, A. Krishen, "Optimally weighted, fixed sequence and gatekeeper
multiple testing procedures", J. Statistical Planning and Inference 99 (2001) 25-40. A claim about
*all* loads needs none either: R. L. Berger, "Multiparameter hypothesis testing and acceptance
sampling", Technometrics 24 (1982) 295-300 (intersection-union).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from calculator.comparison import Comparison, LevelComparison
from calculator.effects import Effect
from calculator.reasons import Reason, reason
from calculator.statistics import fisher_fewer, needed

Code = Literal["switch_on", "switch_on_below", "leave_off", "not_proven"]
Gain = Literal["proven", "not_shown", "loss", "unknown"]
Finding = Literal["gain", "ruled_out", "open"]

TTFT_WORSE_RATIO = 1.10
TTFT_WORSE_MS = 20.0
EQUAL_LENGTHS = 0.02
"""Mean lengths that differ by more than this share are judged per token as well."""


@dataclass(frozen=True, slots=True)
class Verdict:
    code: Code
    sentence: str
    below_concurrency: int | None
    """For ``switch_on_below``: the lowest load at which the gain is not shown any more, or None
    when every measured load shows it and the own load lies above them all."""
    headline_concurrency: int | None
    headline: dict[str, Effect]
    gains: dict[str, Gain]
    reasons: list[Reason]
    would_settle: str | None


@dataclass(frozen=True, slots=True)
class _Judged:
    level: LevelComparison
    finding: Finding
    reasons: list[Reason]


def decide(
    comparison: Comparison, *, min_gain_percent: float, own_concurrency: int | None
) -> Verdict:
    """The verdict on one candidate.

    ``min_gain_percent``: the smallest reduction of E2E latency that matters. ``own_concurrency``:
    requests in flight at the reader's own busy hour; None when unknown, then every measured load
    counts.
    """
    judged = [_judge(level, min_gain_percent) for level in comparison.levels]
    vetoes = list(_vetoes(comparison))
    code, below = _rule(judged, vetoes, own_concurrency)
    headline = _headline(comparison.levels, own_concurrency)
    reasons = [*vetoes, *(r for j in judged for r in j.reasons), *_notes(judged, own_concurrency)]
    effects = {} if headline is None else headline.effects
    return Verdict(
        code=code,
        sentence=_sentence(code, comparison, judged, below, min_gain_percent),
        below_concurrency=below,
        headline_concurrency=None if headline is None else headline.concurrency,
        headline={
            metric: effects[metric]
            for metric in ("ttft_ms", "e2e_ms", "cost_usd_per_request")
            if metric in effects
        },
        gains=_gains(comparison, headline),
        reasons=reasons,
        would_settle=_would_settle(judged, min_gain_percent) if code == "not_proven" else None,
    )


def to_document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON."""
    return asdict(verdict)


def _judge(level: LevelComparison, wanted: float) -> _Judged:
    """One load: is a reduction of at least ``wanted`` percent shown, ruled out, or open?"""
    ratio = level.effects["e2e_ms"].ratio
    here = {"concurrency": level.concurrency}
    if ratio.estimate is None or ratio.low is None or ratio.high is None:
        return _Judged(level, "open", [reason("no_interval", **here)])
    limit = 1 - wanted / 100
    less = {"low": 100 * (1 - ratio.high), "high": 100 * (1 - ratio.low)}
    guards = list(_guards(level, limit, wanted))
    if ratio.low >= limit:
        return _Judged(
            level, "ruled_out", [reason("gain_ruled_out", **here, wanted=wanted, **less), *guards]
        )
    # "Better than 1" is asked for as well: with a smallest gain of 0 an equal arm is no gain.
    if ratio.high > limit or ratio.high >= 1:
        return _Judged(
            level, "open", [reason("gain_not_shown", **here, wanted=wanted, **less), *guards]
        )
    shown = reason("gain_shown", **here, percent=100 * (1 - ratio.estimate), **less)
    return _Judged(level, "open" if guards else "gain", [shown, *guards])


def _guards(level: LevelComparison, limit: float, wanted: float) -> Iterator[Reason]:
    """What takes a gain back: lengths, the first word, the promise, failures."""
    here = {"concurrency": level.concurrency}
    before, after = level.lengths.baseline_mean, level.lengths.candidate_mean
    if before is None or after is None or abs(after / before - 1) > EQUAL_LENGTHS:
        high = level.effects["tpot_ms"].ratio.high
        if high is None or high > limit:
            yield reason(
                "tpot_not_shown", **here, before=before or 0, after=after or 0, wanted=wanted
            )
    ttft = level.effects["ttft_ms"]
    first, later = ttft.baseline.estimate, ttft.candidate.estimate
    if (
        ttft.status == "worse"
        and first is not None
        and later is not None
        and (ttft.ratio.estimate or 0) > TTFT_WORSE_RATIO
        and later - first > TTFT_WORSE_MS
    ):
        yield reason("ttft_worse", **here, before=first, after=later)
    slo = level.slo
    if slo["candidate"].passes is False and slo["baseline"].passes is not False:
        yield reason("promise_broken", **here, clauses=", ".join(slo["candidate"].failing))
    failed = {side: sum(level.failures[side].values()) for side in ("baseline", "candidate")}
    ok = {side: level.sent[side] - failed[side] for side in failed}
    p = fisher_fewer(
        ok["candidate"], level.sent["candidate"], ok["baseline"], level.sent["baseline"]
    )
    if failed["candidate"] and p < 0.05:
        yield reason(
            "more_failures", **here, failed=failed["candidate"], sent=level.sent["candidate"],
            failed_before=failed["baseline"], sent_before=level.sent["baseline"],
        )  # fmt: skip


def _vetoes(comparison: Comparison) -> Iterator[Reason]:
    """What forbids a recommendation at any load."""
    for code in comparison.problems:
        yield reason(code)
    check = comparison.output_check
    matches = {"matched": check.candidate_match.matched, "total": check.candidate_match.total}
    if check.status == "changed":
        control = check.control_match
        yield reason(
            "output_changed", **matches, control_matched=control.matched,
            control_total=control.total,
        )  # fmt: skip
    elif check.status == "inconclusive":
        yield reason("output_inconclusive", **matches)


def _rule(judged: list[_Judged], vetoes: list[Reason], own: int | None) -> tuple[Code, int | None]:
    """The verdict's code and, for ``switch_on_below``, where the gain ends."""
    codes = {veto.code for veto in vetoes}
    if "output_changed" in codes:
        return "leave_off", None
    if codes or not judged:
        return "not_proven", None
    if all(j.finding == "ruled_out" for j in judged):
        return "leave_off", None
    asked = _up_to(judged, own)
    shown = _leading_gains(judged)
    if shown >= len(asked):
        if own is None or own <= judged[-1].level.concurrency:
            return "switch_on", None
        return "switch_on_below", None
    if shown:
        return "switch_on_below", judged[shown].level.concurrency
    if all(j.finding == "ruled_out" for j in asked):
        return "leave_off", None
    return "not_proven", None


def _up_to(judged: list[_Judged], own: int | None) -> list[_Judged]:
    """The loads that the question is about: up to the first one at or above the own load."""
    if own is None:
        return judged
    below = sum(j.level.concurrency < own for j in judged)
    return judged[: below + 1]


def _leading_gains(judged: list[_Judged]) -> int:
    """How many loads, from the lowest up without a gap, show the gain."""
    for index, one in enumerate(judged):
        if one.finding != "gain":
            return index
    return len(judged)


def _notes(judged: list[_Judged], own: int | None) -> Iterator[Reason]:
    if judged and own is not None and own > judged[-1].level.concurrency:
        yield reason("own_load_above", own=own, measured=judged[-1].level.concurrency)
    if any(j.level.acceptance.status == "inactive" for j in judged):
        yield reason("speculation_inactive")
    later = next((j for j in judged if j.finding == "gain"), None)
    if later is not None and judged[0].finding != "gain":
        yield reason("gain_only_at_higher_load", concurrency=later.level.concurrency)
    if len(judged) > 1:
        first, last = (j.level.effects["e2e_ms"].ratio for j in (judged[0], judged[-1]))
        if first.high is not None and last.low is not None and first.high < last.low:
            yield reason(
                "fades",
                first=100 * (1 - (first.estimate or 0)),
                last=100 * (1 - (last.estimate or 0)),
                first_concurrency=judged[0].level.concurrency,
                last_concurrency=judged[-1].level.concurrency,
            )
    for one in judged:
        for name, category in one.level.categories.items():
            effect = category.effects["e2e_ms"]
            if effect.status == "worse" and effect.ratio.estimate is not None:
                yield reason(
                    "category_loses", category=name, concurrency=one.level.concurrency,
                    percent=100 * (effect.ratio.estimate - 1),
                )  # fmt: skip


def _headline(levels: list[LevelComparison], own: int | None) -> LevelComparison | None:
    """The load whose numbers come first: the own one, or the nearest measured above it."""
    if not levels:
        return None
    if own is None:
        return levels[0]
    return next((level for level in levels if level.concurrency >= own), levels[-1])


def _gains(comparison: Comparison, headline: LevelComparison | None) -> dict[str, Gain]:
    """Three gains, never mixed: latency and money at the headline load, capacity at its best."""
    if headline is None:
        return {"latency": "unknown", "capacity": "unknown", "money": "unknown"}
    top = comparison.capacity["candidate"].concurrency
    at_top = next((one for one in comparison.levels if one.concurrency == top), None)
    capacity = None if at_top is None else at_top.effects["requests_per_s"]
    return {
        "latency": _gain(headline.effects["e2e_ms"]),
        "capacity": "unknown" if capacity is None else _gain(capacity),
        "money": _gain(headline.effects["cost_usd_per_request"]),
    }


def _gain(effect: Effect) -> Gain:
    words: dict[str, Gain] = {"better": "proven", "worse": "loss", "not_shown": "not_shown"}
    return words.get(effect.status, "unknown")


def _sentence(
    code: Code, comparison: Comparison, judged: list[_Judged], below: int | None, wanted: float
) -> str:
    arm = comparison.candidate
    loads = ", ".join(str(j.level.concurrency) for j in judged)
    if code == "switch_on":
        count = _leading_gains(judged)
        return f"Switch {arm} on: {_faster(judged[0])}, and the gain holds at " + (
            f"every load measured ({loads} in flight)."
            if count == len(judged)
            else f"your own load; the highest that shows it is "
            f"{judged[count - 1].level.concurrency} in flight."
        )
    if code == "switch_on_below":
        last = judged[_leading_gains(judged) - 1].level.concurrency
        end = (
            f"at {below} in flight no gain of {wanted:g} % is shown"
            if below is not None
            else "your own load is higher than any that was measured"
        )
        return f"Switch {arm} on up to {last} in flight: {_faster(judged[0])}, but {end}."
    if code == "leave_off":
        if comparison.output_check.status == "changed":
            return f"Leave {arm} off: it changes the answers."
        return (
            f"Leave {arm} off: a gain of {wanted:g} % is ruled out at the loads that matter "
            f"({loads} in flight measured)."
        )
    return f"Not proven: the measurements do not settle whether {arm} gains {wanted:g} % or more."


def _faster(one: _Judged) -> str:
    ratio = one.level.effects["e2e_ms"].ratio
    assert ratio.estimate is not None
    return (
        f"answers come {1 / ratio.estimate:.1f} times as fast at {one.level.concurrency} in flight"
    )


def _would_settle(judged: list[_Judged], wanted: float) -> str | None:
    """How much more measuring would settle the first open load, if it varies as it did."""
    open_level = next((j.level for j in judged if j.finding == "open"), None)
    if open_level is None:
        return None
    evidence = open_level.evidence.get("e2e_ms")
    if evidence is None or evidence.variance is None:
        return "Measure at least two server starts of each arm, with requests that complete."
    distance = abs(evidence.mean - math.log(1 - wanted / 100))
    more = needed(evidence, distance)
    if more is None:
        return (
            f"At {open_level.concurrency} in flight the effect lies so near to {wanted:g} % that "
            "no affordable number of measurements would settle it: treat it as no gain."
        )
    return (
        f"At {open_level.concurrency} in flight about {more.blocks} server starts of each arm "
        f"with {more.requests} requests would settle it, if they vary as these did "
        f"({evidence.blocks} starts, {evidence.requests} requests)."
    )
