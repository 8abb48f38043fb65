"""Acceptance from counters, for requests and server starts whose own acceptance is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from calculator.acceptance import Acceptance, measured_acceptance
from calculator.columns import Trials
from calculator.measurement import SpeculationCounters, TrialRecord
from tests.calculator.trials import change, trial

DRAFTED = 4


def acceptance(trials: Sequence[TrialRecord]) -> Acceptance:
    return measured_acceptance(Trials.of(trials).columns)


def _start(
    block: int, rng: np.random.Generator, *, requests: int, spread: float, tokens: int = 64
) -> TrialRecord:
    """A start in which each request has its own chance that a drafted token is accepted."""
    record = trial("ngram", block, block, requests=requests, tokens=tokens)
    steps = drafts = accepted = 0
    positions = np.zeros(DRAFTED)
    for i in range(requests):
        chance = float(np.clip(0.6 + spread * rng.normal(), 0.02, 0.98))
        written = own = 0
        while written < tokens:
            kept = int(np.argmin(np.append(rng.random(DRAFTED) < chance, False)))
            positions[:kept] += 1
            written += kept + 1
            own += 1
            accepted += kept
        record = change(record, i, output_tokens=written, chunks=own)
        drafts += own
        steps += own
    counters = SpeculationCounters(
        drafts, drafts * DRAFTED, accepted, tuple(positions), accepted + steps
    )
    return replace(record, counters=counters)


def test_greedy_starts_that_repeat_each_other_are_no_certainty() -> None:
    one = _start(0, np.random.default_rng(5), requests=6, spread=0.2)
    found = acceptance([one, replace(one, run=1, block=1)])
    assert found.status == "measured"
    for interval in (found.acceptance_rate, found.mean_acceptance_length):
        assert interval.low is not None
        assert interval.high is not None
        assert interval.estimate is not None
        assert interval.low < interval.estimate < interval.high
        # Six requests say something, not everything.
        assert 1.02 < interval.high / interval.low < 4


@pytest.mark.parametrize("requests", [6, 24])
def test_intervals_hold_what_many_requests_would_show(requests: int) -> None:
    """Nominal 0.95; the requests are drawn anew for each interval, two starts of each."""
    rng = np.random.default_rng(11)
    truth = acceptance([_start(0, rng, requests=1500, spread=0.15)])
    held = 0
    for _ in range(120):
        one = _start(0, rng, requests=requests, spread=0.15)
        length = acceptance([one, replace(one, run=1, block=1)]).mean_acceptance_length
        assert length.low is not None
        assert length.high is not None
        held += length.low <= (truth.mean_acceptance_length.estimate or 0.0) <= length.high
    assert held >= 108


def test_limits_stay_in_what_is_possible() -> None:
    rng = np.random.default_rng(3)
    found = acceptance([_start(b, rng, requests=2, spread=0.4) for b in range(2)])
    rate, length = found.acceptance_rate, found.mean_acceptance_length
    assert rate.low is not None
    assert rate.high is not None
    assert length.low is not None
    assert 0 <= rate.low <= rate.high <= 1
    assert length.low >= 1


def test_without_variation_to_see_there_is_no_interval() -> None:
    rng = np.random.default_rng(3)
    one_start = acceptance([_start(0, rng, requests=6, spread=0.2)])
    assert one_start.acceptance_rate.estimate is not None
    assert one_start.acceptance_rate.low is None
    nothing = trial("ngram", 0, 0, counters=SpeculationCounters(100, 400, 0, (0, 0, 0, 0), 480))
    found = acceptance([nothing, replace(nothing, run=1, block=1)])
    assert found.acceptance_rate.estimate == 0
    assert found.acceptance_rate.high is None
    assert found.mean_acceptance_length.estimate == 1
