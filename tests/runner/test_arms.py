"""Arms: what is allowed reaches the engine as it was meant; nothing else reaches it."""

import json
import shlex
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.arms import (
    METHODS,
    Field,
    defaults,
    deploy_command,
    engine_arguments,
    model_name_problem,
    serving_arguments,
    speculative_config,
    validate_arm,
)
from runner.plan import Arm, Target

TARGET = Target("vllm", "/models/some-model", dtype="float32", max_model_len=2048)
CANDIDATES = [name for name in METHODS if name != "none"]


def valid_value(field: Field) -> st.SearchStrategy[Any]:
    if field.type == "int":
        return st.integers(int(field.minimum or 0), int(field.maximum or 0))
    if field.type == "float":
        return st.floats(float(field.minimum or 0), float(field.maximum or 0))
    return st.sampled_from(["owner/name", "gpt2", "/models/draft", "./draft", "~/draft"])


@st.composite
def valid_arms(draw: st.DrawFn) -> Arm:
    method = draw(st.sampled_from(CANDIDATES))
    parameters = {f.name: draw(valid_value(f)) for f in METHODS[method].fields}
    if method == "ngram":
        shortest, longest = sorted(
            (parameters["prompt_lookup_min"], parameters["prompt_lookup_max"])
        )
        parameters |= {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    return Arm("candidate", method, parameters)  # type: ignore[arg-type]


def test_every_default_is_within_its_own_range() -> None:
    for method in ("none", "ngram", "suffix"):
        assert validate_arm(Arm("a", method)) == []
    assert validate_arm(Arm("d", "draft_model", {"model": "owner/draft"})) == []


def test_every_method_explains_itself_and_each_of_its_parameters() -> None:
    for spec in METHODS.values():
        assert spec.label
        assert spec.advice.endswith(".")
        for field in spec.fields:
            assert field.help.endswith(".")
            assert (field.minimum is None) == (field.type == "str")


@given(valid_arms())
def test_a_valid_arm_reaches_the_engine_with_exactly_its_parameters(arm: Arm) -> None:
    assert validate_arm(arm) == []
    (argument,) = [a for a in serving_arguments(TARGET, arm) if a.startswith("--spec")]
    key, _, value = argument.partition("=")
    assert key == "--speculative-config"
    assert json.loads(value) == {"method": arm.method, **arm.parameters}


@given(valid_arms())
def test_every_argument_is_one_word_with_its_key(arm: Arm) -> None:
    arguments = engine_arguments(TARGET, arm, port=8123)
    assert all(word.startswith("--") for word in arguments)
    keys = [word.partition("=")[0] for word in arguments]
    assert len(keys) == len(set(keys))
    assert "--trust-remote-code" not in keys
    assert {"--host=127.0.0.1", "--port=8123", "--model=/models/some-model"} <= set(arguments)


@given(valid_arms())
def test_the_deploy_command_survives_a_shell(arm: Arm) -> None:
    words = shlex.split(deploy_command(TARGET, arm))
    assert words[:3] == ["vllm", "serve", "./some-model"]
    (config,) = [w.partition("=")[2] for w in words if w.startswith("--speculative-config=")]
    assert json.loads(config)["method"] == arm.method


def test_the_deploy_command_names_no_folder_of_this_machine() -> None:
    arm = Arm("d", "draft_model", {"model": "/secret/place/draft"})
    command = deploy_command(Target("vllm", "/secret/place/target"), arm)
    assert "secret" not in command
    assert "./draft" in command
    assert deploy_command(Target("vllm", "owner/name"), Arm("b")) == (
        "vllm serve owner/name --dtype=auto"
    )


def test_the_baseline_has_no_speculation() -> None:
    assert speculative_config(Arm("baseline")) is None
    assert serving_arguments(TARGET, Arm("baseline")) == ["--dtype=float32", "--max-model-len=2048"]
    eager = Target("vllm", "gpt2", enforce_eager=True)
    assert serving_arguments(eager, Arm("baseline")) == ["--dtype=auto", "--enforce-eager"]


def test_parameters_that_were_not_given_are_spelled_out() -> None:
    config = speculative_config(Arm("n", "ngram", {"num_speculative_tokens": 7}))
    assert config == {"method": "ngram", **defaults("ngram"), "num_speculative_tokens": 7}


@given(st.sampled_from(CANDIDATES), st.text(string.ascii_lowercase + "_", min_size=1))
def test_a_parameter_outside_the_list_is_refused(method: str, name: str) -> None:
    allowed = {field.name for field in METHODS[method].fields}
    parameters: dict[str, Any] = {"model": "gpt2"} if method == "draft_model" else {}
    problems = validate_arm(Arm("x", method, {**parameters, name: 1}))  # type: ignore[arg-type]
    if name in allowed:
        return
    assert any(name in problem and "no parameter" in problem for problem in problems)


@given(valid_arms(), st.data())
def test_a_number_outside_its_range_is_refused_and_never_sent(
    arm: Arm, data: st.DataObject
) -> None:
    numeric = [f for f in METHODS[arm.method].fields if f.type != "str"]
    field = data.draw(st.sampled_from(numeric))
    assert field.minimum is not None
    assert field.maximum is not None
    wrong = data.draw(st.sampled_from([field.minimum - 1, field.maximum + 1]))
    bad = Arm("x", arm.method, {**arm.parameters, field.name: wrong})
    assert any(field.name in problem for problem in validate_arm(bad))
    with pytest.raises(ValueError, match=field.name):
        engine_arguments(TARGET, bad, port=8000)


@pytest.mark.parametrize("value", [True, "4", 4.5, float("nan"), None, [4]])
def test_a_value_of_another_kind_is_refused(value: Any) -> None:
    (problem,) = validate_arm(Arm("x", "ngram", {"num_speculative_tokens": value}))
    assert "num_speculative_tokens" in problem


@pytest.mark.parametrize("value", [True, "0.5", float("nan"), float("inf")])
def test_a_share_must_be_a_finite_number(value: Any) -> None:
    (problem,) = validate_arm(Arm("x", "suffix", {"suffix_decoding_min_token_prob": value}))
    assert "suffix_decoding_min_token_prob" in problem


def test_a_lookup_that_cannot_match_is_refused() -> None:
    (problem,) = validate_arm(Arm("x", "ngram", {"prompt_lookup_min": 5, "prompt_lookup_max": 3}))
    assert "shortest match (5)" in problem


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    (problem,) = validate_arm(Arm("x", "synthetic"))  # type: ignore[arg-type]
    assert "ngram" in problem
    assert "synthetic" in problem


def test_a_draft_model_must_be_named() -> None:
    (problem,) = validate_arm(Arm("x", "draft_model"))
    assert "must be given" in problem


@pytest.mark.parametrize(
    "name",
    [
        "--trust-remote-code", "-x", "", "   ", "a/b/c", "https://example.com/model", "a b",
        "owner/name\n--host=0.0.0.0", "owner/\x00", "../", "$(id)", "x" * 500, 7, None,
    ],
)  # fmt: skip
def test_a_name_that_could_mean_something_else_is_no_model(name: Any) -> None:
    if name == "../":
        assert model_name_problem(name) is None  # a folder, if one that holds no model
        return
    assert model_name_problem(name)
    assert validate_arm(Arm("x", "draft_model", {"model": name}))
    with pytest.raises(ValueError, match="target model"):
        engine_arguments(Target("vllm", name), Arm("baseline"), port=8000)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype"):
        engine_arguments(Target("vllm", "gpt2", dtype="int3"), Arm("b"), port=8000)
