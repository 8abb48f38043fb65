"""Documents as the calculator writes them, for pages that only show them."""

from __future__ import annotations

from typing import Any

METRICS = {
    "ttft_ms": ("ms", "lower", 412.0, 0.97),
    "tpot_ms": ("ms", "lower", 95.0, 0.52),
    "e2e_ms": ("ms", "lower", 6012.0, 0.55),
    "output_tokens_per_s": ("tokens/s", "higher", 10.0, 1.9),
    "requests_per_s": ("requests/s", "higher", 0.166, 1.8),
    "cost_usd_per_request": ("usd", "lower", 0.00021, 0.55),
}


LEVEL_KEYS = ("concurrency", "blocks", "pairs", "effects", "lengths", "acceptance", "slo")


def interval(estimate: float, share: float = 0.06) -> dict[str, float]:
    return {"estimate": estimate, "low": estimate * (1 - share), "high": estimate * (1 + share)}


def effect(key: str, weaken: float = 0.0) -> dict[str, Any]:
    """One EFFECT; ``weaken`` from 0 to 1 moves its ratio towards 1."""
    unit, better, before, ratio = METRICS[key]
    ratio += (1 - ratio) * weaken
    proven = abs(ratio - 1) > 0.06
    return {
        "unit": unit,
        "better": better,
        "baseline": interval(before),
        "candidate": interval(before * ratio),
        "ratio": interval(ratio, 0.05),
        "status": "better" if proven else "not_shown",
    }


def effects(weaken: float = 0.0) -> dict[str, Any]:
    return {key: effect(key, weaken) for key in METRICS}


def distribution(mean: float) -> dict[str, Any]:
    quantiles = [mean * (0.4 + 1.2 * (i / 20) ** 2) for i in range(21)]
    return {
        "count": 36,
        "mean": mean,
        "p50": quantiles[10],
        "p90": quantiles[18],
        "p95": quantiles[19],
        "p99": quantiles[20],
        "quantiles": quantiles,
    }


def level(concurrency: int, weaken: float) -> dict[str, Any]:
    return {
        "concurrency": concurrency,
        "blocks": 3,
        "pairs": 36,
        "excluded": [{"arm": "ngram", "run": 3, "reasons": ["client_saturated"]}]
        if concurrency == 8
        else [],
        "effects": effects(weaken),
        "categories": {
            name: {
                "pairs": 6,
                "effects": {
                    key: effect(key, min(1.0, weaken + shift))
                    for key in ("ttft_ms", "tpot_ms", "e2e_ms")
                },
            }
            for name, shift in (("code editing", 0.0), ("quoting", 0.05), ("open writing", 0.7))
        },
        "acceptance": {
            "status": "measured",
            "acceptance_rate": interval(0.82),
            "mean_acceptance_length": interval(3.4),
            "drafts": 412.0,
            "draft_tokens": 1648.0,
            "accepted_tokens": 1351.0,
            "per_position": [0.93, 0.86, 0.78, 0.71],
        },
        "failures": {"baseline": {}, "candidate": {"timeout": 1} if concurrency == 8 else {}},
        "sent": {"baseline": 36, "candidate": 36},
        "in_flight": {"baseline": 0.9 * concurrency, "candidate": 0.9 * concurrency},
        "lengths": {"baseline_mean": 61.2, "candidate_mean": 61.2, "equal_share": 0.97},
        "distribution": {
            "ttft_ms": {"baseline": distribution(412), "candidate": distribution(400)},
            "tpot_ms": {"baseline": distribution(95), "candidate": distribution(50)},
            "e2e_ms": {
                "baseline": distribution(6012),
                "candidate": distribution(6012 * (0.55 + 0.45 * weaken)),
            },
        },
        "slo": {
            "baseline": {"passes": True, "failing": []},
            "candidate": {"passes": True, "failing": []},
        },
    }


