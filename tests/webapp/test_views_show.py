"""How numbers, intervals and changes are written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webapp.documents import effect
from webapp.core.templatetags import show
from webapp.core.tones import TONES

TO = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00021, "$0.00021"),
        (0.000000138, "$0.00000014"),
        (0.0185, "$0.018"),
        (0.5, "$0.50"),
        (1.5, "$1.50"),
        (16425, "$16,425"),
        (Decimal("131.40"), "$131.40"),
        (0, "$0.00"),
        (-3.2, "-$3.20"),
        (None, "unknown"),
        (float("nan"), "unknown"),
        (float("inf"), "unknown"),
    ],
)
def test_dollars(value: object, text: str) -> None:
    assert show.usd(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("0.09", "$0.09"), ("2.50", "$2.50"), ("2", "$2.00"), ("0.0375", "$0.0375"),
     (Decimal("1E+2"), "$100.00"), (None, "unknown"), ("NaN", "unknown")],
)  # fmt: skip
def test_a_price_is_shown_exactly(value: object, text: str) -> None:
    assert show.price(value) == text


def test_exact_amounts_come_as_text() -> None:
    assert show.usd_text("0.0001314") == "$0.00013"
    assert show.usd_text("many") == "unknown"
    assert show.usd_text(None) == "unknown"


@pytest.mark.parametrize(
    ("value", "text"),
    [(34.21, "34.2 ms"), (5.1234, "5.12 ms"), (412.4, "412 ms"), (6012, "6.01 s"),
     (0, "0 ms"), (None, "unknown"), (True, "unknown")],
)  # fmt: skip
def test_milliseconds(value: object, text: str) -> None:
    assert show.ms(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (740, "12 min"), (7500, "2 h 05 min"), (None, "unknown")]
)
def test_durations(seconds: object, text: str) -> None:
    assert show.duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.825, "82 %"), (0.004, "0.4 %"), (1, "100 %"), (None, "unknown")]
)
def test_shares(share: object, text: str) -> None:
    assert show.percent(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.00082, "1 in 1,220"), (0.5, "1 in 2.00"), (0, "unknown"), (None, "unknown")],
)
def test_small_shares_are_rates(share: object, text: str) -> None:
    assert show.one_in(share) == text


def test_moments_of_documents() -> None:
    assert show.moment("2026-12-01T06:00:00Z") == "1 Dec 2026, 06:00 UTC"
    assert show.moment("2026-12-01T07:30:00+01:00") == "1 Dec 2026, 06:30 UTC"
    assert show.moment("soon") == "unknown"


def test_an_interval_has_one_scale() -> None:
    around = {"estimate": 34.0, "low": 31.04, "high": 38.0}
    assert show.interval_parts(around, "ms") == ("34.0 ms", f"31.0{TO}38.0")
    seconds = {"estimate": 1004, "low": 950, "high": 1100}
    assert show.interval_parts(seconds, "ms") == ("1.00 s", f"0.95{TO}1.10")
    cost = {"estimate": 0.00021, "low": 0.0002, "high": 0.00022}
    assert show.interval_parts(cost, "USD") == ("$0.00021", f"$0.00020{TO}$0.00022")


@pytest.mark.parametrize("interval", [None, {}, {"estimate": None, "low": 1, "high": 2}])
def test_an_unknown_interval_says_so(interval: Any) -> None:
    assert show.interval_parts(interval, "ms") == ("unknown", "")
    assert show.interval_text(interval, "ms") == "unknown"


def test_an_interval_without_ends_shows_its_value_alone() -> None:
    assert show.interval_text({"estimate": 5.0, "low": None, "high": None}, "ms") == "5.00 ms"


@pytest.mark.parametrize(
    ("ratio", "unit", "better", "text"),
    [
        (0.526, "ms", "lower", f"1.9{TIMES} as fast"),
        (0.9, "ms", "lower", "11 % faster"),
        (1.031, "ms", "lower", "3.1 % slower"),
        (2.0, "ms", "lower", f"2.0{TIMES} as long"),
        (0.69, "usd", "lower", "31 % cheaper"),
        (1.2, "usd", "lower", "20 % dearer"),
        (1.9, "tokens/s", "higher", f"1.9{TIMES} as much"),
        (0.95, "tokens/s", "higher", "5.0 % less"),
        (1.0, "ms", "lower", "the same"),
        (None, "ms", "lower", "unknown"),
        (0, "ms", "lower", "unknown"),
    ],
)
def test_a_ratio_in_words(ratio: object, unit: str, better: str, text: str) -> None:
    assert show.ratio_words(ratio, unit, better) == text


def test_a_change_that_is_not_shown_is_no_gain() -> None:
    assert show.change(effect("e2e_ms")) == f"1.8{TIMES} as fast"
    assert show.change(effect("ttft_ms")) == "no change shown"
    assert show.change({"status": "unknown"}) == "unknown"
    assert show.change(None) == "unknown"


def test_every_tone_has_an_icon_and_a_word() -> None:
    for code, (tone, _, word) in TONES.items():
        assert "<svg" in show.sign(code)
        assert tone
        assert word


def test_a_badge_escapes_its_text() -> None:
    assert "&lt;b&gt;" in show.badge("done", "<b>")


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_dollars_keep_two_significant_digits(value: float) -> None:
    shown = float(show.usd(value).replace("$", "").replace(",", ""))
    assert shown == pytest.approx(value, rel=0.06)
