"""The output check's rule: each outcome with what brings it about, and what does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calculator.answers import OutputRecord, from_document, to_document
from calculator.divergence import Parted, curve, log_rank
from calculator.outputs import OutputCheck, check_outputs
from calculator.statistics import holm
from calculator.traits import LengthSamples
from tests.calculator.greedy import record, same, scored
from tests.truth import outputs as truth

LEADS = [2.0] * 8


def check(
    baseline: OutputRecord, candidate: OutputRecord, again: OutputRecord | None = None, **more: Any
) -> OutputCheck:
    runs = {0: baseline, 1: candidate} | ({3: again} if again is not None else {})
    return check_outputs(runs, [0, 3], [1, 2], **more)


def outcome(found: OutputCheck) -> tuple[str, str | None]:
    return found.status, found.why


def test_equal_answers_are_unchanged_and_say_how_rare_a_change_would_have_been_found() -> None:
    found = check(same(12), same(12), same(12))
    assert outcome(found) == ("unchanged", None)
    assert (found.candidate_match.matched, found.control_match.matched) == (12, 12)
    assert found.tokens_checked == 96
    assert found.detectable_rate == pytest.approx(3 / 96, rel=0.02)
    assert found.examples == []


@pytest.mark.parametrize("runs", [{}, {0: same(3)}, {1: same(3)}, {0: record({}), 1: same(3)}])
def test_without_answers_of_both_arms_nothing_is_tested(runs: dict[int, OutputRecord]) -> None:
    found = check_outputs(runs, [0], [1])
    assert outcome(found) == ("not_tested", "no_answers")
    assert found.candidate_match.low is None


def test_one_token_that_the_baseline_would_not_write_is_a_change() -> None:
    own = scored(8, (1, 0.01), noise=0.02)
    base, again = same(12, leads=LEADS, forced=own), same(12, leads=LEADS, forced=own)
    answers = dict(same(12, forced=scored(8)).answers)
    answers["q7"] = replace(answers["q7"], forced=scored(8, (5, 0.3)))
    found = check(base, OutputRecord(answers, 12), again)
    assert outcome(found) == ("changed", "unlikely_tokens")
    assert found.tolerance_nats == pytest.approx(0.1)
    forced = found.forced["candidate"]
    assert forced is not None
    assert (forced.tokens, forced.chosen, forced.within, forced.beyond) == (96, 95, 0, 1)
    (example,) = found.examples
    assert (example.request_id, example.run, example.position) == ("q7", 1, 5)


def test_flips_of_near_ties_are_the_engines_own_noise_even_where_the_control_has_none() -> None:
    own = scored(8, noise=0.2)
    leads = [2.0, 2.0, 0.15, *[2.0] * 5]
    base, again = same(12, leads=leads, forced=own), same(12, leads=leads, forced=own)
    flipped = same(12, parts_at=2, forced=scored(8, (2, 0.1)))
    found = check(base, flipped, again)
    assert outcome(found) == ("unchanged", None)
    assert found.candidate_match.matched == 0
    assert found.match_p is not None
    assert found.match_p < 0.001
    assert found.margins == {"candidate": [0.15] * 12, "control": []}
    assert {one.kind for one in found.examples} == {"near_tie"}
    # The same flips where the baseline was sure are none.
    sure = check(replace_leads(base, LEADS), flipped, replace_leads(again, LEADS))
    assert outcome(sure) == ("changed", "wide_divergence")
    assert sure.wide == 12


def replace_leads(one: OutputRecord, leads: list[float]) -> OutputRecord:
    return OutputRecord({n: replace(a, leads=leads) for n, a in one.answers.items()}, one.asked)


def test_leads_alone_judge_where_answers_part() -> None:
    base, again = same(12, leads=LEADS), same(12, leads=LEADS)
    assert outcome(check(base, same(12, parts_at=3), again)) == ("changed", "wide_divergence")
    ties = replace_leads(base, [0.2] * 8)
    assert outcome(check(ties, same(12, parts_at=3), again)) == ("unchanged", None)


def test_a_request_that_something_else_shapes_is_not_judged_by_probabilities() -> None:
    shaped = scored(8, (0, 4.0), (1, 3.0))
    base = same(6, leads=[-1.0] * 8, forced=shaped)
    found = check(base, same(6, forced=shaped), base)
    assert outcome(found) == ("unchanged", None)
    assert found.forced["candidate"] is None


def test_rates_alone_need_a_clear_difference() -> None:
    changed = check(same(12), same(12, parts_at=2), same(12))
    assert outcome(changed) == ("changed", "less_alike")
    assert set(changed.first_divergence) == {2}
    chains = {name: answer.digests for name, answer in same(12).answers.items()}
    one_other = record({**chains, "q0": ["s0", "x"]})
    assert outcome(check(same(12), one_other, same(12))) == ("not_tested", "unexplained")
    assert outcome(check(same(12), one_other)) == ("not_tested", "unexplained")
    # A baseline that differs from itself as often has noise that explains it.
    again = record({**chains, "q1": ["s0", "y"]})
    assert outcome(check(same(12), one_other, again)) == ("unchanged", None)


@pytest.mark.parametrize(("requests", "noise"), [(6, 0.15), (24, 0.15), (60, 0.4), (200, 0.05)])
def test_an_engine_that_does_not_repeat_itself_is_seldom_called_changed(
    requests: int, noise: float
) -> None:
    """Every run's answers leave the usual ones by chance; the candidate's no more often."""
    rng = np.random.default_rng(2)
    changed = 0
    for _ in range(300):
        runs = {
            run: record({
                f"q{i}": ["1", str(rng.integers(10**9)) if rng.random() < noise else "2"]
                for i in range(requests)
            })
            for run in range(6)
        }  # fmt: skip
        changed += check_outputs(runs, [0, 3, 4], [1, 2, 5]).status == "changed"
    assert changed / 300 <= 0.08  # nominal 0.05; 300 draws know it to about 2.5 points


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("json_valid", {"json_valid": True}, {"json_valid": False}),
        ("tool_calls_valid", {"tool_calls_valid": True}, {"tool_calls_valid": False}),
        ("stopped_by_itself", {"stop_reason": "stop"}, {"stop_reason": "length"}),
        ("repeated_share", {"repeated_share": 0.1}, {"repeated_share": 0.5}),
    ],
)
def test_a_trait_that_gets_worse_is_a_change(
    name: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    found = check(same(12, **before), same(12, **after), same(12, **before))
    assert outcome(found) == ("changed", "trait_changed")
    trait = next(one for one in found.traits if one.name == name)
    assert (trait.pairs, trait.worse, trait.better) == (12, 12, 0)
    assert trait.control == trait.baseline
    assert outcome(check(same(12, **before), same(12, **before))) == ("unchanged", None)
    few = check(same(3, **before), same(3, **after), same(3, **before))
    assert few.status == "unchanged", "three pairs can't tell"


def test_answers_that_never_came_are_not_equal_ones() -> None:
    found = check(same(12), same(1), same(12))
    assert found.candidate_match.matched == 1
    assert found.status == "changed"
    assert found.traits[0].name == "answered"
    assert found.traits[0].worse == 11


def test_lengths_of_sampled_traffic_have_their_control() -> None:
    rng = np.random.default_rng(3)
    usual, again = rng.poisson(80, 120).tolist(), rng.poisson(80, 120).tolist()
    kept = check(same(6), same(6), same(6), sampled=LengthSamples(usual, again, again))
    assert outcome(kept) == ("unchanged", None)
    shorter = [length // 2 for length in usual]
    found = check(same(6), same(6), same(6), sampled=LengthSamples(usual, shorter, again))
    assert outcome(found) == ("changed", "lengths_changed")
    assert found.lengths is not None
    assert found.lengths.distance > 0.9
    assert found.lengths.control_p is not None
    assert found.lengths.control_p > 0.05


def test_the_curve_is_kaplan_and_meiers() -> None:
    """E. L. Kaplan and P. Meier's estimate by hand: 4 answers, two part, two end equal."""
    parts = [Parted(1, True), Parted(2, False), Parted(3, True), Parted(5, False)]
    points = curve(parts, [Parted(5, False)])
    assert [(one.tokens, one.candidate) for one in points] == [
        (0, 1.0), (2, 0.75), (4, 0.375), (5, 0.375),
    ]  # fmt: skip
    assert points[-1].control == 1.0
    assert curve([Parted(5, False)], []) == []


