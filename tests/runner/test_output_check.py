"""The greedy pass and teacher forcing, against a scripted server and the simulator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calculator.answers import OutputRecord
from calculator.outputs import OutputCheck, check_outputs
from runner.engines.base import Endpoint
from runner.events import OutputChecked
from runner.output_check import digest_chain, greedy_answers
from runner.output_check.forced import score
from runner.output_check.greedy import GreedyAnswer, is_shaped
from runner.output_check.traits import json_valid, repeated_share, tool_calls_valid
from runner.plan import Design, ExperimentPlan, LoadLevel
from runner.traffic.request import NormalisedRequest
from tests.runner.scripted_server import ScriptedServer
from tests.runner.test_execute import DRAFTS, FAST, Listener, plan


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


def request(**more: Any) -> NormalisedRequest:
    fields: dict[str, Any] = {"id": "a", "kind": "completion", "line": 1, "prompt": "p"}
    return NormalisedRequest(**fields | more)


def answer(document: dict[str, Any]) -> list[tuple[float, bytes]]:
    body = json.dumps(document).encode()
    return [(0.0, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)]


def ask(
    server: ScriptedServer, document: dict[str, Any], one: NormalisedRequest, **more: Any
) -> dict[str, GreedyAnswer]:
    endpoint = Endpoint(server.play("case", answer(document)), "m")
    return greedy_answers(endpoint, [one], max_tokens=9, concurrency=1, timeout_s=9, **more)


def test_what_is_asked_is_greedy_and_nothing_that_a_speculating_engine_refuses(
    server: ScriptedServer,
) -> None:
    sampling = {"temperature": 1.0, "min_p": 0.1, "top_p": 0.9, "stop": ["x"], "logprobs": 5}
    found = ask(
        server,
        {"choices": [{"token_ids": [5, 6], "prompt_token_ids": [1], "finish_reason": "stop"}]},
        request(sampling=sampling),
    )
    one = found["a"]
    assert (one.token_ids, one.prompt_ids, one.stop_reason) == ((5, 6), (1,), "stop")
    assert one.leads == ()
    assert server.received("case")[-1]["body"] == {
        "model": "m",
        "prompt": "p",
        "stop": ["x"],
        "max_tokens": 9,
        "temperature": 0,
        "seed": 1,
        "n": 1,
        "stream": False,
        "return_token_ids": True,
    }


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"choices": []},
        {"choices": [5]},
        {"choices": [{"text": "without ids"}]},
        {"choices": [{"token_ids": ["5"]}]},
    ],
)
def test_an_answer_without_token_ids_is_missing(
    server: ScriptedServer, document: dict[str, Any]
) -> None:
    assert ask(server, document, request()) == {}


def test_leads_are_read_as_both_apis_write_them(server: ScriptedServer) -> None:
    tops = [{"token_id:5": -0.1, "token_id:8": -2.1}, {"token_id:7": -0.5, "token_id:6": -1.0}]
    completion = {"choices": [{"token_ids": [5, 6], "logprobs": {"top_logprobs": tops}}]}
    assert ask(server, completion, request(), leads=True)["a"].leads == (2.0, -0.5)
    assert server.received("case")[-1]["body"]["logprobs"] == 2
    content = [
        {
            "token": max(step, key=step.__getitem__),
            "logprob": max(step.values()),
            "top_logprobs": [{"token": t, "logprob": v} for t, v in step.items()],
        }
        for step in tops
    ]
    chat = {
        "prompt_token_ids": [1, 2],
        "choices": [{"token_ids": [5, 6], "logprobs": {"content": content}}],
    }
    messages = ({"role": "user", "content": "hello"},)
    found = ask(server, chat, request(kind="chat", messages=messages), leads=True)["a"]
    assert (found.leads, found.prompt_ids) == ((2.0, -0.5), (1, 2))
    assert server.received("case")[-1]["body"]["top_logprobs"] == 2
    for odd in (None, 5, {"top_logprobs": tops[:1]}, {"content": [None, 3]}, {"content": 3}):
        odd_answer = {"choices": [{"token_ids": [5, 6], "logprobs": odd}]}
        leads = ask(server, odd_answer, request(), leads=True)["a"].leads
        assert set(leads) <= {None}


def scored(server: ScriptedServer, document: dict[str, Any], **more: Any) -> Any:
    one = GreedyAnswer((5, 6), (1, 2), (2.0, 2.0), "stop", False, None, None, None)
    endpoint = Endpoint(server.play("case", answer(document)), "m")
    return score(endpoint, {"a": one}, timeout_s=9, own=True, **more)


def test_a_score_is_how_far_each_token_is_from_the_best(server: ScriptedServer) -> None:
    def step(*tops: tuple[int, float]) -> dict[str, Any]:
        return {str(token): {"logprob": value, "rank": 1} for token, value in tops}

    steps = [None, step((2, -1.0)), step((5, -0.1), (9, -2.0)), step((7, -0.5), (6, -0.75))]
    found = scored(server, {"choices": [{"prompt_logprobs": steps}]})["a"]
    assert (found.tokens, found.gaps) == (2, ((1, 0.25),))
    assert found.noise_nats == pytest.approx(2.25)
    body = server.received("case")[-1]["body"]
    assert (body["prompt"], body["max_tokens"], body["prompt_logprobs"]) == ([1, 2, 5, 6], 1, 2)
    for odd in (None, 5, steps[:-1], [None, None, None, None], [{}, {}, {"5": 1}, {"6": {}}]):
        assert scored(server, {"choices": [{"prompt_logprobs": odd}]}) == {}


def test_traits_of_an_answer() -> None:
    wanted = request(sampling={"response_format": {"type": "json_object"}})
    assert json_valid(wanted, {"message": {"content": '{"a": 1}'}}) is True
    assert json_valid(wanted, {"text": '{"a": 1'}) is False
    assert json_valid(wanted, {"message": {"content": None}}) is False
    assert json_valid(request(), {"text": "x"}) is None

    def calls(*arguments: Any) -> dict[str, Any]:
        return {"message": {"tool_calls": [{"function": {"arguments": a}} for a in arguments]}}

    assert tool_calls_valid(calls('{"city": "Oslo"}')) is True
    assert tool_calls_valid(calls('{"city": "Oslo"}', '{"city')) is False
    assert tool_calls_valid(calls("[1]")) is False
    assert tool_calls_valid({"message": {"tool_calls": []}}) is None
    assert tool_calls_valid({"text": "x"}) is None
    assert repeated_share([1, 2, 3]) is None
    assert repeated_share([1, 2, 3, 4, 5]) == 0
    assert repeated_share([7] * 8) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("sampling", "shaped"),
    [
        ({}, False),
        ({"presence_penalty": 0, "response_format": {"type": "text"}}, False),
        ({"tool_choice": "auto", "repetition_penalty": 1.0}, False),
        ({"frequency_penalty": 0.2}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"tool_choice": "required"}, True),
    ],
)
def test_what_shapes_an_answer(sampling: dict[str, Any], shaped: bool) -> None:
    assert is_shaped(request(sampling=sampling)) is shaped


def test_digest_chains_agree_up_to_the_first_difference() -> None:
    one = digest_chain([5, 6, 7, 8], b"key")
    two = digest_chain([5, 6, 9, 8], b"key")
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    assert one[3] != two[3], "a later agreement by chance does not look like one"
    assert digest_chain([5, 6, 7, 8], b"other") != one
    assert digest_chain([1, 23], b"k")[-1] != digest_chain([12, 3], b"k")[-1]


# --- the whole path, on an engine whose truth is set -------------------------------------------


def checked(
    tmp_path: Path, baseline: dict[str, Any], ngram: dict[str, Any], tokens: int = 60
) -> OutputCheck:
    """Baseline, candidate and the baseline again, each a server of its own, as a run does it."""
    long = {"output_tokens": tokens, "step_ms": 0.2, "ttft_ms": 1.0}
    wanted = plan({**FAST, **baseline, **long}, {**DRAFTS, **ngram, **long})
    wanted = with_check(wanted, requests=20, tokens=tokens)
    records: dict[int, OutputRecord] = {}
    for index in (0, 1, 3):
        heard = Listener(tmp_path / str(index))
        assert heard.run(wanted, index=index).status == "recorded"
        assert heard.engine_is_gone
        records[index] = heard.of(OutputChecked)[-1].record
    return check_outputs(records, [0, 3], [1])


def with_check(wanted: ExperimentPlan, requests: int, tokens: int) -> ExperimentPlan:
    from dataclasses import replace

    design = Design(
        runs_per_arm=2, output_check_requests=requests, output_check_tokens=tokens,
        max_output_tokens=8,
    )  # fmt: skip
    return replace(wanted, design=design, levels=(LoadLevel(1, 6),))


def test_equal_engines_are_unchanged(tmp_path: Path) -> None:
    found = checked(tmp_path, {}, {})
    assert (found.status, found.why) == ("unchanged", None)
    assert found.candidate_match.matched == found.control_match.matched == 20
    forced = found.forced["candidate"]
    assert forced is not None
    # Requests are capped at 16 tokens each.
    assert (forced.tokens, forced.beyond) == (20 * 16, 0)
    assert found.detectable_rate is not None
    assert found.detectable_rate < 0.012


def test_a_noisy_engine_is_unchanged_within_its_own_noise(tmp_path: Path) -> None:
    found = checked(tmp_path, {"numerics_noise_nats": 0.1}, {"numerics_noise_nats": 0.1})
    assert (found.status, found.why) == ("unchanged", None)
    assert found.tolerance_nats is not None
    assert found.tolerance_nats > 0.1


def test_corrupted_tokens_are_found_beside_noise(tmp_path: Path) -> None:
    noise = {"numerics_noise_nats": 0.1}
    found = checked(tmp_path, noise, {**noise, "corrupt_token_rate": 0.03})
    assert (found.status, found.why) == ("changed", "unlikely_tokens")
    assert any(one.kind == "unlikely" and (one.nats or 0) > 2 for one in found.examples)


def test_an_engine_without_probabilities_is_judged_by_rates(tmp_path: Path) -> None:
    silent = {"omit_logprobs": True}
    found = checked(tmp_path, silent, {**silent, "corrupt_token_rate": 0.3})
    assert (found.status, found.why) == ("changed", "less_alike")
    assert found.not_scored == "no_prompt_logprobs"
    assert found.tolerance_nats is None
    few = checked(tmp_path, silent, {**silent, "corrupt_token_rate": 0.005})
    assert few.status in ("not_tested", "unchanged")
