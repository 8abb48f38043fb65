"""How numbers, intervals, changes and states are written on every page.

Unknown is ``None`` and reads "unknown"; it is never shown as 0. Values come from the documents of
``calculator`` (milliseconds, tokens per second, requests per second, US dollars).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from math import floor, isfinite, log10
from typing import Any, TypeGuard

from babel.numbers import format_currency, format_decimal
from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from calculator.answers import NOT_SCORED
from calculator.outputs import WHY
from webapp.core.icons import PATHS
from webapp.core.tones import TONES

register = template.Library()

UNKNOWN = "unknown"
LOCALE = "en_US"
TO = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
MIN_DIGITS = 3
"""Significant digits of a measured value."""

Number = int | float
Document = Mapping[str, Any]


def _known(value: object) -> TypeGuard[Number]:
    """Whether there is a number to show; a Decimal counts as one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return False
    return isfinite(value)


def _places(value: Number | Decimal, digits: int, most: int) -> int:
    """Decimal places that leave ``digits`` significant ones, between 0 and ``most``."""
    size = abs(float(value))
    if size == 0:
        return 0
    return min(most, max(0, digits - 1 - floor(log10(size))))


def _fixed(value: Number, places: int) -> str:
    rounded = Decimal(str(value)).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_EVEN)
    pattern = "#,##0" + ("." + "0" * places if places else "")
    return format_decimal(rounded, format=pattern, locale=LOCALE, decimal_quantization=False)


def _usd_places(value: Number | Decimal) -> int:
    size = abs(float(value))
    if size >= 1000:
        return 0
    return 2 if size >= 1 or size == 0 else max(2, _places(value, 2, 12))


def _usd(value: Number | Decimal, places: int) -> str:
    rounded = Decimal(str(value)).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_EVEN)
    pattern = "¤#,##0" + ("." + "0" * places if places else "")
    return format_currency(
        rounded,
        "USD",
        format=pattern,
        locale=LOCALE,
        currency_digits=False,
        decimal_quantization=False,
    )


@register.filter
def usd(value: object) -> str:
    """US dollars with at least two significant digits: $0.00021, $1.75, $16,425."""
    return _usd(value, _usd_places(value)) if _known(value) else UNKNOWN


@register.filter
def price(value: object) -> str:
    """A price as it was given, exactly, with two decimals at least: $0.09, $2.50, $0.0375."""
    try:
        exact = Decimal(str(value))
    except InvalidOperation:
        return UNKNOWN
    if not exact.is_finite():
        return UNKNOWN
    exponent = exact.normalize().as_tuple().exponent
    return _usd(exact, max(2, -int(exponent)))


@register.filter
def usd_text(value: object) -> str:
    """``usd`` for documents that hold exact amounts as text: "2.50" reads $2.50."""
    try:
        return usd(Decimal(value)) if isinstance(value, str) else usd(value)
    except InvalidOperation:
        return UNKNOWN


@register.filter
def ms(value: object) -> str:
    """Milliseconds; from one second on in seconds: 34.2 ms, 6.01 s."""
    if not _known(value):
        return UNKNOWN
    if abs(value) >= 1000:
        seconds = float(value) / 1000
        return f"{_fixed(seconds, _places(seconds, MIN_DIGITS, 2))} s"
    return f"{_fixed(value, _places(value, MIN_DIGITS, 2))} ms"


@register.filter
def number(value: object) -> str:
    """Three significant digits, thousands separated: 0.825, 39.1, 1,240."""
    return _fixed(value, _places(value, MIN_DIGITS, 4)) if _known(value) else UNKNOWN


@register.filter
def count(value: object) -> str:
    """A whole number: 1,240."""
    return _fixed(value, 0) if _known(value) else UNKNOWN


@register.filter
def percent(share: object) -> str:
    """A share of 1 as percent: 0.825 reads 82 %."""
    if not _known(share):
        return UNKNOWN
    value = float(share) * 100
    return f"{_fixed(value, 1 if 0 < abs(value) < 10 else 0)} %"


@register.filter
def one_in(share: object) -> str:
    """A small share of 1 as a rate: 0.00082 reads 1 in 1,220."""
    return f"1 in {number(1 / share)}" if _known(share) and share > 0 else UNKNOWN


