"""Plans as documents and as TOML: nothing lost, nothing unknown accepted."""

from __future__ import annotations

import copy
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.commands import __path__ as commands_path
from runner.plan import (
    Arm,
    Decision,
    Design,
    ExperimentPlan,
    LoadLevel,
    PlanError,
    Price,
    Slo,
    Target,
    validate,
)
from runner.plan_codec import from_document, from_toml, to_document

EXAMPLE = Path(commands_path[0]) / "example.toml"
POSITIVE = st.floats(min_value=0.1, max_value=1e6)
PARAMETERS = st.dictionaries(
    st.text("abc_", min_size=1), st.integers() | st.booleans() | st.text() | POSITIVE, max_size=3
)
PLANS = st.builds(
    ExperimentPlan,
    target=st.builds(
        Target,
        st.sampled_from(["vllm", "simulator"]),
        st.text(),
        max_model_len=st.none() | st.just(9),
    ),
    arms=st.lists(
        st.builds(Arm, st.text(), st.sampled_from(["none", "ngram"]), PARAMETERS), max_size=3
    ).map(tuple),
    levels=st.lists(st.builds(LoadLevel, st.integers(), st.integers()), max_size=3).map(tuple),
    price=st.builds(
        Price, st.decimals(allow_nan=False, allow_infinity=False, places=6), st.text(), st.text()
    ),
    slo=st.builds(Slo, st.none() | POSITIVE, st.none() | POSITIVE),
    design=st.builds(Design, st.integers(), max_output_tokens=st.none() | st.integers()),
    decision=st.builds(Decision, POSITIVE, st.none() | st.integers()),
)


@given(plan=PLANS)
def test_document_round_trip_through_json(plan: ExperimentPlan) -> None:
    assert from_document(json.loads(json.dumps(to_document(plan)))) == plan


def test_example_is_a_valid_plan() -> None:
    read = from_toml(EXAMPLE)
    assert validate(read.plan) == []
    assert read.traffic == EXAMPLE.parent / "traffic.jsonl"
    assert read.plan.price.usd_per_hour == Decimal("0.40")
    assert str(read.plan.price.usd_per_hour) == "0.40"


DOCUMENT = to_document(
    ExperimentPlan(
        target=Target("vllm", "m"),
        arms=(Arm("baseline"), Arm("ngram", "ngram", {"num_speculative_tokens": 4})),
        levels=(LoadLevel(1, 4),),
        price=Price(Decimal("0.1"), "s", "2026-01-31"),
    )
)


@pytest.mark.parametrize(
    ("where", "value", "line"),
    [
        (("extra",), 1, "extra: unknown key; known are target, arms"),
        (("schema_version",), 2, "schema_version: expected 1"),
        (("target", "engine"), "llama", "target.engine: expected one of vllm, simulator"),
        (("target", "model"), 3, "target.model: expected text"),
        (("target", "enforce_eager"), "yes", "target.enforce_eager: expected true or false"),
        (("target",), "vllm", "target: expected a table"),
        (("levels",), 4, "levels: expected a list"),
        (("levels", 0, "requests"), 1.5, "levels[1].requests: expected a whole number"),
        (("levels", 0, "requests"), True, "levels[1].requests: expected a whole number"),
        (("levels", 0, "rate"), 1, "levels[1].rate: unknown key"),
        (("arms", 1, "method"), "magic", "arms[2].method: expected one of none, ngram"),
        (("arms", 1, "parameters"), [], "arms[2].parameters: expected a table"),
        (("arms", 1, "parameters", "x"), object, "arms[2].parameters.x: expected text, a number"),
        (("price", "usd_per_hour"), "a lot", "price.usd_per_hour: expected an amount"),
        (("slo", "ttft_p95_ms"), "1", "slo.ttft_p95_ms: expected a number"),
        (("design", "seed"), None, "design.seed: expected a whole number"),
    ],
)
def test_wrong_value_is_one_line_that_names_the_key(
    where: tuple[Any, ...], value: Any, line: str
) -> None:
    document = copy.deepcopy(DOCUMENT)
    place: Any = document
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    with pytest.raises(PlanError) as caught:
        from_document(document)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_missing_key_is_named() -> None:
    document = copy.deepcopy(DOCUMENT)
    del document["price"]["source"]
    with pytest.raises(PlanError, match=r"^price\.source: missing$"):
        from_document(document)


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ('file = "traffic.jsonl"', "", "traffic.file: expected the path"),
        ('file = "traffic.jsonl"', 'file = "a"\nformat = "x"', "traffic.format: unknown key"),
        ("[traffic]", "[trafic]", "traffic: missing"),
        ("[target]", "[target", "not valid TOML"),
        ("seed = 1 ", f"seed = {'9' * 5000} ", "not valid TOML"),
        ("seed = 1 ", f"x = {'[' * 5000}", "not valid TOML"),
        ("seed = 1 ", "seeds = 1 ", "design.seeds: unknown key"),
        ("min_gain_percent = 5 ", "min_gain_percent = '5' ", "decision.min_gain_percent: expected"),
    ],
)
def test_wrong_toml_is_one_line(tmp_path: Path, before: str, after: str, line: str) -> None:
    text = EXAMPLE.read_text()
    assert before in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(PlanError) as caught:
        from_toml(path)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_toml_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        from_toml(tmp_path / "none.toml")


def test_a_date_of_toml_is_a_date(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    path = tmp_path / "plan.toml"
    written = re.sub(r'as_of = "([0-9-]+)"', r"as_of = \1", text)
    assert written != text
    path.write_text(written)
    assert from_toml(path).plan == from_toml(EXAMPLE).plan
