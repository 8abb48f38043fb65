"""Worked examples with right answers: every case of data/costs.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from calculator import capacity, cost, speculation

CASES = json.loads((Path(__file__).parent / "data" / "costs.json").read_text())["cases"]
DEMAND = (
    "avg_rps", "peak_rps", "gpus_per_replica", "target_load", "spare_replicas", "min_replicas",
    "gpus_per_node", "nodes_lost_survived",
)  # fmt: skip


def _demand(given: dict[str, Any]) -> capacity.Demand:
    return capacity.Demand(**{key: given[key] for key in DEMAND if key in given})


def _fleet(given: dict[str, Any]) -> dict[str, Any]:
    bill = cost.bill(_demand(given), given["capacity_rps"], given["usd_per_gpu_hour"])
    return {**asdict(bill), **asdict(bill.fleet)}


def _compare(given: dict[str, Any]) -> dict[str, Any]:
    gpus = {
        side: capacity.fleet(_demand(given), given[f"{side}_rps"]).gpus
        for side in ("baseline", "candidate")
    }
    saving = cost.saving_percent(gpus["baseline"], gpus["candidate"])
    assert saving is not None
    return {
        "baseline_gpus": gpus["baseline"],
        "candidate_gpus": gpus["candidate"],
        "saving_percent": round(saving, 4),
    }


def _slo(given: dict[str, Any]) -> dict[str, Any]:
    levels = [capacity.Level(**level) for level in given["levels"]]
    found = capacity.highest_passing(levels, ttft_ms=given["ttft_ms"], tpot_ms=given["tpot_ms"])
    return {
        "capacity_rps": found and found.rps,
        "concurrency": found and found.concurrency,
    }


def _roofline(given: dict[str, Any]) -> dict[str, Any]:
    claimed = given.pop("claimed_tokens_per_s")
    bound = capacity.roofline_tokens_per_s(**given)
    return {"bound_tokens_per_s": bound, "believable": claimed <= bound}


def _ratio(given: dict[str, Any]) -> dict[str, Any]:
    ratio, low, high = cost.ratio_interval(**given)
    return {"ratio": ratio, "low": low, "high": high, "proven": low > 1}


def _month(given: dict[str, Any]) -> dict[str, Any]:
    gpus = given.pop("gpus")
    amounts = cost.month(gpus=gpus, **{key: Decimal(str(value)) for key, value in given.items()})
    return dict(zip(("before_tax", "after_tax"), map(float, amounts), strict=True))


def _pair(names: tuple[str, str], function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    return lambda given: dict(zip(names, function(**given), strict=True))


KINDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "fleet": _fleet,
    "compare": _compare,
    "slo": _slo,
    "roofline": _roofline,
    "ratio": _ratio,
    "month": _month,
    "mix": lambda given: {
        "capacity_rps": capacity.mixed_capacity_rps(
            [(part["share"], part["capacity_rps"]) for part in given["classes"]]
        )
    },
    "split": _pair(("usd_per_million_input", "usd_per_million_output"), cost.split_usd_per_million),
    "lengths": _pair(("per_request_ratio", "per_token_ratio"), cost.length_ratios),
    "little": _pair(("expected_rps", "believable"), capacity.little),
    "break_even": _pair(("batch", "verdict"), speculation.break_even_batch),
    "expected_tokens": lambda given: {"tokens_per_step": speculation.expected_tokens(**given)},
    "leviathan": lambda given: {"speedup": speculation.leviathan_speedup(**given)},
    "amdahl": lambda given: {"speedup": speculation.amdahl(**given)},
}


@pytest.mark.parametrize("case", CASES, ids=[f"{c['kind']}: {c['why']}" for c in CASES])
def test_worked_example(case: dict[str, Any]) -> None:
    found = KINDS[case["kind"]](dict(case["given"]))
    for name, expected in case["expect"].items():
        if isinstance(expected, float):
            assert found[name] == pytest.approx(expected, rel=1e-6), name
        else:
            assert found[name] == expected, name
