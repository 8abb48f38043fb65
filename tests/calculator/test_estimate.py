"""Frozen estimates: what is claimed, what is not, and what is noticed when one was altered."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator import capacity, comparison, cost, estimate, verdict
from tests.calculator.trials import pair_of_arms


def _document(
    speed: float, *, requests_per_month: float | None = 100_000.0, usd: str = "0.36"
) -> dict[str, Any]:
    found = comparison.compare(
        pair_of_arms(speed, runs=3, requests=16), baseline="baseline", candidate="ngram",
        usd_per_hour=Decimal(usd),
    )  # fmt: skip
    decided = verdict.decide(found, min_gain_percent=5, own_concurrency=None)
    return estimate.to_document(
        estimate.build(
            title="Switch it on?",
            made_at=datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC),
            arm="ngram",
            baseline="baseline",
            target={"name": "A model", "engine": "vllm", "engine_version": None, "dtype": "auto"},
            design={"runs_per_arm": 3},
            usd_per_hour=Decimal(usd),
            price_source="price list",
            price_as_of="2031-01-01",
            requests_per_month=requests_per_month,
            peak_to_mean=2.0,
            own_concurrency=None,
            comparison=comparison.to_document(found),
            verdict=verdict.to_document(decided),
            command="vllm serve model",
        )
    )


def test_a_fleet_before_and_after() -> None:
    document = _document(2.0, requests_per_month=1_000_000.0)
    fleet = document["fleet"]
    assert fleet["baseline"]["replicas"] > fleet["candidate"]["replicas"] >= 1
    assert fleet["saving_percent"] > 0
    replicas = fleet["baseline"]["replicas"]
    assert Decimal(fleet["baseline"]["usd_per_month"]) == replicas * Decimal("0.36") * 730
    low, high = fleet["baseline"]["replicas_low"], fleet["baseline"]["replicas_high"]
    assert low <= replicas <= high
    assert document["made_at"] == "2031-02-03T04:05:06Z"
    assert document["price"]["usd_per_hour"] == "0.36"


def test_no_saving_is_claimed_where_nothing_was_shown() -> None:
    document = _document(1.0)
    assert document["fleet"]["saving_percent"] is None
    assert any("No saving is claimed" in note for note in document["notes"])


def test_an_unknown_volume_has_no_fleet() -> None:
    fleet = _document(2.0, requests_per_month=None)["fleet"]
    assert fleet == {"baseline": None, "candidate": None, "saving_percent": None}


def test_an_altered_document_is_noticed() -> None:
    document = _document(2.0)
    sha256 = estimate.document_sha256(document)
    again = json.loads(json.dumps(document))
    assert estimate.verify(again, sha256)
    again["price"]["usd_per_hour"] = "0.35"
    assert not estimate.verify(again, sha256)
    assert estimate.document_sha256(dict(reversed(document.items()))) == sha256


def test_not_a_number_has_no_canonical_form() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        estimate.canonical_json({"x": float("nan")})


rates = st.floats(0.01, 1000)


@given(rates, st.floats(1, 10), rates, st.floats(0, 100), st.floats(0.1, 10))
def test_the_bill_is_linear_in_the_price(
    mean: float, peak: float, rps: float, usd: float, factor: float
) -> None:
    demand = capacity.Demand(avg_rps=mean, peak_rps=mean * peak)
    one, other = cost.bill(demand, rps, usd), cost.bill(demand, rps, usd * factor)
    assert one.usd_per_month is not None
    assert other.usd_per_month == pytest.approx(one.usd_per_month * factor)


@given(rates, rates, rates)
def test_more_capacity_never_costs_more(mean: float, rps: float, more: float) -> None:
    demand = capacity.Demand(avg_rps=mean, peak_rps=2 * mean)
    small, large = capacity.fleet(demand, rps).gpus, capacity.fleet(demand, rps + more).gpus
    assert small is not None
    assert large is not None
    assert large <= small
    assert cost.saving_percent(small, small) == 0.0


@given(st.floats(0.001, 10), rates, rates, st.floats(0.5, 50))
def test_the_split_adds_up_to_the_bill(
    usd: float, tokens_in: float, tokens_out: float, ratio: float
) -> None:
    price_in, price_out = cost.split_usd_per_million(
        usd_per_second=usd, input_tokens_per_s=tokens_in, output_tokens_per_s=tokens_out,
        output_to_input_cost_ratio=ratio,
    )  # fmt: skip
    assert (price_in * tokens_in + price_out * tokens_out) / 1e6 == pytest.approx(usd)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"avg_rps": 3, "peak_rps": 2},
        {"avg_rps": -1, "peak_rps": 2},
        {"avg_rps": 1, "peak_rps": float("inf")},
        {"avg_rps": 1, "peak_rps": 2, "target_load": 20},
        {"avg_rps": 1, "peak_rps": 2, "gpus_per_replica": 4, "gpus_per_node": 2},
    ],
)
def test_nonsense_is_refused_with_a_sentence(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        capacity.Demand(**nonsense)
    with pytest.raises(ValueError, match=r"\.$"):
        capacity.fleet(capacity.Demand(avg_rps=1, peak_rps=2), 0.0)
