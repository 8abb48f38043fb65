"""The rules that turn a Comparison into a Verdict.

Loads are tested in a fixed order, from the lowest up, each at 5 %, and the first one that shows no
gain ends the sequence. That keeps the chance of any false claim at 5 % without a correction for
the number of loads: P. H. Westfall, A. Krishen, "Optimally weighted, fixed sequence and gatekeeper
multiple testing procedures", J. Statistical Planning and Inference 99 (2001) 25-40. A claim about
*all* loads needs none either: R. L. Berger, "Multiparameter hypothesis testing and acceptance
sampling", Technometrics 24 (1982) 295-300 (intersection-union). That a kind of request loses is
looked for in many places at once, so its intervals are widened (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Literal

from calculator.comparison import Comparison, LevelComparison
from calculator.comparison import to_document as comparison_document
from calculator.effects import Effect, Status
from calculator.fleets import Gain, Inputs, money_gain
from calculator.outputs import WHY
from calculator.reasons import Reason, reason
from calculator.statistics import fisher_fewer, needed

Code = Literal["switch_on", "switch_on_below", "leave_off", "not_proven"]
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
    guards: frozenset[str] = frozenset()
    """Codes of what took a shown gain back."""


def decide(
    comparison: Comparison,
    *,
    min_gain_percent: float,
    own_concurrency: int | None,
    usd_per_hour: Decimal = Decimal(0),
    requests_per_month: float | None = None,
    peak_to_mean: float = 1.0,
) -> Verdict:
    """The verdict on one candidate.

    ``min_gain_percent``: the smallest reduction of E2E latency that matters. ``own_concurrency``:
    requests in flight at the reader's own busy hour; None when unknown, then every measured load
    counts. Without a volume and a price there is no answer about money.
    """
    judged = [_judge(level, min_gain_percent) for level in comparison.levels]
    vetoes = list(_vetoes(comparison))
    code, below = _rule(judged, vetoes, own_concurrency)
    headline = _headline(judged, own_concurrency)
    inputs = Inputs(requests_per_month, peak_to_mean, own_concurrency)
    reasons = [
        *vetoes,
        *(r for j in judged for r in j.reasons),
        *_notes(comparison, judged, own_concurrency),
    ]
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
        gains={
            "latency": "unknown" if headline is None else _gain(headline.effects["e2e_ms"].status),
            "capacity": _gain(comparison.capacity_change),
            "money": money_gain(comparison_document(comparison), inputs, usd_per_hour),
        },
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
    found: Finding = "open" if guards else "gain"
    return _Judged(level, found, [shown, *guards], frozenset(guard.code for guard in guards))


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
            "output_changed", **matches, why=WHY[check.why] if check.why else "",
            control_matched=control.matched, control_total=control.total,
        )  # fmt: skip
    elif check.why == "unexplained":
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


def _notes(comparison: Comparison, judged: list[_Judged], own: int | None) -> Iterator[Reason]:
    if judged and comparison.output_check.why == "no_answers":
        yield reason("output_not_tested")
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
    yield from _losing_categories(judged)


def _losing_categories(judged: list[_Judged]) -> Iterator[Reason]:
    places = sum(len(one.level.categories) for one in judged)
    for one in judged:
        for name, category in one.level.categories.items():
            if category.e2e_evidence is None:
                continue
            ratio = category.e2e_evidence.ratio(1 - 0.05 / places)
            if ratio.low is not None and ratio.low > 1 and ratio.estimate is not None:
                yield reason(
                    "category_loses", category=name, concurrency=one.level.concurrency,
                    percent=100 * (ratio.estimate - 1),
                )  # fmt: skip


def _headline(judged: list[_Judged], own: int | None) -> LevelComparison | None:
    """The load whose numbers come first: the own one, or the nearest measured above it.

    Where the own load is unknown, the highest that shows the gain, which flatters least.
    """
    if not judged:
        return None
    if own is None:
        return judged[max(0, _leading_gains(judged) - 1)].level
    at_or_above = (one.level for one in judged if one.level.concurrency >= own)
    return next(at_or_above, judged[-1].level)


def _gain(status: Status) -> Gain:
    words: dict[Status, Gain] = {"better": "proven", "worse": "loss", "not_shown": "not_shown"}
    return words.get(status, "unknown")


def _sentence(
    code: Code, comparison: Comparison, judged: list[_Judged], below: int | None, wanted: float
) -> str:
    arm = comparison.candidate
    loads = ", ".join(str(j.level.concurrency) for j in judged)
    if code == "switch_on":
        count = _leading_gains(judged)
        return f"Switch {arm} on: {_faster(judged[:count])}, and the gain holds at " + (
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
        shown = _faster(judged[: _leading_gains(judged)])
        return f"Switch {arm} on up to {last} in flight: {shown}, but {end}."
    if code == "leave_off":
        if comparison.output_check.status == "changed":
            return f"Leave {arm} off: it changes the answers."
        return (
            f"Leave {arm} off: a gain of {wanted:g} % is ruled out at the loads that matter "
            f"({loads} in flight measured)."
        )
    return f"Not proven: the measurements do not settle whether {arm} gains {wanted:g} % or more."


def _faster(gaining: list[_Judged]) -> str:
    """The gain at the lowest and at the highest load that show it."""
    ends = gaining[:1] + gaining[1:][-1:]
    ratios = [(one.level.effects["e2e_ms"].ratio.estimate, one.level.concurrency) for one in ends]
    shown = [
        f"{1 / ratio:.1f} times as fast at {concurrency} in flight"
        for ratio, concurrency in ratios
        if ratio
    ]
    return f"answers come {' and '.join(shown)}"


def _would_settle(judged: list[_Judged], wanted: float) -> str | None:
    """How much more measuring would settle the first open load, if it varies as it did."""
    still_open = next((one for one in judged if one.finding == "open"), None)
    if still_open is None:
        return None
    level = still_open.level
    if still_open.guards - {"tpot_not_shown"}:
        return (
            f"At {level.concurrency} in flight the gain is shown; what takes it back stands in the "
            "reasons, and more of the same measurements would not change it."
        )
    evidence = level.evidence.get("tpot_ms" if still_open.guards else "e2e_ms")
    if evidence is None or evidence.variance is None:
        return "Measure at least two server starts of each arm, with requests that complete."
    distance = abs(evidence.mean - math.log(1 - wanted / 100))
    more = needed(evidence, distance)
    if more is None or (more.blocks, more.requests) == (evidence.blocks, evidence.requests):
        return (
            f"At {level.concurrency} in flight the effect lies so near to {wanted:g} % that "
            "no affordable number of measurements would settle it: treat it as no gain."
        )
    return (
        f"At {level.concurrency} in flight about {more.blocks} server starts of each arm "
        f"with {more.requests} requests would settle it, if they vary as these did "
        f"({evidence.blocks} starts, {evidence.requests} requests)."
    )
