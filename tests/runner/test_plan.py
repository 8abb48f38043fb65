"""The order in which an experiment is measured, and which requests it uses."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.plan import (
    Arm,
    Decision,
    Design,
    ExperimentPlan,
    LoadLevel,
    PlanError,
    Price,
    RequestInfo,
    Slo,
    Target,
    Timing,
    estimate_seconds,
    needed_requests,
    schedule,
    suggest,
    validate,
)

NGRAM = {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
BASELINE = Arm("baseline")
ARMS = (BASELINE, Arm("ngram", "ngram", NGRAM))


def plan(
    levels: tuple[LoadLevel, ...] = (LoadLevel(1, 6), LoadLevel(4, 12)),
    arms: tuple[Arm, ...] = ARMS,
    **design: int | None,
) -> ExperimentPlan:
    return ExperimentPlan(
        target=Target("simulator", "demo"),
        arms=arms,
        levels=levels,
        price=Price(Decimal("0.40"), "a list", "2026-01-31"),
        design=Design(**design),  # type: ignore[arg-type]
    )


def sample(size: int, kinds: int = 3) -> list[RequestInfo]:
    return [RequestInfo(f"r{n}", f"kind {n % kinds}" if kinds else None) for n in range(size)]


def test_arms_go_there_and_back() -> None:
    third = Arm("other", "ngram", NGRAM)
    runs = schedule(plan(arms=(*ARMS, third), runs_per_arm=3), sample(60))
    names = "".join(run.arm.name[0] for run in runs)
    assert names == "bno" + "onb" + "bno"
    assert [run.index for run in runs] == list(range(9))
    assert [run.block for run in runs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


PLANS = st.builds(
    plan,
    levels=st.lists(
        st.tuples(st.integers(1, 6), st.integers(18, 24)),
        min_size=1, max_size=4, unique_by=lambda pair: pair[0],
    ).map(lambda pairs: tuple(LoadLevel(*pair) for pair in pairs)),
    runs_per_arm=st.integers(2, 5),
    seed=st.integers(0, 1000),
    warmup_requests=st.integers(0, 4),
    output_check_requests=st.integers(0, 8),
)  # fmt: skip


@given(wanted=PLANS, spare=st.integers(0, 50), kinds=st.integers(0, 7))
def test_schedule_properties(wanted: ExperimentPlan, spare: int, kinds: int) -> None:
    requests = sample(needed_requests(wanted) + spare, kinds)
    runs = schedule(wanted, requests)
    assert runs == schedule(wanted, requests), "the same plan and sample, the same schedule"

    first = runs[0]
    slices = {trial.level: trial.request_ids for trial in first.trials}
    used = [
        *first.warmup_ids,
        *first.output_check_ids,
        *(i for ids in slices.values() for i in ids),
    ]
    assert len(used) == len(set(used)) == needed_requests(wanted), "nothing is sent twice in a run"
    assert set(used) <= {request.id for request in requests}
    for run in runs:
        assert {trial.level: trial.request_ids for trial in run.trials} == slices
        assert (run.warmup_ids, run.output_check_ids) == (first.warmup_ids, first.output_check_ids)
        assert [trial.index for trial in run.trials] == list(range(len(wanted.levels)))
        assert [t.level for t in run.trials] == [
            t.level for t in next(r for r in runs if r.block == run.block).trials
        ], "one order of levels in each block"
    assert Counter(run.arm.name for run in runs) == dict.fromkeys(
        [arm.name for arm in wanted.arms], wanted.design.runs_per_arm
    )
    salts = [trial.cache_salt for run in runs for trial in run.trials]
    assert len(set(salts)) == len(salts)


@given(wanted=PLANS, spare=st.integers(0, 60), kinds=st.integers(1, 6))
def test_every_slice_has_the_mix_of_the_sample(
    wanted: ExperimentPlan, spare: int, kinds: int
) -> None:
    requests = sample(needed_requests(wanted) + spare, kinds)
    category = {request.id: request.category for request in requests}
    share = {name: count / len(requests) for name, count in Counter(category.values()).items()}
    for trial in schedule(wanted, requests)[0].trials:
        counts = Counter(category[request_id] for request_id in trial.request_ids)
        for name, part in share.items():
            assert abs(counts[name] - part * len(trial.request_ids)) <= 2


def test_equal_kinds_are_shared_out_equally() -> None:
    runs = schedule(plan((LoadLevel(1, 12), LoadLevel(4, 18))), sample(66, kinds=6))
    for trial in runs[0].trials:
        counts = Counter(int(request_id[1:]) % 6 for request_id in trial.request_ids)
        assert set(counts.values()) == {len(trial.request_ids) // 6}


def test_levels_take_turns_in_being_first() -> None:
    levels = (LoadLevel(1, 4), LoadLevel(2, 6), LoadLevel(4, 12))
    runs = schedule(plan(levels, runs_per_arm=3), sample(40))
    firsts = {run.trials[0].level.concurrency for run in runs}
    assert firsts == {1, 2, 4}


def test_another_seed_chooses_other_requests() -> None:
    one, two = (schedule(plan(seed=seed), sample(200)) for seed in (1, 2))
    assert {*one[0].trials[0].request_ids} != {*two[0].trials[0].request_ids}


def test_small_sample_says_how_many_requests_are_missing() -> None:
    with pytest.raises(PlanError) as caught:
        schedule(plan(), sample(20))
    assert "20 replayable requests" in str(caught.value)
    uses = "this plan uses 36 (6 + 12 for the load levels, 2 to warm up, 16 for"
    assert uses in str(caught.value)
    assert "add 16 more requests, or lower" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"arms": (BASELINE,)}, "at least one candidate"),
        ({"arms": (ARMS[1], replace(ARMS[1], name="b"))}, 'method "none" (the baseline); 0'),
        ({"arms": (BASELINE, Arm("b"), ARMS[1])}, "2 have it"),
        ({"arms": (BASELINE, replace(ARMS[1], name="baseline"))}, "name of its own"),
        ({"arms": (BASELINE, replace(ARMS[1], name=" "))}, "between 1 and 60"),
        ({"levels": ()}, "at least one load level"),
        ({"levels": (LoadLevel(2, 4), LoadLevel(2, 8))}, "concurrency of its own"),
        ({"levels": (LoadLevel(0, 4),)}, "concurrency of at least 1"),
        ({"levels": (LoadLevel(8, 4),)}, "needs at least 24, as with fewer its load"),
        ({"design": Design(runs_per_arm=1)}, "at least 2 runs"),
        ({"design": Design(runs_per_arm=101)}, "at most 100 runs"),
        ({"design": Design(warmup_requests=-1)}, "warmup_requests must be 0 or more"),
        ({"design": Design(output_check_tokens=0)}, "output_check_tokens"),
        ({"design": Design(max_output_tokens=0)}, "max_output_tokens"),
        ({"design": Design(request_timeout_s=math.inf)}, "request_timeout_s"),
        ({"price": Price(Decimal("-1"), "x", "2026-01-31")}, "from 0 to 1,000,000"),
        ({"price": Price(Decimal("1e999"), "x", "2026-01-31")}, "from 0 to 1,000,000"),
        ({"price": Price(Decimal("NaN"), "x", "2026-01-31")}, "from 0 to 1,000,000"),
        ({"price": Price(Decimal(1), "", "2026-01-31")}, "where the price comes from"),
        ({"price": Price(Decimal(1), "x", "31.1.2026")}, "2026-01-31"),
        ({"slo": Slo(ttft_p95_ms=0)}, "ttft_p95_ms"),
        ({"decision": Decision(min_gain_percent=-1)}, "smallest gain"),
        ({"decision": Decision(own_concurrency=0)}, "at least 1, or absent"),
        ({"decision": Decision(requests_per_month=0)}, "requests per month"),
        ({"decision": Decision(peak_to_mean=0.5)}, "peak-to-mean"),
        ({"target": Target("simulator", "")}, "target model"),
        ({"target": Target("vllm", "m", max_model_len=0)}, "max_model_len"),
        ({"target": Target("vllm", "--port=1")}, "The target model is '--port=1'"),
        ({"target": Target("vllm", "m", dtype="int3")}, "dtype must be one of auto"),
        ({"arms": (BASELINE, Arm("n", "ngram", {"code": "x"}))}, "has no parameter 'code'"),
    ],
)
def test_wrong_plan_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    wrong = replace(plan(), **changes)  # type: ignore[arg-type]
    assert any(sentence in problem for problem in validate(wrong)), validate(wrong)
    with pytest.raises(PlanError):
        schedule(wrong, sample(200))


def test_right_plan_has_no_problems() -> None:
    assert validate(plan()) == []


def test_duration_adds_up_starts_and_tokens() -> None:
    timing = Timing(engine_start_s=10.0, tokens_per_s_alone=5.0, batch_exponent=1.0)
    wanted = plan(
        (LoadLevel(1, 10),), runs_per_arm=2, warmup_requests=1, output_check_requests=0,
        max_output_tokens=20,
    )  # fmt: skip
    # Per run: 10 s to start, (10 + 2 x 1) answers of 20 tokens at 5 tokens/s.
    assert estimate_seconds(wanted, timing) == pytest.approx(4 * (10 + 12 * 4))
    faster = replace(timing, speedup=2.0)
    assert estimate_seconds(wanted, faster) == pytest.approx(2 * (10 + 48) + 2 * (10 + 24))


def test_a_prompt_is_sent_once_in_a_run() -> None:
    """What an engine has answered before, its caches answer faster than the first time."""
    requests = [RequestInfo(f"r{n}", None, f"prompt {n % 12}") for n in range(48)]
    wanted = plan((LoadLevel(1, 8),), warmup_requests=1, output_check_requests=3)
    run = schedule(wanted, requests)[0]
    used = [*run.warmup_ids, *run.output_check_ids, *run.trials[0].request_ids]
    assert len({int(name[1:]) % 12 for name in used}) == len(used) == 12
    more = replace(wanted, levels=(LoadLevel(1, 9),))
    with pytest.raises(PlanError, match="12 replayable requests with a prompt of their own"):
        schedule(more, requests)


def test_more_in_flight_takes_less_time() -> None:
    slow, fast = (plan((LoadLevel(n, 24),)) for n in (1, 8))
    assert estimate_seconds(fast) < estimate_seconds(slow)


@given(size=st.integers(0, 400))
def test_suggestion_fits_the_sample(size: int) -> None:
    try:
        levels, design = suggest(size)
    except PlanError:
        assert size < 8
        return
    wanted = replace(plan(levels), design=design)
    assert validate(wanted) == []
    assert len(schedule(wanted, sample(size))) == 2 * design.runs_per_arm


def test_suggestion_for_the_bundled_sample_keeps_three_levels() -> None:
    levels, _ = suggest(66)
    assert [level.concurrency for level in levels] == [1, 4, 8]
    assert [level.requests for level in levels] == [9, 17, 29]
