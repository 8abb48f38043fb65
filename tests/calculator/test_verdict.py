"""The rules: from comparisons with a known truth to a verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from calculator.comparison import compare
from calculator.measurement import Outcome, TrialRecord
from calculator.reasons import REASONS
from calculator.verdict import Verdict, decide, to_document
from tests.calculator.greedy import record
from tests.calculator.trials import change, pair_of_arms, without_gaps

PRICE = Decimal("0.1")


def _decide(
    speeds: dict[int, float],
    *,
    own: int | None = None,
    runs: int = 3,
    digests: dict[int, dict[str, list[str]]] | None = None,
    trials: list[TrialRecord] | None = None,
    requests: int = 16,
    min_gain: float = 5.0,
    per_month: float | None = None,
) -> Verdict:
    measured = trials or [
        one
        for concurrency, speed in speeds.items()
        for one in pair_of_arms(speed, concurrency=concurrency, runs=runs, requests=requests)
    ]
    found = compare(
        measured, baseline="baseline", candidate="ngram", usd_per_hour=PRICE,
        outputs={run: record(chains) for run, chains in (digests or {}).items()},
    )  # fmt: skip
    return decide(
        found, min_gain_percent=min_gain, own_concurrency=own, usd_per_hour=PRICE,
        requests_per_month=per_month,
    )  # fmt: skip


def _codes(verdict: Verdict) -> list[str]:
    return [one.code for one in verdict.reasons]


def test_a_gain_at_every_load_switches_on() -> None:
    verdict = _decide({1: 2.0, 4: 1.6})
    assert verdict.code == "switch_on"
    assert "times as fast at 1 in flight" in verdict.sentence
    assert verdict.gains["latency"] == "proven"
    assert set(verdict.headline) == {"ttft_ms", "e2e_ms", "cost_usd_per_request"}
    assert "fades" in _codes(verdict)


def test_a_gain_that_ends_switches_on_below() -> None:
    verdict = _decide({1: 2.0, 4: 1.6, 8: 1.0})
    assert (verdict.code, verdict.below_concurrency) == ("switch_on_below", 8)
    assert "up to 4 in flight" in verdict.sentence
    # The lowest load flatters most: the numbers that come first are those of the highest.
    assert verdict.headline_concurrency == 4
    assert "1.9 times as fast at 1 in flight and 1.6 times as fast at 4" in verdict.sentence


def test_equal_and_slower_arms_are_left_off() -> None:
    assert _decide({1: 1.0}, requests=40).code == "leave_off"
    slower = _decide({1: 0.7, 4: 0.6})
    assert slower.code == "leave_off"
    assert slower.gains["latency"] == "loss"


def test_a_gain_near_the_smallest_that_matters_is_not_proven() -> None:
    verdict = _decide({1: 1.055}, runs=2, requests=6)
    assert verdict.code == "not_proven"
    assert verdict.would_settle is not None


def test_one_start_proves_nothing() -> None:
    verdict = _decide({1: 3.0}, runs=1)
    assert verdict.code == "not_proven"
    assert "no_interval" in _codes(verdict)
    assert "two server starts" in (verdict.would_settle or "")


@pytest.mark.parametrize(
    ("own", "code", "below"),
    [(1, "switch_on", None), (4, "switch_on", None), (8, "switch_on_below", 8)],
)
def test_the_own_load_decides_which_loads_count(own: int, code: str, below: int | None) -> None:
    verdict = _decide({1: 2.0, 4: 1.6, 8: 1.0}, own=own)
    assert (verdict.code, verdict.below_concurrency) == (code, below)
    assert verdict.headline_concurrency == own


def test_nothing_is_claimed_beyond_the_last_load() -> None:
    verdict = _decide({1: 2.0, 4: 1.6}, own=64)
    assert (verdict.code, verdict.below_concurrency) == ("switch_on_below", None)
    assert "own_load_above" in _codes(verdict)


def test_changed_answers_are_left_off_however_fast() -> None:
    many = {f"q{i}": ["1", "2"] for i in range(12)}
    other = {name: ["1", "9"] for name in many}
    # A B B A A B
    digests = {0: many, 1: other, 2: other, 3: many, 4: many, 5: other}
    verdict = _decide({1: 2.0}, digests=digests)
    assert verdict.code == "leave_off"
    assert "changes the answers" in verdict.sentence


def _with_candidate(trials: list[TrialRecord], **values: object) -> list[TrialRecord]:
    changed = []
    for one in trials:
        if one.arm == "ngram":
            for index in range(len(one.measurements)):
                one = change(one, index, **values)
        changed.append(one)
    return changed


def test_stopping_earlier_is_not_faster() -> None:
    trials = []
    for one in pair_of_arms(1.0, runs=3, requests=16):
        if one.arm == "ngram":
            for index, m in enumerate(one.measurements):
                assert m.first_token_ns is not None
                assert m.last_token_ns is not None
                half = m.first_token_ns + (m.last_token_ns - m.first_token_ns) // 2
                one = change(one, index, output_tokens=30, last_token_ns=half, done_ns=half)
        trials.append(without_gaps(one))
    verdict = _decide({}, trials=trials)
    assert verdict.code == "not_proven"
    assert "tpot_not_shown" in _codes(verdict)


def test_more_failures_take_the_gain_back() -> None:
    trials = []
    for one in pair_of_arms(2.0, runs=3, requests=40):
        if one.arm == "ngram":
            for index in range(4):
                one = change(one, index * 3, outcome=Outcome.ERROR)
        trials.append(one)
    verdict = _decide({}, trials=trials)
    assert verdict.code == "not_proven"
    assert "more_failures" in _codes(verdict)


def test_a_start_that_fails_is_counted_though_its_times_are_not_believed() -> None:
    trials = pair_of_arms(2.0, runs=3, requests=16)
    for index in range(8):
        trials[1] = change(trials[1], index, outcome=Outcome.ERROR)
    verdict = _decide({}, trials=trials)
    assert verdict.code == "not_proven"
    assert "more_failures" in _codes(verdict)
    assert verdict.would_settle is not None
    assert "more of the same measurements would not change it" in verdict.would_settle


def test_a_load_that_one_arm_did_not_measure_is_not_passed_over() -> None:
    trials = [
        one
        for concurrency in (1, 8)
        for one in pair_of_arms(2.0, concurrency=concurrency, runs=3, requests=24)
        if (concurrency, one.arm) != (8, "ngram")
    ]
    verdict = _decide({}, trials=trials)
    assert (verdict.code, verdict.below_concurrency) == ("switch_on_below", 8)
    assert "no_interval" in _codes(verdict)


def test_money_is_saved_when_fewer_engines_do() -> None:
    # One engine completes about 0.17 requests a second without and 0.33 with speculation.
    assert _decide({1: 2.0}).gains["money"] == "unknown"
    assert _decide({1: 2.0}, per_month=10_000).gains["money"] == "not_shown"
    assert _decide({1: 2.0}, per_month=10_000_000).gains["money"] == "proven"
    assert _decide({1: 0.5}, per_month=10_000_000).gains["money"] == "loss"


def test_capacity_is_compared_where_each_arm_has_its_own() -> None:
    trials = [
        one
        for concurrency, speed in ((1, 1.6), (4, 1.3))
        for one in pair_of_arms(speed, concurrency=concurrency, runs=3, requests=24)
    ]
    # With speculation the first word takes too long at the higher load.
    late = []
    for one in trials:
        if one.arm == "ngram" and one.concurrency == 4:
            for index, m in enumerate(one.measurements):
                assert m.first_token_ns is not None
                one = change(one, index, first_token_ns=m.first_token_ns + 3_000_000_000)
        late.append(one)
    found = compare(
        late, baseline="baseline", candidate="ngram", usd_per_hour=PRICE, slo_ttft_p95_ms=500.0
    )
    assert found.capacity["baseline"].concurrency == 4
    assert found.capacity["candidate"].concurrency == 1
    verdict = decide(found, min_gain_percent=5, own_concurrency=None)
    assert verdict.gains["capacity"] == "loss"


def test_answers_that_nobody_compared_are_mentioned() -> None:
    assert "output_not_tested" in _codes(_decide({1: 2.0}))
    same = {f"q{i}": ["1", "2"] for i in range(6)}
    assert "output_not_tested" not in _codes(
        _decide({1: 2.0}, digests=dict.fromkeys(range(6), same))
    )


def test_changed_answers_forbid_and_unexplained_ones_hold_back() -> None:
    same = {f"q{i}": ["1", "2"] for i in range(12)}
    other = {name: ["1", "3"] for name in same}
    changed = _decide({1: 2.0}, digests={0: same, 1: other, 2: other, 3: same})
    assert changed.code == "leave_off"
    assert "output_changed" in _codes(changed)
    one = same | {"q0": ["1", "3"]}
    unclear = _decide({1: 2.0}, digests={0: same, 1: one, 2: one, 3: same})
    assert unclear.code == "not_proven"
    assert "output_inconclusive" in _codes(unclear)


def test_different_prompts_settle_nothing() -> None:
    trials = _with_candidate(pair_of_arms(2.0, runs=3), prompt_tokens=31)
    verdict = _decide({}, trials=trials)
    assert verdict.code == "not_proven"
    assert "prompt_tokens_differ" in _codes(verdict)


def test_a_later_first_word_takes_the_gain_back() -> None:
    trials = []
    for one in pair_of_arms(2.0, runs=3, requests=16):
        if one.arm == "ngram":
            for index, m in enumerate(one.measurements):
                assert m.first_token_ns is not None
                one = change(one, index, first_token_ns=m.first_token_ns + 80_000_000)
        trials.append(one)
    assert "ttft_worse" in _codes(_decide({}, trials=trials))


def test_a_kind_that_loses_is_named() -> None:
    fast = pair_of_arms(2.0, runs=3, requests=16)
    slow = pair_of_arms(0.5, runs=3, requests=16)
    mixed = [
        without_gaps(
            replace(
                one,
                measurements=tuple(
                    m if m.category == "even" else s
                    for m, s in zip(one.measurements, other.measurements, strict=True)
                ),
            )
        )
        for one, other in zip(fast, slow, strict=True)
    ]
    verdict = _decide({}, trials=mixed)
    assert any(r.code == "category_loses" and "odd" in r.text for r in verdict.reasons)


def test_nothing_measured_is_not_proven() -> None:
    found = compare([], baseline="baseline", candidate="ngram", usd_per_hour=Decimal(1))
    verdict = decide(found, min_gain_percent=5, own_concurrency=None)
    assert verdict.code == "not_proven"
    assert verdict.headline == {}


def test_document_is_json_and_every_reason_has_help() -> None:
    document = json.loads(json.dumps(to_document(_decide({1: 2.0})), allow_nan=False))
    assert document["reasons"][0]["figures"]["concurrency"] == 1
    for kind in REASONS.values():
        assert kind.sentence.endswith((".", "{clauses}.", ")."))
        assert kind.help
