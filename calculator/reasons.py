"""Every reason a verdict can give: a code, a sentence with figures, and a paragraph of help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of one verdict, as it is shown. ``figures`` are what the sentence was made of."""

    code: str
    text: str
    figures: Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class ReasonKind:
    sentence: str
    """A format string over the figures."""
    help: str


REASONS: dict[str, ReasonKind] = {
    "gain_shown": ReasonKind(
        "At {concurrency} in flight an answer takes {percent:.0f} % less time "
        "(95 % interval {low:.0f} to {high:.0f} %).",
        "The worse end of the interval still is the smallest gain that matters, or more.",
    ),
    "gain_not_shown": ReasonKind(
        "At {concurrency} in flight a gain of {wanted:g} % is neither shown nor ruled out: "
        "the interval goes from {low:.0f} % to {high:.0f} % less time.",
        "The interval holds values on both sides of the smallest gain that matters.",
    ),
    "gain_ruled_out": ReasonKind(
        "At {concurrency} in flight the gain is smaller than {wanted:g} %: at best an answer "
        "takes {high:.0f} % less time.",
        "The better end of the interval is below the smallest gain that matters. A negative "
        "number means that answers take longer.",
    ),
    "no_interval": ReasonKind(
        "At {concurrency} in flight there are too few believable measurements for an interval.",
        "An interval needs two server starts of each arm and two requests that both arms "
        "completed; a load that one arm did not measure has neither.",
    ),
    "tpot_not_shown": ReasonKind(
        "At {concurrency} in flight answers have different lengths ({before:.0f} and {after:.0f} "
        "tokens), and the time per token shows no gain of {wanted:g} %.",
        "Stopping earlier is not faster: where lengths differ, the gain has to show per token.",
    ),
    "ttft_worse": ReasonKind(
        "At {concurrency} in flight the first word comes later: {before:.0f} ms became "
        "{after:.0f} ms.",
        "A guard rail: time to first token got worse by more than a tenth and more than 20 ms, "
        "and the interval excludes chance.",
    ),
    "promise_broken": ReasonKind(
        "At {concurrency} in flight the candidate breaks a promise that the baseline keeps: "
        "{clauses}.",
        "The percentile of a clause of the SLO is above its limit with speculation only.",
    ),
    "more_failures": ReasonKind(
        "At {concurrency} in flight {failed} of {sent} requests failed with speculation, and "
        "{failed_before} of {sent_before} without.",
        "Failed requests have no latency, so an arm that fails more looks faster than it is.",
    ),
    "output_changed": ReasonKind(
        "The answers changed. {why} {matched} of {total} greedy answers equal the baseline's; "
        "{control_matched} of {control_total} do when the baseline is run twice.",
        "Speculation promises the same text. An engine that breaks this has a fault, or a mode "
        "that trades quality for speed.",
    ),
    "output_inconclusive": ReasonKind(
        "Some answers differ ({matched} of {total} equal), which the engine's own noise may "
        "explain; check more answers.",
        "The candidate's answers are less alike than the baseline's to itself, but the "
        "difference could be chance.",
    ),
    "output_not_tested": ReasonKind(
        "Nobody looked whether the answers change.",
        "Speculation promises the same text; set requests for the output check to see that it "
        "holds here.",
    ),
    "prompt_tokens_differ": ReasonKind(
        "The same request had different numbers of prompt tokens in the two arms.",
        "Another chat template or a doubled start token: the arms were asked different things.",
    ),
    "no_pairs": ReasonKind(
        "No request was completed in both arms, so there is nothing to compare.",
        "Look at the failures and at the trials that were left out.",
    ),
    "speculation_inactive": ReasonKind(
        "The engine drafted nothing, so the arms did the same work.",
        "The drafts' counter did not move: the method found nothing to draft, or was off.",
    ),
    "fades": ReasonKind(
        "The gain shrinks as the machine fills: {first:.0f} % less time at {first_concurrency} in "
        "flight, {last:.0f} % at {last_concurrency}.",
        "Verifying drafts uses room that a busy machine needs for other requests.",
    ),
    "own_load_above": ReasonKind(
        "Your own load of {own} in flight is above the highest load measured ({measured}).",
        "A gain is never extrapolated past the last measured load: measure at your own.",
    ),
    "gain_only_at_higher_load": ReasonKind(
        "A gain shows at {concurrency} in flight, but not below it.",
        "Unusual: look at the lower loads' validity before you rely on it.",
    ),
    "category_loses": ReasonKind(
        "Requests of the kind “{category}” take longer at {concurrency} in flight "
        "({percent:.0f} % more time).",
        "A mean over kinds can hide one that loses; the kinds are compared one by one as well.",
    ),
}


def reason(code: str, **figures: float | int | str | None) -> Reason:
    """The reason ``code`` with its sentence filled in."""
    return Reason(code, REASONS[code].sentence.format(**figures), figures)
