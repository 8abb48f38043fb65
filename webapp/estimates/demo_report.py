"""What ``manage.py demo`` says at its end: verdict, three numbers before and after, acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

METRICS = {
    "ttft_ms": ("Time to the first word", "ms"),
    "e2e_ms": ("Time for the whole answer", "ms"),
    "cost_usd_per_request": ("Cost per request", "USD"),
}


def numbers(verdict: dict[str, Any]) -> dict[str, Any]:
    """The three numbers before and after, each with its interval, at the headline's load."""
    found: dict[str, Any] = {"in_flight": verdict["headline_concurrency"]}
    for name in METRICS:
        effect = verdict["headline"].get(name)
        found[name] = effect and {
            "unit": effect["unit"],
            "before": effect["baseline"],
            "after": effect["candidate"],
            "ratio": effect["ratio"],
        }
    return found


def acceptance(document: dict[str, Any], verdict: dict[str, Any]) -> dict[str, Any] | None:
    """What the engine's own counters said at the headline's load."""
    wanted = verdict["headline_concurrency"]
    levels = [level for level in document["levels"] if level["concurrency"] == wanted]
    return levels[0]["acceptance"] if levels else None


def report(result: dict[str, Any]) -> Iterator[str]:
    """The result in words, for a terminal."""
    yield ""
    yield f"Verdict: {result['verdict']['sentence']}"
    yield f"With {result['numbers']['in_flight']} in flight (95 % intervals):"
    for name, (label, unit) in METRICS.items():
        effect = result["numbers"][name]
        shown = "unknown" if effect is None else _before_after(effect, unit)
        yield f"  {label}: {shown}"
    yield f"  Acceptance, from the engine's counters: {_acceptance(result['acceptance'])}"
    if result["reason"]:
        yield f"  {result['reason']}"
    yield f"Experiment: {result['addresses']['experiment']}"
    yield f"Share page, for anybody who has the address: {result['addresses']['share']}"
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result["took_s"].items())
    yield f"Took: {took}"


def _before_after(effect: dict[str, Any], unit: str) -> str:
    before, after = (_interval(effect[side], unit) for side in ("before", "after"))
    return f"{before} -> {after}, ratio {_interval(effect['ratio'], '')}"


def _interval(interval: dict[str, Any] | None, unit: str) -> str:
    if interval is None or interval["estimate"] is None:
        return "unknown"
    text = _number(interval["estimate"])
    if interval["low"] is not None and interval["high"] is not None:
        text += f" [{_number(interval['low'])}, {_number(interval['high'])}]"
    return f"{text} {unit}".rstrip()


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return np.format_float_positional(value, precision=3, fractional=False, unique=False, trim="-")


def _acceptance(found: dict[str, Any] | None) -> str:
    if found is None or found["status"] != "measured":
        return "not measured"
    return (
        f"{_interval(found['acceptance_rate'], '')} "
        f"({found['accepted_tokens']:.0f} of {found['draft_tokens']:.0f} drafted tokens)"
    )