def output_check() -> dict[str, Any]:
    """Unchanged, by an engine with noise of its own."""
    steps = [0, 12, 40, 77, 120, 180, 231, 256]
    candidate = [1.0, 0.94, 0.88, 0.81, 0.69, 0.6, 0.52, 0.52]
    control = [1.0, 1.0, 0.94, 0.81, 0.75, 0.66, 0.66, 0.55]
    return {
        "status": "unchanged",
        "why": None,
        "candidate_match": {"matched": 9, "total": 16, "low": 0.332, "high": 0.769},
        "control_match": {"matched": 10, "total": 16, "low": 0.386, "high": 0.815},
        "match_p": 0.5,
        "first_divergence": [11, 39, 76, 119, 119, 179, 230],
        "curve": [
            {"tokens": tokens, "candidate": ours, "control": theirs}
            for tokens, ours, theirs in zip(steps, candidate, control, strict=True)
        ],
        "curve_p": 0.37,
        "tolerance_nats": 0.31,
        "margins": {
            "candidate": [0.004, 0.011, 0.02, 0.035, 0.05, 0.061, 0.12],
            "control": [0.002, 0.01, 0.018, 0.04, 0.066, 0.14],
        },
        "wide": 0,
        "forced": {
            side: {
                "tokens": tokens, "chosen": chosen, "within": tokens - chosen, "beyond": 0,
                "low": 0.999, "high": 1.0,
            }
            for side, tokens, chosen in (("candidate", 3904, 3889), ("control", 7810, 7788))
        },
        "not_scored": None,
        "traits": [
            {
                "name": name, "pairs": 16, "baseline": before, "candidate": after,
                "control": again, "worse": 1, "better": 1, "p": 0.75, "adjusted_p": 1.0,
            }
            for name, before, after, again in (
                ("answered", 1.0, 1.0, 1.0),
                ("stopped_by_itself", 0.5, 0.5, 0.5625),
                ("repeated_share", 0.041, 0.043, 0.04),
            )
        ],
        "lengths": {
            "requests": 36, "distance": 0.083, "p": 1.0, "control_distance": 0.056,
            "control_p": 1.0, "adjusted_p": 1.0,
        },
        "tokens_checked": 3904,
        "detectable_rate": 0.00082,
        "examples": [
            {"request_id": "support-7", "run": 1, "position": 11, "kind": "near_tie", "nats": 0.12},
            {"request_id": "code-3", "run": 1, "position": 39, "kind": "near_tie", "nats": 0.06},
        ],
    }  # fmt: skip


def comparison(arm: str = "ngram") -> dict[str, Any]:
    return {
        "schema_version": 1,
        "baseline": "baseline",
        "candidate": arm,
        "confidence": 0.95,
        "levels": [level(1, 0.0), level(4, 0.4), level(8, 0.88)],
        "output_check": output_check(),
        "aa_control": [
            {"concurrency": n, "e2e_ms": {"estimate": 1.004, "low": 0.98, "high": 1.03}}
            for n in (1, 4, 8)
        ],
        "capacity": {
            "baseline": {"concurrency": 8, "requests_per_s": 0.61},
            "candidate": {"concurrency": 8, "requests_per_s": 0.68},
        },
        "capacity_change": "better",
        "problems": [],
    }


def verdict(code: str = "switch_on_below") -> dict[str, Any]:
    return {
        "code": code,
        "sentence": "Switch ngram on while fewer than 8 requests are in flight: "
        "answers come 1.8 times as fast at 1 in flight, and no gain is shown from 8 on.",
        "below_concurrency": 8 if code == "switch_on_below" else None,
        "headline_concurrency": 1,
        "headline": {key: effect(key) for key in ("ttft_ms", "e2e_ms", "cost_usd_per_request")},
        "gains": {"latency": "proven", "capacity": "not_shown", "money": "unknown"},
        "reasons": [
            {"code": "latency_proven", "text": "Total time falls to 55 %.", "figures": {}},
            {"code": "fades", "text": "From 8 in flight on no gain is shown.", "figures": {}},
        ],
        "would_settle": None,
    }


def estimate(title: str = "Switch it on?", arm: str = "ngram") -> dict[str, Any]:
    source = comparison(arm)
    fleet = {
        "replicas": 2,
        "replicas_low": 2,
        "replicas_high": 3,
        "usd_per_month": "131.4",
        "usd_per_request": "0.0001314",
    }
    return {
        "schema_version": 1,
        "formula_version": "1",
        "title": title,
        "made_at": "2026-12-01T06:00:00Z",
        "arm": arm,
        "baseline": "baseline",
        "target": {
            "name": "Demo model",
            "engine": "vllm",
            "engine_version": "0.32.0",
            "dtype": "float32",
        },
        "design": {
            "runs_per_arm": 3,
            "levels": [{"concurrency": load, "requests": 12} for load in (1, 4, 8)],
            "requests": 36,
            "seed": 1,
            "max_output_tokens": 64,
        },
        "price": {"usd_per_hour": "0.09", "source": "Price list", "as_of": "2026-11-01"},
        "inputs": {
            "requests_per_month": 1_000_000,
            "peak_to_mean": 2.0,
            "own_concurrency": 3,
            "hours_per_month": 730,
            "target_load": 0.8,
            "min_replicas": 1,
            "spare_replicas": 0,
        },
        "verdict": verdict(),
        "levels": [{key: part[key] for key in LEVEL_KEYS} for part in source["levels"]],
        "output_check": {k: v for k, v in source["output_check"].items() if k != "examples"},
        "fleet": {
            "baseline": {"capacity_rps": 0.61, **fleet},
            "candidate": {"capacity_rps": 0.68, **fleet},
            "saving_percent": 0.0,
        },
        "command": "vllm serve some/model --dtype=float32 "
        '--speculative-config=\'{"method": "ngram", "num_speculative_tokens": 4}\'',
        "notes": ["Prices are net of tax."],
    }
