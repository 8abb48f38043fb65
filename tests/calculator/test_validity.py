"""Each reason why a trial is not believed, with a trial that has it and one that just has not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from calculator.columns import columns_of
from calculator.measurement import Measurement, Outcome, SpeculationCounters, TrialRecord
from calculator.validity import REASONS, could_carry, trial_reasons
from tests.calculator.trials import CLIENT, NS, change, trial


def reasons(record: TrialRecord) -> list[str]:
    return trial_reasons(columns_of(record))


def carried(record: TrialRecord) -> int | None:
    return could_carry(columns_of(record))


def good(requests: int = 40, concurrency: int = 1) -> TrialRecord:
    return trial("baseline", 0, 0, requests=requests, concurrency=concurrency)


def client(record: TrialRecord, **figures: float) -> TrialRecord:
    return replace(record, client=replace(CLIENT, **figures))  # type: ignore[arg-type]


def failed(record: TrialRecord, count: int) -> TrialRecord:
    for index in range(count):
        record = change(record, index, outcome=Outcome.CUT)
    return record


def uncounted(record: TrialRecord, count: int) -> TrialRecord:
    for index in range(count):
        record = change(record, index, output_tokens=None)
    return record


def slowing(record: TrialRecord, most: float) -> TrialRecord:
    """Every TTFT longer than the one before, the last ``most`` times the first."""
    measured = [
        replace(
            m,
            first_token_ns=m.sent_ns + round(50 * NS * (1 + (most - 1) * m.sequence / 39)),
        )
        for m in record.measurements
    ]
    return replace(record, measurements=tuple(measured))


def open_loop(served_per_s: float, arrive_per_s: float = 10.0, count: int = 400) -> TrialRecord:
    """A server that answers one at a time, and requests that come evenly."""
    measured = []
    free_ns = 0
    for index in range(count):
        due_ns = round(index / arrive_per_s * 1000 * NS)
        free_ns = max(due_ns, free_ns) + round(1000 / served_per_s * NS)
        measured.append(
            Measurement(
                f"r{index}", index, None, Outcome.OK, due_ns, due_ns, free_ns, free_ns, free_ns,
                free_ns, 5, 0, 1, 1, 1, "stop", open_loop=True,
            )
        )  # fmt: skip
    return TrialRecord("baseline", 0, 0, 1, free_ns / 1e9, tuple(measured), None, CLIENT)


BROKEN: dict[str, tuple[Callable[[], TrialRecord], Callable[[], TrialRecord]]] = {
    "client_saturated": (
        lambda: client(good(), probe_p50_ms=1.2, probe_p99_ms=3),
        lambda: client(good(), probe_p50_ms=0.8, probe_p99_ms=3, overhead_share=0.3),
    ),
    "sends_late": (
        lambda: client(good(), lateness_p99_ms=5.5),
        lambda: client(good(), lateness_p99_ms=4.9),
    ),
    "load_not_reached": (
        lambda: client(good(concurrency=8), peak_in_flight=7),
        lambda: client(good(concurrency=8), peak_in_flight=8),
    ),
    "over_capacity": (lambda: open_loop(6.0), lambda: open_loop(11.0)),
    "gets_slower": (lambda: slowing(good(), 2.0), lambda: slowing(good(), 1.2)),
    "littles_law": (
        lambda: replace(good(), duration_s=good().duration_s / 1.1),
        lambda: replace(good(), duration_s=good().duration_s / 1.04),
    ),
    "too_many_failures": (lambda: failed(good(), 5), lambda: failed(good(), 4)),
    "nothing_completed": (lambda: failed(good(), 40), lambda: failed(good(), 4)),
    "tokens_unknown": (lambda: uncounted(good(), 5), lambda: uncounted(good(), 4)),
    "foreign_traffic": (
        lambda: replace(good(), counters=SpeculationCounters(requests_finished=41)),
        lambda: replace(good(), counters=SpeculationCounters(requests_finished=40)),
    ),
    "counters_reset": (
        lambda: replace(good(), invalid_reasons=("counters_reset",)),
        lambda: replace(good(), counters=None),
    ),
}


@pytest.mark.parametrize("code", REASONS)
def test_a_reason_is_given_where_it_holds_and_only_there(code: str) -> None:
    broken, sound = BROKEN[code]
    assert code in reasons(broken())
    assert reasons(sound()) == []


def test_a_trial_of_failures_only_says_nothing_else() -> None:
    assert reasons(failed(good(), 40)) == ["nothing_completed"]


def test_the_tail_is_probed_where_there_is_one() -> None:
    many, few = good(requests=120), good(requests=40)
    late = {"probe_p50_ms": 0.1, "probe_p99_ms": 9.0}
    assert reasons(client(many, **late)) == ["client_saturated"]
    assert reasons(client(few, **late)) == []  # no p99 is given for these either


def test_the_ruler_s_own_error_counts_as_the_probe_s_does() -> None:
    record = good(requests=120)
    assert reasons(client(record, ruler_ttft_p50_error_ms=1.2)) == ["client_saturated"]
    assert reasons(client(record, ruler_ttft_p50_error_ms=0.8)) == []
    assert reasons(client(record, ruler_ttft_p99_error_ms=9.0)) == ["client_saturated"]
    assert reasons(client(record, ruler_ttft_p99_error_ms=3.0)) == []
    assert reasons(client(good(), ruler_ttft_p99_error_ms=9.0)) == []  # it gives no p99
    off = {"probe_p50_ms": 0.1, "ruler_ttft_p50_error_ms": 1.2}
    assert reasons(client(record, **off)) == ["client_saturated"]


def test_without_a_probe_the_loop_s_own_time_decides() -> None:
    assert reasons(client(good(), overhead_share=0.06)) == ["client_saturated"]
    assert reasons(client(good(), overhead_share=0.04)) == []
    assert reasons(replace(good(), client=None)) == []


def test_the_load_that_could_have_been_carried() -> None:
    record = good(concurrency=64)
    assert carried(client(record, probe_p50_ms=4.0)) == 16  # 8 % of 50 ms, 2 % allowed
    assert carried(client(record, probe_p50_ms=0.5)) is None
    assert carried(client(good(), probe_p50_ms=4.0)) is None
    assert carried(client(record, overhead_share=0.5)) is None
    assert carried(client(record, probe_p50_ms=0.1, ruler_ttft_p50_error_ms=4.0)) == 16


def test_less_than_60_percent_of_a_load_on_average_is_another_load() -> None:
    record = good(concurrency=4)
    assert reasons(replace(record, duration_s=record.duration_s / 0.62)) == []
    slow = replace(record, duration_s=record.duration_s / 0.58)
    assert reasons(slow) == ["load_not_reached"]
