"""Figures of the result page, from a Comparison document. See ``webapp.core.charts``."""

from __future__ import annotations

from webapp.core.charts import TIMES, Document, Figure, error_bars, even, gain


def gain_by_category(level: Document) -> Figure | None:
    """Times as fast (total time) by category, the greatest gain on top; None without categories."""
    known = [
        (name, point)
        for name, part in level["categories"].items()
        if (point := gain(part["effects"].get("e2e_ms") or {})) is not None
    ]
    if not known:
        return None
    known.sort(key=lambda item: item[1][0])
    points = [point for _, point in known]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "markers",
                "name": "Total time",
                "x": [value for value, _, _ in points],
                "y": [name for name, _ in known],
                "error_x": error_bars(points),
                "hovertemplate": f"%{{y}}: %{{x:.2f}}{TIMES}<extra></extra>",
                "meta": {"role": "candidate"},
            }
        ],
        "layout": {
            "showlegend": False,
            "xaxis": {"title": {"text": "Times as fast, total time"}, "ticksuffix": TIMES},
            "yaxis": {"type": "category"},
            "shapes": [even(vertical=True)],
        },
    }


def distribution(level: Document, metric: str, label: str) -> Figure | None:
    """Share of requests done within a time, before and after, from the 21 quantiles."""
    parts = level["distribution"].get(metric) or {}
    traces = [
        _quantile_trace(parts[role]["quantiles"], name, role)
        for role, name in (("baseline", "Before"), ("candidate", "After"))
        if (parts.get(role) or {}).get("quantiles")
    ]
    if not traces:
        return None
    return {
        "data": traces,
        "layout": {
            "xaxis": {"title": {"text": f"{label} (ms)"}, "rangemode": "tozero"},
            "yaxis": {
                "title": {"text": "Share of requests done"},
                "tickformat": ".0%",
                "range": [0, 1.02],
            },
        },
    }


def _quantile_trace(quantiles: list[float], name: str, role: str) -> Figure:
    last = len(quantiles) - 1
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": quantiles,
        "y": [index / last for index in range(len(quantiles))],
        "hovertemplate": "%{y:.0%} within %{x:.0f} ms<extra>" + name + "</extra>",
        "meta": {"role": role},
    }


def acceptance_by_position(level: Document) -> Figure | None:
    """Share of drafted tokens accepted at each position of the draft; None when not measured."""
    rates = (level.get("acceptance") or {}).get("per_position") or []
    if not rates:
        return None
    return {
        "data": [
            {
                "type": "bar",
                "name": "Accepted",
                "x": [str(position) for position in range(1, len(rates) + 1)],
                "y": rates,
                "hovertemplate": "token %{x}: %{y:.0%}<extra></extra>",
                "meta": {"role": "candidate"},
            }
        ],
        "layout": {
            "showlegend": False,
            "bargap": 0.5,
            "xaxis": {"type": "category", "title": {"text": "Position in the draft"}},
            "yaxis": {
                "title": {"text": "Drafts accepted up to here"},
                "tickformat": ".0%",
                "range": [0, 1],
            },
        },
    }
