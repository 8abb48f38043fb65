"""Rounds until steady, against servers whose slowness is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from calculator.measurement import Measurement, Outcome
from runner.warmup import MOST_ROUNDS, until_steady


def rounds(
    time_ms: Callable[[int], float], outcome: Outcome = Outcome.OK
) -> Callable[[int], Sequence[Measurement]]:
    def send(number: int) -> list[Measurement]:
        end = round(time_ms(number) * 1e6)
        return [
            Measurement(f"r{i}", i, None, outcome, 0, 0, end, last_token_ns=end, output_tokens=9)
            for i in range(2)
        ]

    return send


def test_a_steady_server_takes_two_rounds() -> None:
    found = until_steady(rounds(lambda number: 100 + number))
    assert (found.rounds, found.steady) == (2, True)
    assert found.change == pytest.approx(0.01)


def test_the_slow_first_round_is_not_the_last() -> None:
    found = until_steady(rounds(lambda number: 1500 if number == 0 else 100))
    assert (found.rounds, found.steady) == (3, True)


def test_a_server_that_never_settles_is_told() -> None:
    found = until_steady(rounds(lambda number: 100 * 1.3**number))
    assert (found.rounds, found.steady) == (MOST_ROUNDS, False)
    assert found.change == pytest.approx(0.3)


def test_a_server_that_answers_nothing_is_not_steady() -> None:
    found = until_steady(rounds(lambda _: 100, Outcome.ERROR))
    assert (found.rounds, found.steady, found.change) == (MOST_ROUNDS, False, None)
