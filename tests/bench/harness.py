"""How much of a trial's wall time the load generator spends on itself.

A simulated engine in a process of its own keeps a known schedule: what a trial takes longer than
that is the harness, the simulator's own lateness included. Percent of the wall time.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner.engines.simulator import SimulatorProcess
from runner.plan import Arm, Target
from runner.replay import replay
from runner.traffic.request import NormalisedRequest
from tests.bench.figures import Figure

TTFT_MS = 100.0
TOKENS = 40
ROUNDS = 3
# (streams, ms a step, bar). The demo model takes 50 to 100 ms a step; 10 ms shows where it ends.
LOADS = ((1, 50.0, 0.05), (4, 50.0, 0.05), (16, 50.0, None), (4, 10.0, None), (16, 10.0, None))


def figures() -> Iterator[Figure]:
    for streams, step_ms, bar in LOADS:
        yield from _trial(streams, step_ms, bar)


def _trial(streams: int, step_ms: float, bar: float | None) -> Iterator[Figure]:
    behaviour = {"ttft_ms": TTFT_MS, "step_ms": step_ms, "output_tokens": TOKENS}
    target = Target("simulator", "bench", simulator={"none": behaviour})
    with tempfile.TemporaryDirectory() as folder:
        engine = SimulatorProcess(target, Arm("baseline"), Path(folder))
        try:
            endpoint = engine.start(lambda: False)
            replay(endpoint, _requests("warm", streams), concurrency=streams)
            result = replay(endpoint, _requests("timed", ROUNDS * streams), concurrency=streams)
        finally:
            engine.stop()
    answers = math.ceil(len(result.measurements) / streams)
    ideal_s = answers * (TTFT_MS + (TOKENS - 1) * step_ms) / 1000
    place = f"{streams} streams, {step_ms:g} ms a step"
    own = result.client.overhead_share
    yield Figure(f"harness: own work, {place}", 100 * own, "%", None if bar is None else 100 * bar)
    yield Figure(
        f"harness: beyond the schedule, {place}",
        100 * (result.duration_s - ideal_s) / result.duration_s,
        "%",
        None if bar is None else 100 * bar,
    )


def _requests(name: str, count: int) -> list[NormalisedRequest]:
    return [
        NormalisedRequest(
            id=f"{name}{number}",
            kind="completion",
            line=number + 1,
            prompt=f"{name} {number}",
            max_output_tokens=TOKENS,
        )
        for number in range(count)
    ]
