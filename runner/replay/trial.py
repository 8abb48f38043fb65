"""One trial: send every request once, then count. Also the untimed greedy pass."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

from calculator.measurement import ClientHealth, Measurement, Outcome
from runner.engines.base import Endpoint
from runner.replay import schedule
from runner.replay.client import NO_SERVER, Answer, Client, End
from runner.replay.count import REFUSING_STATUS, Counted, count
from runner.replay.health import NS_PER_S, SelfWatch, WatchedSelector
from runner.traffic.request import Kind, NormalisedRequest

OnProgress = Callable[[int, int], None]
"""Called with (requests finished, requests in all), at most once a second and at the end."""
ShouldStop = Callable[[], bool]
"""Asked about five times a second, on the calling thread: it must answer at once."""

GONE_AFTER = 5
"""Connections in a row that failed before the server may be called gone."""
GIVE_UP_AFTER_S = 3.0
"""And for how long they failed: a server that restarts refuses for a moment."""
PAUSE_AFTER_REFUSAL_S = 0.1
"""A refused slot waits this long: one refusal must not burn the whole sample in a second."""
PAUSE_BETWEEN_PROBES_S = 0.5
"""Where connections fail, one slot tries this often and the others wait."""
PROGRESS_EVERY_S = 1.0
HELD_BYTES_LIMIT = 256 * 2**20
"""Raw answers kept until the trial's end; beyond this, finished ones are counted during it."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one trial measured, in the order in which requests were sent."""

    measurements: tuple[Measurement, ...]
    duration_s: float
    """From the trial's start to the end of its last answer."""
    client: ClientHealth
    itl_ms: tuple[float, ...] | None = None
    """Inter-token latencies over all successful answers: each gap between token-bearing events,
    shared out over the tokens that the later event carried. None where the server did not say
    how many tokens each event carried."""


class ReplayInterrupted(Exception):
    """The trial did not reach its end. ``result`` holds the requests that did."""

    def __init__(self, reason: str, result: ReplayResult) -> None:
        super().__init__(reason)
        self.reason = reason
        self.result = result


class ReplayStopped(ReplayInterrupted):
    """``should_stop`` said so; requests in flight were cancelled and are not in the result."""


class ServerGone(ReplayInterrupted):
    """The server takes no connections any more, or answers nothing; the rest was not sent."""


@dataclass(frozen=True, slots=True)
class _Call:
    request: NormalisedRequest
    kind: Kind
    body: bytes


class _Stop(Exception):
    pass


class _Gone(Exception):
    pass


