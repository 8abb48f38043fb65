"""May this trial be believed? Each answer "no" is a code; the table says what it means."""

from __future__ import annotations

from collections.abc import Iterator

from calculator.measurement import NS_PER_S, Measurement, TrialRecord
from calculator.summary import summarise

MOST_OVERHEAD = 0.05
MOST_FAILED = 0.10
LEAST_IN_FLIGHT = 0.60
LITTLE_TOLERANCE = 0.05

REASONS: dict[str, str] = {
    "client_saturated": (
        "The load generator itself was busy for more than 5 % of the trial, so the times are "
        "partly its own. Lower the load or give it a core of its own."
    ),
    "sends_late": (
        "Requests went out late by more than 5 ms and a tenth of the time to first token. "
        "Something else kept the measuring machine busy."
    ),
    "load_not_reached": (
        "On average less than 60 % of the requests that the load level asks for were in flight, "
        "so this is another load. Use more requests for this level."
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


def trial_reasons(trial: TrialRecord) -> list[str]:
    """Codes of REASONS why ``trial`` may not be believed; empty when it may.

    Absent counters and absent client figures are no reason: they leave their check undone.
    """
    return list(dict.fromkeys((*trial.invalid_reasons, *_reasons(trial))))


def _reasons(trial: TrialRecord) -> Iterator[str]:
    completed = [m for m in trial.measurements if m.ok]
    if not completed:
        yield "nothing_completed"
        return
    sent = len(trial.measurements)
    if (sent - len(completed)) / sent > MOST_FAILED:
        yield "too_many_failures"
    unknown = sum(m.output_tokens is None for m in completed)
    if unknown / len(completed) > MOST_FAILED:
        yield "tokens_unknown"
    if not _little_holds(trial):
        yield "littles_law"
    in_flight = mean_in_flight(trial)
    if in_flight is not None and in_flight < LEAST_IN_FLIGHT * min(trial.concurrency, sent):
        yield "load_not_reached"
    yield from _client_reasons(trial, completed)
    finished = None if trial.counters is None else trial.counters.requests_finished
    if finished is not None and finished > sent:
        yield "foreign_traffic"


def _client_reasons(trial: TrialRecord, completed: list[Measurement]) -> Iterator[str]:
    client = trial.client
    if client is None:
        return
    if client.overhead_share > MOST_OVERHEAD:
        yield "client_saturated"
    ttft_ms = summarise(m.ttft_ms for m in completed).p50
    if client.lateness_p99_ms > max(5.0, 0.1 * (ttft_ms or 0.0)):
        yield "sends_late"


def mean_in_flight(trial: TrialRecord) -> float | None:
    """Requests in flight, as a mean over the trial: L = lambda W.

    J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9 (1961).
    """
    if trial.duration_s <= 0:
        return None
    return sum(m.done_ns - m.sent_ns for m in trial.measurements) / NS_PER_S / trial.duration_s


def _little_holds(trial: TrialRecord) -> bool:
    """A closed loop of N can't hold more than N requests."""
    in_flight = mean_in_flight(trial)
    return in_flight is not None and in_flight <= trial.concurrency * (1 + LITTLE_TOLERANCE)
