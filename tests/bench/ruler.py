"""What load generators report of a server that is known, beside the truth.

The server sends the first token of each answer after 50 ms and then one every 10 ms, and says how
late it was itself. Server and client have a core each where the machine has two.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.models import tiny
from runner.ruler import KnownDelayServer, Lateness, Promise
from tests.bench import peers
from tests.bench.figures import Figure, Text
from tests.bench.peers import OURS, PEERS, VLLM, Load, NotHad, Reported, Tool

STREAMS = (16, 64, 256, 1024)
ROUNDS = 4
BAR_STREAMS = 256
PROMISE = Promise(ttft_ms=50.0, gap_ms=10.0, tokens=100)
TITLE = "What load generators report of a known server"
INTRO = f"""\
A server of ours (`runner/ruler/server.py`) sends the first token of each answer after
{PROMISE.ttft_ms:g} ms and then one every {PROMISE.gap_ms:g} ms, {PROMISE.tokens} tokens in all, and
says how late it was itself ("server late", first tokens, in the same run). Every tool sends the
same {ROUNDS} prompts for each stream, closed loop. Server and client have a core each; the row "two
processes" has our client on both, so that it shares one with the server. Errors are reported minus
asked minus the server's own lateness, in ms, each at its percentile. TPOT is the mean of
(last - first token) / (tokens - 1): GuideLLM's "ITL", AIPerf's "inter token latency". Throughput is
what the tool reports over streams x tokens / the answer's length. CPU time is of all the client's
processes, user and system, for each event received; what a tool needs to start is taken off (from
a run of one round at {BAR_STREAMS} streams beside the one of {ROUNDS}). "Said" is what our client
says of its own figures."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tool at one load."""

    tool: Tool
    streams: int
    processes: int
    reported: Reported | None
    late: Lateness | None
    trouble: str = ""

    @property
    def name(self) -> str:
        return self.tool.name + (", two processes" if self.processes == 2 else "")

    @property
    def error_p50_ms(self) -> float:
        """Distance from the truth of the p50 of TTFT; infinite where nothing was reported."""
        return self._error_ms("p50")

    @property
    def error_p99_ms(self) -> float:
        return self._error_ms("p99")

    def _error_ms(self, which: str) -> float:
        if self.reported is None or self.late is None:
            return float("inf")
        own = getattr(self.late.first_tokens, f"{which}_ms") or 0.0
        reported_ms = getattr(self.reported, f"ttft_{which}_ms")
        return float("inf") if reported_ms is None else reported_ms - PROMISE.ttft_ms - own

    @property
    def throughput_share(self) -> float:
        """Reported output tokens per second over the ideal."""
        ideal = self.streams * PROMISE.tokens / PROMISE.answer_s
        return self.reported.output_tokens_per_s / ideal if self.reported else 0.0

    @property
    def events(self) -> int:
        return self.reported.completed * PROMISE.tokens if self.reported else 0


def figures() -> Iterator[Figure | Text]:
    peers.install()
    tiny.prepare()
    rows: list[Row] = []
    start_s: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for streams in STREAMS:
            for tool in (OURS, *PEERS):
                row = _measure(tool, streams, ROUNDS, Path(folder))
                rows.append(row)
                if streams == BAR_STREAMS:
                    once = _measure(tool, streams, 1, Path(folder))
                    start_s[tool.name] = _start_cpu_s(once, row)
                print(f"  {row.name} at {streams}: {row.trouble or 'done'}", flush=True)
            if streams == STREAMS[-1]:
                rows.append(_measure(OURS, streams, ROUNDS, Path(folder), processes=2))
    yield Text(_markdown(rows, start_s))
    yield from _bars(rows, start_s)


def _cores() -> tuple[set[int], set[int]]:
    """For the client and for the server."""
    have = sorted(os.sched_getaffinity(0))
    return {have[0]}, {have[-1]}


def _measure(tool: Tool, streams: int, rounds: int, folder: Path, processes: int = 1) -> Row:
    client, server = _cores()
    prompts = [f"How long is piece {number}?" for number in range(streams * rounds)]
    with KnownDelayServer(PROMISE, cores=server) as known:
        load = Load(known.endpoint, prompts, streams, PROMISE.tokens, processes)
        cores = client if processes == 1 else client | server
        try:
            reported = peers.run(tool, load, folder / "run", cores=cores)
        except NotHad as error:
            return Row(tool, streams, processes, None, None, str(error))
        return Row(tool, streams, processes, reported, known.lateness())