def replay(
    endpoint: Endpoint,
    requests: Sequence[NormalisedRequest],
    *,
    concurrency: int,
    cache_salt: str | None = None,
    max_output_tokens: int | None = None,
    timeout_s: float = 300.0,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
    usage_per_event: bool = False,
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> ReplayResult:
    """Send ``requests`` in their order with ``concurrency`` of them in flight (a closed loop).

    Blocks, with an event loop of its own. ``timeout_s`` limits each request, send to end.
    ``cache_salt`` is sent on when given (vLLM keeps prefix caches of different salts apart).
    ``usage_per_event`` asks the server to say its token count with each event (vLLM's
    ``continuous_usage_stats``; a server that does not know it may refuse), for ITL.
    Raises ReplayStopped, or ServerGone when no connection came about for ``give_up_after_s``;
    or twice the requests in flight in a row got no byte in ``timeout_s``;
    both carry what was measured until then. Raises ValueError for arguments that make no trial.
    """
    options = {"include_usage": True}
    if usage_per_event:
        options["continuous_usage_stats"] = True
    extra: dict[str, Any] = {"stream": True, "stream_options": options}
    if cache_salt is not None:
        extra["cache_salt"] = cache_salt
    calls = [
        _call(request, request.body(endpoint.model, max_output_tokens=max_output_tokens), extra)
        for request in requests
    ]
    trial = _Trial(
        endpoint, calls, concurrency, timeout_s, on_progress, should_stop, give_up_after_s
    )
    try:
        trial.run()
    except _Stop:
        raise ReplayStopped("the replay was asked to stop", trial.result()) from None
    except _Gone:
        raise ServerGone(trial.gone_reason, trial.result()) from None
    return trial.result()


def greedy_token_ids(
    endpoint: Endpoint,
    requests: Sequence[NormalisedRequest],
    *,
    max_tokens: int,
    concurrency: int,
    timeout_s: float,
    cache_salt: str | None = None,
    should_stop: ShouldStop | None = None,
) -> dict[str, list[int]]:
    """Greedy answers as token ids by request id, for the output check. Untimed, not streamed.

    A request whose answer failed, or whose server returns no ids, is missing from the result.
    Raises ReplayStopped or ServerGone, as ``replay`` does.
    """
    extra: dict[str, Any] = {"temperature": 0, "n": 1, "return_token_ids": True, "stream": False}
    if cache_salt is not None:
        extra["cache_salt"] = cache_salt
    calls = []
    for request in requests:
        body = request.body(endpoint.model, max_output_tokens=max_tokens)
        # Greedy already, and vLLM answers 400 to these two while it speculates.
        for name in ("top_p", "top_k", "seed", "stream_options", "min_p", "logit_bias"):
            body.pop(name, None)
        calls.append(_call(request, body, extra))
    trial = _Trial(endpoint, calls, concurrency, timeout_s, None, should_stop)
    try:
        trial.run()
    except _Stop:
        raise ReplayStopped("the output check was asked to stop", trial.result()) from None
    except _Gone:
        raise ServerGone(trial.gone_reason, trial.result()) from None
    found = {calls[answer.sequence].request.id: _token_ids(answer) for answer in trial.answers}
    return {request_id: ids for request_id, ids in found.items() if ids is not None}


def _call(request: NormalisedRequest, body: dict[str, Any], extra: Mapping[str, Any]) -> _Call:
    document = json.dumps({**body, **extra}).encode()
    return _Call(request, request.kind, document)


def _token_ids(answer: Answer) -> list[int] | None:
    if answer.status != 200:
        return None
    try:
        document = json.loads(b"".join(packet for _, packet in answer.packets))
        ids = document["choices"][0]["token_ids"]
    except (ValueError, LookupError, TypeError):
        return None
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        return None
    return ids


class _Trial:
    def __init__(
        self,
        endpoint: Endpoint,
        calls: Sequence[_Call],
        concurrency: int,
        timeout_s: float,
        on_progress: OnProgress | None,
        should_stop: ShouldStop | None,
        give_up_after_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        if not calls or concurrency < 1:
            raise ValueError("A trial needs at least one request and one request in flight.")
        if len({call.request.id for call in calls}) < len(calls):
            raise ValueError("A trial must not hold two requests of one id.")
        self.answers: list[Answer] = []
        self._counted: list[Counted] = []
        self._held_bytes = 0
        self._calls = calls
        self._endpoint = endpoint
        self._schedule = schedule.ClosedLoop(concurrency, len(calls))
        self._connections = min(concurrency, len(calls))
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._should_stop = should_stop
        self._selector = WatchedSelector()
        self._watch = SelfWatch(self._selector)
        self._origin_ns = self._reported_ns = 0
        self._finished = self._reported = 0
        self._give_up_after_s = give_up_after_s
        self._failed_in_a_row = 0
        self._failing_since_ns = 0
        self._silent_in_a_row = 0
        self._most_silent = 2 * concurrency
        self._probing = asyncio.Lock()

    @property
    def gone_reason(self) -> str:
        if self._hangs:
            return (
                f"The server takes requests and answers none: {self._silent_in_a_row} in a row "
                f"got not one byte in {self._timeout_s:g} s each."
            )
        return (
            f"The server stopped taking connections: {self._failed_in_a_row} requests in a row "
            f"got none, after {self._finished - self._failed_in_a_row} that did."
        )

    @property
    def _failing(self) -> bool:
        return self._failed_in_a_row >= GONE_AFTER

    @property
    def _hangs(self) -> bool:
        return self._silent_in_a_row >= self._most_silent

    @property
    def _gone(self) -> bool:
        if self._hangs:
            return True
        failing_ns = perf_counter_ns() - self._failing_since_ns
        return self._failing and failing_ns >= self._give_up_after_s * NS_PER_S

    def run(self) -> None:
        def new_loop() -> asyncio.AbstractEventLoop:
            return asyncio.SelectorEventLoop(self._selector)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        async with Client(self._endpoint, timeout_s=self._timeout_s) as client:
            await client.open_connections(self._connections)
            with _no_garbage_collection():
                self._origin_ns = self._reported_ns = self._watch.begin()
                try:
                    await schedule.run(
                        self._schedule,
                        lambda sequence, due_ns: self._send(client, sequence, due_ns),
                        origin_ns=self._origin_ns,
                        tick=self._tick,
                    )
                finally:
                    self._watch.end()
            self._report_progress()
            if self._failing or self._hangs:  # to the very end, however short that was
                raise _Gone

    async def _send(self, client: Client, sequence: int, due_ns: int) -> int | None:
        if self._failing:
            async with self._probing:  # one slot tries, the others wait here
                if self._failing:
                    return await self._attempt(client, sequence, due_ns, PAUSE_BETWEEN_PROBES_S)
        return await self._attempt(client, sequence, due_ns, PAUSE_AFTER_REFUSAL_S)

    async def _attempt(
        self, client: Client, sequence: int, due_ns: int, pause_s: float
    ) -> int | None:
        answer = Answer(sequence, due_ns)
        call = self._calls[sequence]
        self._watch.sent()
        try:
            await client.send(call.kind, call.body, answer)
        finally:
            self._watch.finished()
        self._keep(answer)
        if answer.end not in NO_SERVER and answer.status not in REFUSING_STATUS:
            return answer.done_ns
        await asyncio.sleep(pause_s)
        return None if self._gone else perf_counter_ns()

    def _keep(self, answer: Answer) -> None:
        self._finished += 1
        silent = answer.end is End.TIMEOUT and answer.status is None
        self._silent_in_a_row = self._silent_in_a_row + 1 if silent else 0
        if answer.end not in NO_SERVER:
            self._failed_in_a_row = 0
        else:
            self._failed_in_a_row += 1
            if self._failed_in_a_row == 1:
                self._failing_since_ns = answer.sent_ns
        self.answers.append(answer)
        self._held_bytes += answer.size_bytes
        if self._held_bytes > HELD_BYTES_LIMIT:
            self._count_held()

    def _count_held(self) -> None:
        for answer in self.answers:
            request = self._calls[answer.sequence].request
            self._counted.append(count(answer, request, self._origin_ns))
        self.answers.clear()
        self._held_bytes = 0

    def _tick(self) -> None:
        if self._gone:
            raise _Gone
        if self._should_stop and self._should_stop():
            raise _Stop
        if perf_counter_ns() - self._reported_ns >= PROGRESS_EVERY_S * NS_PER_S:
            self._report_progress()

    def _report_progress(self) -> None:
        self._reported_ns = perf_counter_ns()
        if self._on_progress and self._finished > self._reported:
            self._reported = self._finished
            self._on_progress(self._finished, len(self._calls))

    def result(self) -> ReplayResult:
        self._count_held()
        counted = sorted(self._counted, key=lambda one: one.measurement.sequence)
        measurements = tuple(one.measurement for one in counted)
        last_ns = max((one.done_ns for one in measurements), default=0)
        return ReplayResult(
            measurements=measurements,
            duration_s=last_ns / NS_PER_S,
            client=self._watch.report([one.lateness_ms for one in measurements]),
            itl_ms=_inter_token_ms(counted),
        )


def _inter_token_ms(counted: Sequence[Counted]) -> tuple[float, ...] | None:
    """All inter-token latencies, or None if one successful answer does not tell its tokens."""
    gaps: list[float] = []
    for one in counted:
        if one.measurement.outcome is not Outcome.OK:
            continue
        events = one.token_events
        for (before_ns, before), (after_ns, after) in pairwise(events):
            if before is None or after is None or after <= before:
                return None
            share_ms = (after_ns - before_ns) / 1e6 / (after - before)
            gaps.extend([share_ms] * (after - before))
    return tuple(gaps) or None


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A full collection over a large heap stalls the loop for tens of ms, so it waits."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
