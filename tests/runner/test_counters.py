"""Counters from Prometheus text, and the differences that acceptance is computed from."""

from __future__ import annotations

import pytest

from runner.counters import CountersReset, difference, parse

BASE = """\
# HELP vllm:generation_tokens_total Number of generation tokens.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 50.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e3
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
"""


def spec(drafts: float, drafted: float, accepted: float, *positions: float, engine: int = 0) -> str:
    name = "vllm:spec_decode_num"
    lines = [
        f'{name}_drafts_total{{engine="{engine}"}} {drafts}',
        f'{name}_draft_tokens_total{{engine="{engine}"}} {drafted}',
        f'{name}_accepted_tokens_total{{engine="{engine}"}} {accepted}',
    ]
    lines += [
        f'{name}_accepted_tokens_per_pos_total{{engine="{engine}",position="{i}"}} {value}'
        for i, value in enumerate(positions)
    ]
    return "\n".join(lines) + "\n"


def test_labels_are_summed_over_engines() -> None:
    before = parse(BASE + spec(10, 40, 20, 10, 6, 3, 1) + spec(1, 4, 0, 0, 0, 0, 0, engine=1))
    after = parse(
        BASE.replace("100.0", "160.0").replace("50.0", "60.0")
        + 'vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 3\n'
        + spec(30, 120, 60, 30, 18, 9, 3)
        + spec(6, 24, 5, 4, 1, 0, 0, engine=1)
    )
    found = difference(before, after)
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (25, 100, 45)
    assert found.accepted_per_position == (24, 13, 6, 2)
    assert found.generation_tokens == 70
    assert found.prompt_tokens == 0
    assert found.requests_finished == 3  # the new series began at 0


def test_absent_names_are_unknown_and_no_drafts_are_zero() -> None:
    absent = difference(parse(BASE), parse(BASE))
    assert absent.drafts is None
    assert absent.accepted_tokens is None
    assert absent.accepted_per_position == ()
    assert absent.preemptions is None
    idle = difference(parse(spec(5, 20, 3, 2, 1)), parse(spec(5, 20, 3, 2, 1)))
    assert (idle.drafts, idle.draft_tokens, idle.accepted_tokens) == (0, 0, 0)
    assert idle.accepted_per_position == (0, 0)


def test_positions_are_ordered_by_number() -> None:
    values = [float(100 - i) for i in range(12)]
    zero = [0.0] * 12
    found = difference(parse(spec(0, 0, 0, *zero)), parse(spec(9, 9, 9, *values)))
    assert found.accepted_per_position == tuple(values)


@pytest.mark.parametrize(
    "after",
    [
        BASE.replace("50.0", "49.0").replace("100.0", "900.0"),  # one engine of two restarted
        BASE.replace('engine="1"', 'engine="2"'),  # a series went away
        "",
    ],
)
def test_a_fall_is_a_reset(after: str) -> None:
    with pytest.raises(CountersReset, match="generation_tokens"):
        difference(parse(BASE), parse(after))


def test_odd_lines() -> None:
    text = (
        'a{x="quo\\"te, } and \\\\ and \\n",y="2",} 3 1700000000000\n'
        'b 4.5e3 # {trace="x"} 1\r\n'
        "c NaN\nd{broken 1\ne\nf not_a_number\n{} 3\n\n  # comment\n"
        "g{} +Inf\n"
        'h{a="\u2028"} 1\n'
    )
    series = parse(text).series
    assert series["a"] == {(("x", 'quo"te, } and \\ and \n'), ("y", "2")): 3.0}
    assert series["b"] == {(): 4500.0}
    assert series["g"] == {(): float("inf")}
    assert series["h"] == {(("a", "\u2028"),): 1.0}
    assert set(series) == {"a", "b", "g", "h"}


def test_empty_text_is_unknown() -> None:
    assert difference(parse(""), parse("")).generation_tokens is None
