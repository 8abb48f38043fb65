"""May this trial be believed? Each answer "no" is a code; the table says what it means."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from calculator.columns import TrialColumns
from calculator.measurement import NS_PER_S
from calculator.steady import gets_slower, queue_grows
from calculator.summary import summarise

MOST_OWN_SHARE = 0.02
"""Of the median TTFT: the client's own error, by its probe or by the known-delay server."""
MOST_OWN_TAIL_SHARE = 0.10
"""Of the p99 of TTFT. Both tails are made by few values, so 2 % would be noise."""
MOST_OVERHEAD = 0.05
"""Of the trial's time, where nothing was probed."""
MOST_FAILED = 0.10
LEAST_IN_FLIGHT = 0.60
LITTLE_TOLERANCE = 0.05

REASONS: dict[str, str] = {
    "client_saturated": (
        "The load generator was the bottleneck: by its probe, or against the known-delay server "
        "before the run, it was off by more than 2 % of the median time to first token, or by a "
        "tenth of its p99. Lower the load, give it a core of its own, or more processes."
    ),
    "sends_late": (
        "Requests went out late by more than 5 ms and a tenth of the time to first token. "
        "Something else kept the measuring machine busy."
    ),
    "load_not_reached": (
        "The requests in flight never reached what the load level asks for, or on average were "
        "less than 60 % of it, so this is another load. Use more requests for this level."
    ),
    "over_capacity": (
        "Requests arrived faster than they were answered and the queue grew: no latency of this "
        "level means anything. Lower the rate."
    ),
    "gets_slower": (
        "The last third of the answers was slower than the first by more than a quarter, and not "
        "by chance: the server was not in a steady state."
    ),
    "littles_law": (
        "Time stamps contradict each other: more request time passed than the requests in "
        "flight could have spent (Little's law)."
    ),
    "too_many_failures": "More than a tenth of the requests failed: latency says nothing then.",
    "nothing_completed": "No request was completed.",
    "tokens_unknown": (
        "The server did not say how many tokens it wrote for more than a tenth of the answers."
    ),
    "foreign_traffic": "The server finished more requests than were ours: somebody else used it.",
    "counters_reset": "The engine's counters fell during the trial: it was restarted.",
}


def trial_reasons(trial: TrialColumns) -> list[str]:
    """Codes of REASONS why ``trial`` may not be believed; empty when it may.

    Absent counters and absent client figures are no reason: they leave their check undone.
    """
    return list(dict.fromkeys((*trial.invalid_reasons, *_reasons(trial))))


def could_carry(trial: TrialColumns) -> int | None:
    """About how many requests in flight the client could have measured, of a saturated trial.

    Its error is taken as proportional to the load. None: it was not the bottleneck, its error was
    not looked at, or it could not even have carried one.
    """
    excess = max((used / allowed for used, allowed in _own_shares(trial)), default=0.0)
    load = math.floor(trial.concurrency / excess) if excess > 1 else 0
    return load or None


def _reasons(trial: TrialColumns) -> Iterator[str]:
    sent, completed = trial.sent, int(trial.ok.sum())
    if not completed:
        yield "nothing_completed"
        return
    if (sent - completed) / sent > MOST_FAILED:
        yield "too_many_failures"
    unknown = int(np.isnan(trial.completed("output_tokens")).sum())
    if unknown / completed > MOST_FAILED:
        yield "tokens_unknown"
    yield from _load_reasons(trial)
    if gets_slower(trial.completed("ttft_ms")) or gets_slower(trial.completed("tpot_ms")):
        yield "gets_slower"
    yield from _client_reasons(trial)
    finished = None if trial.counters is None else trial.counters.requests_finished
    if finished is not None and finished > sent:
        yield "foreign_traffic"


def _load_reasons(trial: TrialColumns) -> Iterator[str]:
    """Was it the load that was asked for? A closed loop of N holds N requests, never more."""
    if trial.open_loop:
        sends, ends = np.sort(trial.scheduled_ns), np.sort(trial.done_ns)
        if queue_grows(sends, ends, int(sends[-1])):
            yield "over_capacity"
        return
    in_flight = mean_in_flight(trial)
    if in_flight is None or in_flight > trial.concurrency * (1 + LITTLE_TOLERANCE):
        yield "littles_law"
    asked = min(trial.concurrency, trial.sent)
    reached = None if trial.client is None else trial.client.peak_in_flight
    too_few = in_flight is not None and in_flight < LEAST_IN_FLIGHT * asked
    if too_few or (reached is not None and reached < asked):
        yield "load_not_reached"


def _client_reasons(trial: TrialColumns) -> Iterator[str]:
    client = trial.client
    if client is None:
        return
    unprobed = client.probe_p50_ms is None and client.overhead_share > MOST_OVERHEAD
    if unprobed or any(used > allowed for used, allowed in _own_shares(trial)):
        yield "client_saturated"
    ttft_ms = summarise(trial.completed("ttft_ms")).p50
    if client.lateness_p99_ms > max(5.0, 0.1 * (ttft_ms or 0.0)):
        yield "sends_late"


def _own_shares(trial: TrialColumns) -> Iterator[tuple[float, float]]:
    """The client's own share of the median and of the p99 of TTFT, and how much may be."""
    client = trial.client
    if client is None:
        return
    found = summarise(trial.completed("ttft_ms"))
    for ttft_ms, allowed, errors_ms in (
        (found.p50, MOST_OWN_SHARE, (client.probe_p50_ms, client.ruler_ttft_p50_error_ms)),
        (found.p99, MOST_OWN_TAIL_SHARE, (client.probe_p99_ms, client.ruler_ttft_p99_error_ms)),
    ):
        for error_ms in errors_ms:
            if ttft_ms and error_ms is not None:
                yield error_ms / ttft_ms, allowed


def mean_in_flight(trial: TrialColumns) -> float | None:
    """Requests in flight, as a mean over the trial: L = lambda W.

    J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9 (1961).
    """
    if trial.duration_s <= 0:
        return None
    return int((trial.done_ns - trial.sent_ns).sum()) / NS_PER_S / trial.duration_s
