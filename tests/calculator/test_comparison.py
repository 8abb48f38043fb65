"""Comparisons of arms whose truth is known."""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calculator.comparison import Comparison, compare, to_document
from calculator.measurement import Outcome, SpeculationCounters, TrialRecord
from tests.calculator.trials import change, pair_of_arms, trial

PRICE = Decimal("0.36")


def _compare(trials: Iterable[TrialRecord], **more: Any) -> Comparison:
    return compare(trials, baseline="baseline", candidate="ngram", usd_per_hour=PRICE, **more)


def test_a_candidate_twice_as_fast() -> None:
    found = _compare(pair_of_arms(2.0))
    level = found.levels[0]
    e2e = level.effects["e2e_ms"]
    assert e2e.status == "better"
    assert e2e.ratio.low is not None
    assert e2e.ratio.high is not None
    assert e2e.ratio.low < 0.5 * 1.01 + 0.01
    assert e2e.ratio.high < 0.6
    assert level.effects["tpot_ms"].status == "better"
    assert level.effects["ttft_ms"].status == "not_shown"
    assert level.effects["output_tokens_per_s"].ratio.estimate == pytest.approx(2, rel=0.1)
    assert (level.pairs, level.blocks) == (8, 2)


def test_cost_is_the_price_over_the_rate() -> None:
    effects = _compare(pair_of_arms(2.0)).levels[0].effects
    rate, cost = effects["requests_per_s"], effects["cost_usd_per_request"]
    assert rate.candidate.estimate is not None
    assert cost.candidate.estimate == pytest.approx(0.36 / 3600 / rate.candidate.estimate)
    assert cost.status == "better"
    assert cost.ratio.estimate == pytest.approx(1 / (rate.ratio.estimate or 0))


def test_the_baseline_against_itself_seldom_gains() -> None:
    statuses = [
        _compare(pair_of_arms(1.0, seed=seed, runs=3)).levels[0].effects["e2e_ms"].status
        for seed in range(200)
    ]
    assert statuses.count("better") <= 10
    assert statuses.count("worse") <= 10


def test_acceptance_comes_from_the_counters() -> None:
    acceptance = _compare(pair_of_arms(2.0)).levels[0].acceptance
    assert acceptance.status == "measured"
    assert acceptance.acceptance_rate.estimate == pytest.approx(0.75)
    assert acceptance.mean_acceptance_length.estimate == pytest.approx(4.0)
    assert acceptance.per_position == pytest.approx([0.9, 0.8, 0.7, 0.6])


@pytest.mark.parametrize(
    ("counters", "status"),
    [
        (None, "not_measured"),
        (SpeculationCounters(generation_tokens=480), "not_measured"),
        (SpeculationCounters(drafts=0, draft_tokens=0, accepted_tokens=0), "inactive"),
    ],
)
def test_no_acceptance_is_not_zero_acceptance(
    counters: SpeculationCounters | None, status: str
) -> None:
    trials = [
        replace(one, counters=counters) if one.arm == "ngram" else one for one in pair_of_arms(1.0)
    ]
    acceptance = _compare(trials).levels[0].acceptance
    assert acceptance.status == status
    assert acceptance.acceptance_rate.estimate is None


def test_a_failure_drops_its_partner_and_is_counted() -> None:
    trials = pair_of_arms(2.0, requests=20)
    trials[1] = change(trials[1], 3, outcome=Outcome.CUT)
    level = _compare(trials).levels[0]
    assert level.failures == {"baseline": {}, "candidate": {"cut": 1}}
    assert level.pairs == 20
    trials[2] = change(trials[2], 3, outcome=Outcome.CUT)
    assert _compare(trials).levels[0].pairs == 19


def test_a_trial_that_may_not_be_believed_is_left_out_and_listed() -> None:
    trials = pair_of_arms(2.0, runs=3)
    assert trials[0].client is not None
    trials[0] = replace(trials[0], client=replace(trials[0].client, overhead_share=0.5))
    level = _compare(trials).levels[0]
    assert level.blocks == 2
    assert [(e.arm, e.run, e.reasons) for e in level.excluded] == [
        ("baseline", 0, ["client_saturated"])
    ]


def test_different_prompt_tokens_are_a_problem() -> None:
    trials = pair_of_arms(2.0)
    trials[1] = change(trials[1], 0, prompt_tokens=31)
    assert _compare(trials).problems == ["prompt_tokens_differ"]


def test_one_run_an_arm_has_no_interval() -> None:
    ratio = _compare(pair_of_arms(2.0, runs=1)).levels[0].effects["e2e_ms"].ratio
    assert ratio.estimate is not None
    assert ratio.low is None


def test_categories_are_compared_apart() -> None:
    categories = _compare(pair_of_arms(2.0)).levels[0].categories
    assert {name: part.pairs for name, part in categories.items()} == {"even": 4, "odd": 4}


