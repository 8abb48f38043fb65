"""Figures that more than one app draws. Plain dicts for plotly.js, without template or colour.

A trace's ``meta.role`` and a shape's ``name`` say what they are; static/js/charts.js dresses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

TIMES = "\N{MULTIPLICATION SIGN}"
Figure = dict[str, Any]
Document = Mapping[str, Any]

GAINS = (
    ("e2e_ms", "Total time", "candidate"),
    ("ttft_ms", "Time to first word", "second"),
    ("requests_per_s", "Requests per second", "third"),
)


def gain(effect: Document) -> tuple[float, float | None, float | None] | None:
    """(times better, low, high) of an effect, above 1 = better; None where it is unknown."""
    ratio = effect.get("ratio") or {}
    value = ratio.get("estimate")
    if not value:
        return None
    low, high = ratio.get("low"), ratio.get("high")
    if effect.get("better") == "lower":
        return 1 / value, _inverse(high), _inverse(low)
    return value, low, high


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def error_bars(points: Sequence[tuple[float, float | None, float | None]]) -> Figure:
    """Asymmetric bars from (value, low, high); an unknown end draws no bar."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0 if high is None else high - value for value, _, high in points],
        "arrayminus": [0 if low is None else value - low for value, low, _ in points],
    }


def gain_against_load(levels: Sequence[Document], own_concurrency: int | None) -> Figure | None:
    """How many times better the candidate is at each load, with its 95 % intervals.

    None when no gain is known at any load.
    """
    ticks = [level["concurrency"] for level in levels]
    found = [_gain_trace(levels, key, name, role) for key, name, role in GAINS]
    traces = [trace for trace in found if trace is not None]
    if not traces:
        return None
    return {
        "data": traces,
        "layout": {
            "xaxis": {
                "type": "log",
                "tickvals": ticks,
                "ticktext": [str(tick) for tick in ticks],
                "title": {"text": "Requests in flight"},
            },
            "yaxis": {"title": {"text": "Times better than before"}, "ticksuffix": TIMES},
            "shapes": [even(), *_here(own_concurrency)],
            "annotations": _here_note(own_concurrency),
        },
    }


def _gain_trace(levels: Sequence[Document], key: str, name: str, role: str) -> Figure | None:
    known = [
        (level["concurrency"], point)
        for level in levels
        if (point := gain(level["effects"].get(key) or {})) is not None
    ]
    if not known:
        return None
    points = [point for _, point in known]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [concurrency for concurrency, _ in known],
        "y": [value for value, _, _ in points],
        "error_y": error_bars(points),
        "hovertemplate": f"%{{y:.2f}}{TIMES} at %{{x}} in flight<extra>{name}</extra>",
        "meta": {"role": role},
    }


def even(*, vertical: bool = False) -> Figure:
    """The line of no change, at 1."""
    along, across = ("y", "x") if vertical else ("x", "y")
    ends = {f"{along}0": 0, f"{along}1": 1, f"{across}0": 1, f"{across}1": 1}
    return {"type": "line", f"{along}ref": "paper", "name": "even", **ends}


def _here(own: int | None) -> list[Figure]:
    if own is None:
        return []
    return [
        {
            "type": "line",
            "yref": "paper",
            "x0": own,
            "x1": own,
            "y0": 0,
            "y1": 1,
            "name": "here",
            "line": {"dash": "dot"},
        }
    ]


def _here_note(own: int | None) -> list[Figure]:
    if own is None:
        return []
    return [
        {
            "x": log10(own),
            "y": 1,
            "yref": "paper",
            "xanchor": "left",
            "yanchor": "top",
            "xshift": 6,
            "text": "you are here",
            "name": "here",
        }
    ]
