"""Our load generator beside ``vllm bench serve`` on a real vLLM server, with the same prompts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from runner.engines.base import Endpoint
from runner.engines.vllm_process import VllmProcess
from runner.models import demo
from runner.plan import Arm, Target
from tests.bench import peers
from tests.bench.figures import Figure, Text
from tests.bench.peers import OURS, VLLM, Load, Reported

SAMPLE = Path(__file__).parents[2] / "webapp" / "samples" / "data" / "demo_sample.jsonl"
STREAMS = ((1, 8), (4, 20))
"""Requests in flight, and requests."""
TURNS = (OURS, VLLM, VLLM, OURS, VLLM, OURS, OURS, VLLM)
"""An engine that gets slower by and by does it to both tools."""
TOKENS = 48
BAR_PERCENT = 2.0
TITLE = "Beside vllm bench serve, on a real engine"
INTRO = f"""\
The demo model on vLLM's CPU engine, one server start; the prompts are the first of the bundled
sample, greedy, {TOKENS} tokens at most. The tools take turns (A B B A B A A B) after a round of
warm-up, so that all find the same prefix cache. Both figures are each tool's own: the mean of
(last - first token) / (tokens - 1), and its tokens over its own duration. Each cell is the mean of
a tool's four turns, in brackets the lowest and the highest: how much the engine itself varies.
Client and server share the machine's cores."""


def figures() -> Iterator[Figure | Text]:
    demo.prepare()
    target = Target("vllm", str(demo.demo_folder()), dtype="float32", max_model_len=2048)
    with tempfile.TemporaryDirectory() as folder:
        engine = VllmProcess(target, Arm("baseline"), Path(folder) / "engine")
        try:
            endpoint = engine.start(lambda: False)
            for streams, requests in STREAMS:
                ours, theirs = _turns(endpoint, streams, requests, Path(folder) / "run")
                yield from _compared(streams, ours, theirs)
        finally:
            engine.stop()


def _prompts(count: int) -> list[str]:
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    return [row["messages"][-1]["content"] for row in rows[:count]]


def _turns(
    endpoint: Endpoint, streams: int, requests: int, folder: Path
) -> tuple[list[Reported], list[Reported]]:
    load = Load(endpoint, _prompts(requests), streams, TOKENS, model=demo.demo_folder())
    peers.run(OURS, load, folder)  # warm-up
    ours: list[Reported] = []
    theirs: list[Reported] = []
    for tool in TURNS:
        (ours if tool is OURS else theirs).append(peers.run(tool, load, folder))
    return ours, theirs


def _compared(
    streams: int, ours: Sequence[Reported], theirs: Sequence[Reported]
) -> Iterator[Figure | Text]:
    tpot_ms = [[one.tpot_mean_ms for one in turns] for turns in (ours, theirs)]
    per_s = [[one.output_tokens_per_s for one in turns] for turns in (ours, theirs)]
    yield Text(
        f"| {streams} streams | Draftproof | vllm bench serve |\n| --- | --- | --- |\n"
        f"| TPOT, ms | {' | '.join(map(_cell, tpot_ms))} |\n"
        f"| output tokens/s | {' | '.join(map(_cell, per_s))} |"
    )
    for name, (one, other) in (("TPOT", tpot_ms), ("throughput", per_s)):
        yield Figure(
            f"engine: {name} beside vllm bench serve, {streams} streams",
            100 * abs(fmean(one) / fmean(other) - 1), "%", BAR_PERCENT,
        )  # fmt: skip


def _cell(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