@register.filter
def output_reason(code: object) -> str:
    """Why an output check ended as it did, or why nothing was scored; "" for a code of neither."""
    return WHY.get(str(code), NOT_SCORED.get(str(code), ""))


@register.filter
def tokens_per_s(value: object) -> str:
    return f"{number(value)} tokens/s" if _known(value) else UNKNOWN


@register.filter
def moment(text: object) -> str:
    """An ISO 8601 time of a document in words: 1 Dec 2026, 06:00 UTC."""
    try:
        at = datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError:
        return UNKNOWN
    return f"{at.day} {at:%b %Y, %H:%M} UTC"


@register.filter
def bytes_size(value: object) -> str:
    """Bytes in binary units: 1.2 MiB."""
    if not _known(value):
        return UNKNOWN
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{_fixed(size, 0 if unit == 'B' else 1)} {unit}"
        size /= 1024
    return UNKNOWN


@register.filter
def duration(seconds: object) -> str:
    """A length of time as people say it: 40 s, 12 min, 2 h 05 min."""
    if not _known(seconds):
        return UNKNOWN
    whole = round(float(seconds))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


UNIT_WORDS = {"requests/s": "requests/s", "tokens/s": "tokens/s"}


def _scale(unit: str, values: list[Number]) -> tuple[float, str, str, int]:
    """Factor, prefix, suffix and decimal places shared by all numbers of one interval."""
    largest = max(values, key=abs)
    if unit == "usd":
        smallest = min((v for v in values if v), key=abs, default=largest)
        return 1.0, "$", "", _usd_places(smallest)
    if unit == "ms" and abs(largest) >= 1000:
        return 0.001, "", " s", _places(float(largest) / 1000, MIN_DIGITS, 2)
    places = _places(largest, MIN_DIGITS, 2 if unit == "ms" else 3)
    suffix = f" {UNIT_WORDS.get(unit, unit)}" if unit else ""
    return 1.0, "", suffix, places


def unit_key(unit: object) -> str:
    """The document's unit in the few names that are formatted specially."""
    text = str(unit or "")
    return "usd" if text.lower().startswith("usd") or text.startswith("$") else text


def interval_parts(interval: object, unit: object) -> tuple[str, str]:
    """(value, range) of ``{"estimate", "low", "high"}``, both in the same scale.

    The range is "" when an end is unknown; the value reads "unknown" when there is none.
    """
    if not isinstance(interval, Mapping) or not _known(interval.get("estimate")):
        return UNKNOWN, ""
    ends = [interval.get("low"), interval.get("high")]
    known = [end for end in ends if _known(end)]
    factor, prefix, suffix, places = _scale(unit_key(unit), [interval["estimate"], *known])
    write = [f"{prefix}{_fixed(float(v) * factor, places)}" for v in (interval["estimate"], *known)]
    shown = f"{write[1]}{TO}{write[2]}" if len(known) == 2 else ""
    return write[0] + suffix, shown


@register.filter
def estimate(interval: object, unit: object = "") -> str:
    """The value alone: 34.2 ms."""
    return interval_parts(interval, unit)[0]


@register.filter(name="range")
def range_of(interval: object, unit: object = "") -> str:
    """The interval's ends alone: 31.0 to 38.1. Empty when they are unknown."""
    return interval_parts(interval, unit)[1]


@register.filter(name="interval")
def interval_text(interval: object, unit: object = "") -> SafeString | str:
    """Value and range for a table cell: 34.2 ms (31.0 to 38.1)."""
    value, ends = interval_parts(interval, unit)
    if not ends:
        return value
    return format_html('{} <span class="range">({})</span>', value, ends)


def _times(ratio: float) -> str:
    return f"{_fixed(ratio, 1 if ratio < 10 else 0)}{TIMES}"


def _share(ratio: float) -> str:
    value = abs(1 - ratio) * 100
    return f"{_fixed(value, 1 if value < 10 else 0)} %"


_AS = {"faster": "as fast", "slower": "as long", "more": "as much"}


def _words(unit: str, better: str) -> tuple[str, str]:
    if unit == "usd":
        return "cheaper", "dearer"
    return ("faster", "slower") if better == "lower" else ("more", "less")


