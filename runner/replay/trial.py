"""One trial: send every request once, then count."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calculator.measurement import NS_PER_S, ClientHealth, Measurement
from runner.arrivals import ClosedLoop, Load, OpenLoop
from runner.engines.base import Endpoint
from runner.replay.gone import GIVE_UP_AFTER_S
from runner.replay.recount import recount
from runner.replay.sender import Call, Ending, Job, Sender, Sent
from runner.replay.worker import send_with
from runner.traffic.request import NormalisedRequest

OnProgress = Callable[[int, int], None]
"""Called with (requests finished, requests in all), at most once a second and at the end."""
ShouldStop = Callable[[], bool]
"""Asked about five times a second, on the calling thread: it must answer at once."""


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


class OverCapacity(ReplayInterrupted):
    """In an open loop the queue grew without bound; the rest was not sent."""


class NoSpace(ReplayInterrupted):
    """There was no space on the disk to keep finished answers until the trial's end."""


_INTERRUPTED = {
    Ending.STOPPED: ReplayStopped,
    Ending.GONE: ServerGone,
    Ending.OVER_CAPACITY: OverCapacity,
    Ending.NO_SPACE: NoSpace,
}


def replay(
    endpoint: Endpoint,
    requests: Sequence[NormalisedRequest],
    *,
    concurrency: int | None = None,
    arrivals: OpenLoop | None = None,
    processes: int = 1,
    cache_salt: str | None = None,
    max_output_tokens: int | None = None,
    timeout_s: float = 300.0,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
    usage_per_event: bool = False,
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> ReplayResult:
    """Send ``requests`` in their order: with ``concurrency`` of them in flight (a closed loop), or
    each when ``arrivals`` says (an open loop; one arrival for each request).

    Blocks, with an event loop of its own, or with ``processes`` of them where one core can't carry
    the load. ``timeout_s`` limits each request, send to end. ``cache_salt`` is sent on when given
    (vLLM keeps prefix caches of different salts apart). ``usage_per_event`` asks the server to say
    its token count with each event (vLLM's ``continuous_usage_stats``; a server that does not know
    it may refuse), for ITL.

    Raises ReplayStopped; ServerGone when no connection came about for ``give_up_after_s``, or
    twice the requests in flight in a row got no byte in ``timeout_s``; OverCapacity; NoSpace. All
    carry what was measured until then. Raises ValueError for arguments that make no trial.
    """
    options = {"include_usage": True}
    if usage_per_event:
        options["continuous_usage_stats"] = True
    extra: dict[str, Any] = {"stream": True, "stream_options": options}
    if cache_salt is not None:
        extra["cache_salt"] = cache_salt
    bodies = [
        request.body(endpoint.model, max_output_tokens=max_output_tokens) for request in requests
    ]
    load = _load(concurrency, arrivals, len(requests))
    job = _job(endpoint, requests, bodies, extra, load, timeout_s, give_up_after_s)

    def on_finished(finished: int) -> None:
        if on_progress:
            on_progress(finished, len(requests))

    if processes > 1:
        sent = send_with(processes, job, should_stop=should_stop, on_finished=on_finished)
    else:
        sender = Sender(job, should_stop=should_stop, on_finished=on_finished)
        sent = sender.result(*sender.run())
    result = _result(sent, recount(sent.counted, endpoint, should_stop))
    if sent.ending is not Ending.COMPLETE:
        raise _INTERRUPTED[sent.ending](sent.reason, result)
    return result


def _load(concurrency: int | None, arrivals: OpenLoop | None, requests: int) -> Load:
    if arrivals is not None:
        if concurrency is not None:
            raise ValueError("A trial is a closed loop or an open one: not both.")
        if len(arrivals.due_ns) != requests:
            raise ValueError("A trial in an open loop needs one arrival for each request.")
        return arrivals
    if concurrency is None or concurrency < 1:
        raise ValueError("A trial needs at least one request and one request in flight.")
    return ClosedLoop(concurrency)


def _job(
    endpoint: Endpoint,
    requests: Sequence[NormalisedRequest],
    bodies: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Any],
    load: Load,
    timeout_s: float,
    give_up_after_s: float,
) -> Job:
    if not requests:
        raise ValueError("A trial needs at least one request and one request in flight.")
    if len({request.id for request in requests}) < len(requests):
        raise ValueError("A trial must not hold two requests of one id.")
    calls = [
        Call(
            sequence, request.id, request.category, request.kind,
            json.dumps({**body, **extra}).encode(),
        )
        for sequence, (request, body) in enumerate(zip(requests, bodies, strict=True))
    ]  # fmt: skip
    return Job(endpoint, calls, load, timeout_s, give_up_after_s)


def _result(sent: Sent, measurements: Sequence[Measurement]) -> ReplayResult:
    ordered = tuple(sorted(measurements, key=lambda one: one.sequence))
    return ReplayResult(
        measurements=ordered,
        duration_s=max((one.done_ns for one in ordered), default=0) / NS_PER_S,
        client=sent.health,
        itl_ms=_inter_token_ms(ordered),
    )


def _inter_token_ms(measurements: Sequence[Measurement]) -> tuple[float, ...] | None:
    """All inter-token latencies, or None if one successful answer does not tell its tokens."""
    gaps_ms = []
    for one in measurements:
        if not one.ok or len(one.chunk_gaps_us) < 2:
            continue
        if not one.chunk_tokens:
            return None
        tokens = np.array(one.chunk_tokens[1:])
        gaps_ms.append(np.repeat(np.array(one.chunk_gaps_us[1:]) / 1000 / tokens, tokens))
    return tuple(np.concatenate(gaps_ms).tolist()) if gaps_ms else None