def _start_cpu_s(once: Row, more: Row) -> float:
    """CPU time that does not grow with the events: the line through both runs, at 0 events."""
    if once.reported is None or more.reported is None or more.events <= once.events:
        return 0.0
    slope = (more.reported.cpu_s - once.reported.cpu_s) / (more.events - once.events)
    return max(0.0, once.reported.cpu_s - slope * once.events)


def _cpu_us(row: Row, start_s: dict[str, float]) -> float:
    """CPU time for each event received, without the tool's start, in microseconds."""
    if row.reported is None or not row.events:
        return float("inf")
    return 1e6 * (row.reported.cpu_s - start_s.get(row.tool.name, 0.0)) / row.events


def _markdown(rows: Sequence[Row], start_s: dict[str, float]) -> str:
    lines = [
        "| streams | tool | TTFT p50 | error | TTFT p99 | error | server late p50, p99 | TPOT "
        "| throughput | CPU µs an event | said |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        found, late = row.reported, row.late
        if found is None or late is None:
            lines.append(f"| {row.streams} | {row.name} | {row.trouble} |" + " |" * 8)
            continue
        first = late.first_tokens
        said = ", ".join(f"`{code}`" for code in found.reasons) or "believable"
        lines.append(
            f"| {row.streams} | {row.name} | {found.ttft_p50_ms:.2f} | {row.error_p50_ms:+.2f} "
            f"| {_p99(row)} "
            f"| {first.p50_ms or 0:.2f}, {first.p99_ms or 0:.2f} | {found.tpot_mean_ms:.3f} "
            f"| {100 * row.throughput_share:.1f} % | {_cpu_us(row, start_s):.1f} "
            f"| {said if row.tool is OURS else ''} |"
        )
    return "\n".join(lines)


def _p99(row: Row) -> str:
    """Its cell and its error's; we give no p99 of fewer than 100 requests."""
    p99_ms = None if row.reported is None else row.reported.ttft_p99_ms
    return "too few |" if p99_ms is None else f"{p99_ms:.2f} | {row.error_p99_ms:+.2f}"


def _bars(rows: Sequence[Row], start_s: dict[str, float]) -> Iterator[Figure]:
    ours = {row.streams: row for row in rows if row.tool is OURS and row.processes == 1}
    at = ours[BAR_STREAMS]
    place = f"{BAR_STREAMS} streams"
    yield Figure(f"ruler: TTFT p50 off by, {place}", abs(at.error_p50_ms), "ms", 1.0)
    yield Figure(f"ruler: TTFT p99 off by, {place}", abs(at.error_p99_ms), "ms", 10.0)
    tpot_ms = at.reported.tpot_mean_ms if at.reported else float("inf")
    yield Figure(f"ruler: TPOT off by, {place}", 100 * abs(tpot_ms / PROMISE.gap_ms - 1), "%", 0.5)
    yield Figure(
        f"ruler: throughput below the ideal, {place}", 100 * (1 - at.throughput_share), "%", 3.0
    )
    yield from _at_the_most_streams(rows)
    for streams, row in ours.items():
        others = [other for other in rows if other.streams == streams and other.reported]
        others = [other for other in others if other.tool is not OURS]
        if others:
            nearest = min(abs(other.error_p50_ms) for other in others)
            share = abs(row.error_p50_ms) / nearest
            yield Figure(f"ruler: our error over the nearest peer's, {streams}", share, "times", 1)
    vllm = next(row for row in rows if row.tool is VLLM and row.streams == BAR_STREAMS)
    if vllm.reported:
        share = _cpu_us(at, start_s) / _cpu_us(vllm, start_s)
        yield Figure(f"ruler: our CPU over vLLM's, {place}", share, "times", 1 / 3)


def _at_the_most_streams(rows: Sequence[Row]) -> Iterator[Figure]:
    """Within 10 ms, or the trial says itself that it may not be believed."""
    row = next(row for row in rows if row.processes == 2)
    marked = row.reported is not None and bool(row.reported.reasons)
    name = f"ruler: TTFT p50 off by, {row.streams}, two processes"
    yield Figure(name + (", marked" if marked else ""), abs(row.error_p50_ms), "ms",
                 None if marked else 10.0)  # fmt: skip