def ratio_words(ratio: object, unit: object = "ms", better: object = "lower") -> str:
    """A ratio candidate / baseline in words: 1.9 times as fast, 4.2 % slower, 31 % cheaper."""
    if not _known(ratio) or ratio <= 0:
        return UNKNOWN
    value = float(ratio)
    up, down = _words(unit_key(unit), str(better))
    improved = value < 1 if better == "lower" else value > 1
    word = up if improved else down
    if abs(value - 1) < 0.0005:
        return "the same"
    if word in _AS:
        times = max(value, 1 / value)
        if times >= 1.2:
            return f"{_times(times)} {_AS[word]}"
        return f"{_share(times)} {word}"
    return f"{_share(value)} {word}"


def _effect(value: object) -> Document:
    return value if isinstance(value, Mapping) else {}


@register.filter
def change(effect: object) -> str:
    """What the effect says, in words; a change that is not shown says so."""
    document = _effect(effect)
    status = document.get("status")
    if status in ("better", "worse"):
        return ratio_words(_estimate_of(document), document.get("unit"), document.get("better"))
    return "no change shown" if status == "not_shown" else UNKNOWN


def _estimate_of(document: Document) -> object:
    ratio = document.get("ratio")
    return ratio.get("estimate") if isinstance(ratio, Mapping) else None


@register.filter
def change_range(effect: object) -> str:
    """The ratio's interval as percent of the baseline: 48 to 57 % of before. Empty if unknown."""
    ratio = _effect(effect).get("ratio")
    ends = [ratio.get(k) for k in ("low", "high")] if isinstance(ratio, Mapping) else []
    known = [float(end) * 100 for end in ends if _known(end)]
    if len(known) != 2:
        return ""
    low, high = (_fixed(value, 0 if value >= 10 else 1) for value in known)
    return f"{low}{TO}{high} % of before"


@register.filter
def tone(code: object) -> str:
    return TONES.get(str(code), TONES["unknown"])[0]


@register.filter
def word(code: object) -> str:
    return TONES.get(str(code), ("", "", str(code).replace("_", " ")))[2]


@register.simple_tag
def icon(name: str) -> SafeString:
    """A small drawing beside a word; hidden from screen readers, which have the word."""
    return format_html(
        '<svg class="icon" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2"'
        ' stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="{}"/></svg>',
        PATHS[name],
    )


@register.simple_tag
def sign(code: object) -> SafeString:
    """The icon that belongs to a code."""
    return icon(TONES.get(str(code), TONES["unknown"])[1])


@register.simple_tag
def badge(code: object, text: str = "") -> SafeString:
    """Icon and word on a quiet ground."""
    return format_html(
        '<span class="badge {}">{}{}</span>', tone(code), sign(code), text or word(code)
    )


METRICS = {
    "ttft_ms": ("Time to the first word", "TTFT"),
    "tpot_ms": ("Time per token after that", "TPOT"),
    "e2e_ms": ("Total time for the answer", "E2E"),
    "output_tokens_per_s": ("Output tokens per second", "tokens/s"),
    "requests_per_s": ("Requests per second", "requests/s"),
    "cost_usd_per_request": ("Cost per request", "USD"),
}
"""Key of an effect → (words, the field's short name)."""


@register.filter
def by_metric(mapping: object) -> list[tuple[str, object]]:
    """Items of a mapping by metric in the order of METRICS: the database keeps no order of keys."""
    if not isinstance(mapping, Mapping):
        return []
    known = [(key, mapping[key]) for key in METRICS if key in mapping]
    return known + sorted((key, mapping[key]) for key in mapping if key not in METRICS)


@register.filter
def metric(key: object) -> str:
    return METRICS.get(str(key), (str(key), ""))[0]


@register.filter
def short_metric(key: object) -> str:
    return METRICS.get(str(key), ("", str(key)))[1]


@register.filter
def get(mapping: object, key: object) -> object:
    """``mapping[key]`` or None: for keys that are only known in the template."""
    return mapping.get(str(key)) if isinstance(mapping, Mapping) else None


@register.filter
def spaced(code: object) -> str:
    """A code as words: http_500 reads "http 500"."""
    return str(code).replace("_", " ")