def test_log_rank_tells_earlier_from_as_early() -> None:
    late = [Parted(n, True) for n in range(20, 40)]
    assert log_rank([Parted(n, True) for n in range(20)], late) < 0.001
    assert log_rank(late, late) == pytest.approx(0.5)
    assert log_rank([Parted(8, False)] * 5, [Parted(8, False)] * 5) == 1.0


def test_holm_is_holms() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_a_record_is_the_same_after_json() -> None:
    one = same(3, leads=(1.5, None), stop_reason="stop", forced=scored(8, (2, 0.25), noise=0.1))
    assert from_document(json.loads(json.dumps(to_document(one)))) == one
    for broken in ({}, {"answers": {"a": {"digests": 5}}, "asked": 1}):
        with pytest.raises((KeyError, TypeError)):
            from_document(broken)


@pytest.mark.parametrize(
    "family", truth.FAMILIES, ids=lambda one: f"{one.name}, {one.corruption:g} corrupted"
)
def test_the_bar_in_few_draws(family: truth.Family) -> None:
    """``make truth`` has 2,000 draws; 60 find a rule that is grossly wrong."""
    rng = np.random.default_rng(4)
    changed = sum(truth.draw(family, rng)[0].status == "changed" for _ in range(60)) / 60
    if not family.corruption:
        assert changed <= 0.10
    elif family.scores and not family.to_runner_up:
        assert changed >= 0.90
