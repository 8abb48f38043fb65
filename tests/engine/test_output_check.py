"""The output check against the real engine: its token ids, its probabilities, its scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from calculator.answers import OutputRecord
from calculator.outputs import check_outputs
from runner import counters
from runner.output_check import GreedyAnswer, greedy_answers, output_record
from runner.output_check.forced import score
from runner.plan import Arm, Target
from runner.traffic.request import NormalisedRequest
from tests.engine.conftest import Server, serving
from tests.engine.test_vllm import NGRAM

pytestmark = pytest.mark.engine

TOKENS = 64


@pytest.fixture(scope="module")
def baseline(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(target, Arm("baseline"), tmp_path_factory.mktemp("baseline")) as server:
        yield server


@pytest.fixture(scope="module")
def traffic(requests: list[str]) -> list[NormalisedRequest]:
    """Chats and, of the same texts, plain completions: two ways of asking, two of answering."""
    return [
        NormalisedRequest(
            id=f"{kind}-{n}",
            kind=kind,
            line=n + 1,
            messages=({"role": "user", "content": text},),
            prompt=text,
        )
        for kind in ("chat", "completion")
        for n, text in enumerate(requests)
    ]


def answers(
    server: Server, traffic: list[NormalisedRequest], *, leads: bool
) -> dict[str, GreedyAnswer]:
    return greedy_answers(
        server.endpoint, traffic, max_tokens=TOKENS, concurrency=4, timeout_s=120, leads=leads
    )


def record(
    server: Server, found: dict[str, GreedyAnswer], *, own: bool, asked: int
) -> OutputRecord:
    scores = score(server.endpoint, found, timeout_s=120, own=own)
    assert scores.keys() == found.keys(), "every answer was scored"
    return output_record(found, scores, asked=asked, concurrency=4, key=b"key")


def test_an_ngram_arm_is_unchanged_and_one_replaced_token_is_found(
    baseline: Server, traffic: list[NormalisedRequest], target: Target, tmp_path: Path
) -> None:
    first, again = (answers(baseline, traffic, leads=True) for _ in range(2))
    assert first.keys() == {one.id for one in traffic}
    for one in first.values():
        assert len(one.leads) == len(one.token_ids) > 0
        assert all(lead is not None and lead >= 0 for lead in one.leads)
        assert one.prompt_ids
        assert one.stop_reason in ("stop", "length")
    with serving(target, NGRAM, tmp_path) as ngram:
        before = ngram.metrics()
        ours = answers(ngram, traffic, leads=False)
        drafted = counters.difference(before, ngram.metrics())
    assert ours.keys() == first.keys()
    assert drafted.accepted_tokens, "it speculated while it was checked"

    asked = len(traffic)
    records = {
        0: record(baseline, first, own=True, asked=asked),
        1: record(baseline, ours, own=False, asked=asked),
        3: record(baseline, again, own=True, asked=asked),
    }
    found = check_outputs(records, [0, 3], [1])
    assert (found.status, found.why) == ("unchanged", None)
    forced = found.forced["candidate"]
    assert forced is not None
    assert forced.tokens == sum(len(one.token_ids) for one in ours.values())
    assert forced.beyond == 0
    assert found.tolerance_nats == pytest.approx(0.1), "float32: the floor, and no noise above it"

    # The same candidate with one token of one answer replaced by another.
    name, victim = max(ours.items(), key=lambda item: len(item[1].token_ids))
    place = len(victim.token_ids) // 2
    other = next(
        token
        for token in (t for one in ours.values() for t in one.token_ids)
        if token != victim.token_ids[place]
    )
    ids = (*victim.token_ids[:place], other, *victim.token_ids[place + 1 :])
    broken = ours | {name: replace(victim, token_ids=ids)}
    records[1] = record(baseline, broken, own=False, asked=asked)
    changed = check_outputs(records, [0, 3], [1])
    assert changed.status == "changed"
    assert (name, place) in {(one.request_id, one.position) for one in changed.examples}