def test_promise_and_capacity() -> None:
    trials = pair_of_arms(2.0, requests=24)
    kept = _compare(trials, slo_tpot_p95_ms=120.0)
    assert kept.levels[0].slo["candidate"].passes is True
    assert kept.levels[0].slo["baseline"].failing == ["tpot_p95_ms"]
    assert kept.capacity["baseline"].requests_per_s is None
    assert kept.capacity["candidate"].concurrency == 1
    few = _compare(pair_of_arms(2.0, requests=4), slo_tpot_p95_ms=120.0)
    assert few.levels[0].slo["candidate"].passes is None


def test_one_trial_that_its_measurer_did_not_believe_is_left_out() -> None:
    trials = pair_of_arms(2.0, runs=3)
    trials[0] = replace(trials[0], invalid_reasons=("counters_reset",))
    level = _compare(trials).levels[0]
    assert [(e.run, e.reasons) for e in level.excluded] == [(0, ["counters_reset"])]


def test_a_load_that_was_not_reached_is_no_such_load() -> None:
    trials = pair_of_arms(2.0, runs=3, concurrency=8, requests=24)
    trials[0] = replace(trials[0], duration_s=2 * trials[0].duration_s)
    level = _compare(trials).levels[0]
    assert [e.reasons for e in level.excluded] == [["load_not_reached"]]
    assert level.in_flight["candidate"] == pytest.approx(8, rel=0.01)


def test_a_free_engine_has_no_gain_in_cost() -> None:
    found = compare(
        pair_of_arms(2.0), baseline="baseline", candidate="ngram", usd_per_hour=Decimal(0)
    )
    cost = found.levels[0].effects["cost_usd_per_request"]
    assert (cost.status, cost.candidate.estimate) == ("unknown", 0)


def test_documents_are_json_and_keep_unknown_as_null() -> None:
    document = to_document(_compare(pair_of_arms(2.0, runs=1)))
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again["levels"][0]["effects"]["e2e_ms"]["ratio"]["low"] is None
    assert "evidence" not in again["levels"][0]


def test_order_of_requests_and_trials_does_not_matter() -> None:
    trials = pair_of_arms(1.5)
    shuffled = [
        replace(one, measurements=tuple(reversed(one.measurements))) for one in reversed(trials)
    ]
    one, other = _compare(trials), _compare(shuffled)
    for metric, effect in one.levels[0].effects.items():
        ratio = other.levels[0].effects[metric].ratio
        assert ratio.estimate == pytest.approx(effect.ratio.estimate)
        assert ratio.high == pytest.approx(effect.ratio.high)


class _Watched(TrialRecord):
    """A record that a weak reference can point at."""


def test_trials_may_come_one_by_one_and_are_not_kept() -> None:
    trials = [*pair_of_arms(1.5, requests=20), *pair_of_arms(1.3, requests=20, concurrency=4)]
    trials[2] = change(trials[2], 3, outcome=Outcome.TIMEOUT, output_tokens=None)
    given: list[weakref.ref[TrialRecord]] = []
    kept: list[int] = []

    def one_by_one() -> Iterator[TrialRecord]:
        for one in trials:
            record = _Watched(*(getattr(one, field.name) for field in fields(one)))
            given.append(weakref.ref(record))
            kept.append(sum(ref() is not None for ref in given))
            yield record

    assert to_document(_compare(one_by_one())) == to_document(_compare(trials))
    assert max(kept) <= 2  # the one that is made, and the one before it


def test_swapped_arms_invert_the_ratio() -> None:
    trials = pair_of_arms(1.5)
    forward = _compare(trials).levels[0].effects["e2e_ms"].ratio
    backward = (
        compare(trials, baseline="ngram", candidate="baseline", usd_per_hour=PRICE)
        .levels[0]
        .effects["e2e_ms"]
        .ratio
    )
    assert forward.low is not None
    assert backward.high == pytest.approx(1 / forward.low)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Outcome)),
            st.one_of(st.none(), st.integers(0, 3)),
            st.booleans(),
        ),
        max_size=6,
    ),
    st.integers(0, 2),
    st.integers(0, 1000),
)
def test_never_raises_on_failures_and_unknowns(
    rows: list[tuple[Outcome, int | None, bool]], runs: int, seed: int
) -> None:
    rng = random.Random(seed)
    trials: list[TrialRecord] = []
    for block in range(runs):
        for arm in ("baseline", "ngram"):
            one = trial(arm, len(trials), block, requests=len(rows), concurrency=2)
            for index, (outcome, tokens, timed) in enumerate(rows):
                first = one.measurements[index].first_token_ns if timed else None
                one = change(
                    one, index, outcome=outcome, output_tokens=tokens, first_token_ns=first,
                    last_token_ns=first,
                )  # fmt: skip
            trials.append(replace(one, duration_s=rng.choice([0.0, 1.0, 1e9])))
    document = to_document(_compare(trials))
    assert json.dumps(document, allow_nan=False)


def test_many_requests_pair_up() -> None:
    rng = np.random.default_rng(5)
    trials = [
        trial(arm, index, index // 2, requests=10_000, rng=rng, concurrency=8)
        for index, arm in enumerate(["baseline", "ngram", "baseline", "ngram"])
    ]
    assert _compare(trials).levels[0].pairs == 10_000
