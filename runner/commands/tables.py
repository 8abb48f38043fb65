"""A result document as text for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from calculator.validity import REASONS as VALIDITY

WIDTH = 100
"""Columns of the sentences; tables need no more."""
METRICS = {
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms",
    "e2e_ms": "E2E, ms",
    "output_tokens_per_s": "output tokens/s",
    "requests_per_s": "requests/s",
    "cost_usd_per_request": "USD per request",
}
_STATUS = {"better": "better", "worse": "worse", "not_shown": "not shown", "unknown": "unknown"}


def describe(result: Mapping[str, Any]) -> str:
    """Verdict sentence and table of every candidate."""
    return "\n".join(_lines(result))


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    for name, found in result["candidates"].items():
        yield f"== {name} against {result['baseline']}"
        if found["verdict"] is None:
            yield _wrapped(f"not measured: {_why_not(result, name)}")
            continue
        yield _wrapped(f"{found['verdict']['code']}: {found['verdict']['sentence']}")
        for reason in found["verdict"]["reasons"]:
            yield _wrapped(f"- {reason['text']}")
        yield ""
        yield from _table(found["comparison"])
        yield from _categories(found["comparison"])
        yield ""
        yield from map(_wrapped, _footing(found["comparison"], result["plan"]))
        yield ""


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, initial_indent="   ", subsequent_indent="     ")


def _why_not(result: Mapping[str, Any], arm: str) -> str:
    names = (arm, result["baseline"])
    reasons = [run["reason"] for run in result["runs"] if run["arm"] in names and run["reason"]]
    return reasons[-1] if reasons else "no trial was recorded"


def _table(comparison: Mapping[str, Any]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        ("in flight", "metric", "baseline", "candidate", "ratio", "95 % interval", "finding")
    ]
    for level in comparison["levels"]:
        for metric, title in METRICS.items():
            effect = level["effects"].get(metric)
            if effect is not None:
                rows.append(_row(level["concurrency"], title, effect))
        acceptance = level["acceptance"]
        rate = acceptance["acceptance_rate"]
        if rate and rate["estimate"] is not None:
            length = acceptance["mean_acceptance_length"]
            shown = (_number(rate["estimate"]), _interval(rate))
            title = f"acceptance (length {_number(length['estimate'])})"
            rows.append((str(level["concurrency"]), title, "", shown[0], "", shown[1], ""))
    yield from _aligned(rows)


def _categories(comparison: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (str(level["concurrency"]), name, str(kind["pairs"]), *_shown(kind["effects"]["e2e_ms"]))
        for level in comparison["levels"]
        for name, kind in level["categories"].items()
    ]
    if rows:
        yield ""
        head = ("in flight", "kind", "requests", "E2E ratio", "95 % interval", "finding")
        yield from _aligned([head, *rows])


def _shown(effect: Mapping[str, Any]) -> tuple[str, str, str]:
    ratio = effect["ratio"]
    return _number(_estimate(ratio)), _interval(ratio), _STATUS[effect["status"]]


def _footing(comparison: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    """What the figures stand on: trials left out, outputs, the baseline against itself, price."""
    for level in comparison["levels"]:
        for out in level["excluded"]:
            reasons = "; ".join(VALIDITY.get(code, code) for code in out["reasons"])
            place = f"{level['concurrency']} in flight, run {out['run'] + 1} ({out['arm']})"
            yield f"left out: {place}: {reasons}"
    check = comparison["output_check"]
    ours, control = check["candidate_match"], check["control_match"]
    yield (
        f"outputs: {check['status'].replace('_', ' ')} "
        f"({ours['matched']} of {ours['total']} equal the baseline's; the baseline's second run: "
        f"{control['matched']} of {control['total']})"
    )
    for item in comparison["aa_control"]:
        yield (
            f"baseline against itself, {item['concurrency']} in flight: E2E ratio "
            f"{_number(item['e2e_ms']['estimate'])}, {_interval(item['e2e_ms'])}"
        )
    price = plan["price"]
    yield f"price: {price['usd_per_hour']} USD an hour, {price['source']}, {price['as_of']}"


def _row(concurrency: int, title: str, effect: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(concurrency),
        title,
        _number(_estimate(effect["baseline"])),
        _number(_estimate(effect["candidate"])),
        _number(_estimate(effect["ratio"])),
        _interval(effect["ratio"]),
        _STATUS.get(effect["status"], effect["status"]),
    )


def _estimate(interval: Mapping[str, Any] | None) -> float | None:
    return None if interval is None else interval["estimate"]


def _interval(interval: Mapping[str, Any] | None) -> str:
    if interval is None or interval["low"] is None or interval["high"] is None:
        return "unknown"
    return f"{_number(interval['low'])} to {_number(interval['high'])}"


def _number(value: float | None) -> str:
    """Four significant digits, never in scientific notation for what people read."""
    if value is None:
        return "unknown"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    decimals = 3 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("   " + "  ".join(cells)).rstrip()
