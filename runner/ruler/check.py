"""How far off is our own load generator, at the loads that are planned? It measures a known truth.

What the server itself was late by is taken off, so what is left is ours: late stamps, and the way
of bytes through this machine's loop-back in both directions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from calculator.measurement import ClientHealth
from calculator.summary import summarise
from runner.replay import replay
from runner.ruler.process import KnownDelayServer, Lateness, Promise
from runner.traffic.request import NormalisedRequest

PROMISE = Promise(ttft_ms=50.0, gap_ms=10.0, tokens=50)
"""100 tokens a second for each stream: more than most engines give, so the error is no less than
it will be."""
ROUNDS = 4
"""Answers of each stream: about 2 s a level, and a p99 from 25 streams on."""


@dataclass(frozen=True, slots=True)
class RulerCheck:
    """What the load generator reported of a known server at one load. None: nothing was measured
    (a p99: too few requests for one)."""

    concurrency: int
    processes: int
    requests: int
    asked_ttft_ms: float
    ttft_p50_error_ms: float | None
    """Reported - asked - the server's own lateness; the p50 of each."""
    ttft_p99_error_ms: float | None
    tpot_error_share: float | None
    """Reported median TPOT / asked - 1."""
    server_late_p99_ms: float | None
    """Of the first tokens, as the server says."""

    def added_to(self, client: ClientHealth) -> ClientHealth:
        """``client`` with these errors, without their signs."""
        p50_ms, p99_ms = self.ttft_p50_error_ms, self.ttft_p99_error_ms
        return replace(
            client,
            ruler_ttft_p50_error_ms=None if p50_ms is None else abs(p50_ms),
            ruler_ttft_p99_error_ms=None if p99_ms is None else abs(p99_ms),
        )


CheckRuler = Callable[[Collection[int], Callable[[], bool]], Collection[RulerCheck]]


def check(
    levels: Iterable[int],
    *,
    should_stop: Callable[[], bool] | None = None,
    processes: int = 1,
    promise: Promise = PROMISE,
    rounds: int = ROUNDS,
) -> list[RulerCheck]:
    """Replay against the known-delay server with each of ``levels`` requests in flight.

    Takes about ``rounds`` x ``promise.answer_s`` a level. Raises ReplayStopped when
    ``should_stop`` says so, and OSError where no server could be started.
    """
    with KnownDelayServer(promise) as server:
        return [_one_level(server, level, processes, rounds, should_stop) for level in levels]


_known: dict[int, RulerCheck] = {}
_turn = threading.Lock()


def check_once(levels: Collection[int], should_stop: Callable[[], bool]) -> list[RulerCheck]:
    """``check``, each level once in the life of this process. Raises as ``check`` does."""
    with _turn:
        missing = sorted(set(levels) - _known.keys())
        if missing:
            found = check(missing, should_stop=should_stop)
            _known.update({one.concurrency: one for one in found})
        return [_known[level] for level in sorted(set(levels))]


def _one_level(
    server: KnownDelayServer,
    concurrency: int,
    processes: int,
    rounds: int,
    should_stop: Callable[[], bool] | None,
) -> RulerCheck:
    server.forget_lateness()
    result = replay(
        server.endpoint,
        _requests(concurrency * rounds, server.promise.tokens),
        concurrency=concurrency,
        processes=processes,
        timeout_s=30.0,
        should_stop=should_stop,
    )
    late = server.lateness()
    good = [one for one in result.measurements if one.ok]
    ttft = summarise([one.ttft_ms for one in good])
    tpot_ms = summarise([one.tpot_ms for one in good]).p50
    p50_error_ms, p99_error_ms = _errors_ms(ttft.p50, ttft.p99, server.promise, late)
    return RulerCheck(
        concurrency=concurrency,
        processes=result.client.processes,
        requests=len(good),
        asked_ttft_ms=server.promise.ttft_ms,
        ttft_p50_error_ms=p50_error_ms,
        ttft_p99_error_ms=p99_error_ms,
        tpot_error_share=None if tpot_ms is None else tpot_ms / server.promise.gap_ms - 1,
        server_late_p99_ms=late.first_tokens.p99_ms,
    )


def _errors_ms(
    p50_ms: float | None, p99_ms: float | None, promise: Promise, late: Lateness
) -> tuple[float | None, float | None]:
    first = late.first_tokens
    errors = (
        None if reported is None or own is None else reported - promise.ttft_ms - own
        for reported, own in ((p50_ms, first.p50_ms), (p99_ms, first.p99_ms))
    )
    p50_error_ms, p99_error_ms = errors
    return p50_error_ms, p99_error_ms


def _requests(count: int, tokens: int) -> list[NormalisedRequest]:
    return [
        NormalisedRequest(
            id=f"ruler {number}",
            kind="completion",
            line=number + 1,
            prompt=f"How long is piece {number}?",
            max_output_tokens=tokens,
        )
        for number in range(count)
    ]
