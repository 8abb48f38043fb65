"""The frozen document of costs, its canonical form and its hash.

An estimate is read years later by somebody who has nothing but it, so it carries its inputs, the
price with source and date, the formula version and the notes that its numbers rest on.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from calculator.cost import FORMULA_VERSION, saving_percent
from calculator.fleets import ArmFleet, Inputs, arm_fleets, money_gain

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Price:
    usd_per_hour: Decimal
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class FleetComparison:
    baseline: ArmFleet | None
    candidate: ArmFleet | None
    saving_percent: float | None
    """None: not claimed, or unknown; a note says why."""


@dataclass(frozen=True, slots=True)
class Estimate:
    title: str
    made_at: datetime
    arm: str
    baseline: str
    target: Mapping[str, Any]
    design: Mapping[str, Any]
    price: Price
    inputs: Inputs
    verdict: Mapping[str, Any]
    levels: Sequence[Mapping[str, Any]]
    output_check: Mapping[str, Any]
    fleet: FleetComparison
    command: str
    notes: Sequence[str]
    schema_version: int = SCHEMA_VERSION
    formula_version: str = FORMULA_VERSION


def build(
    *,
    title: str,
    made_at: datetime,
    arm: str,
    baseline: str,
    target: Mapping[str, Any],
    design: Mapping[str, Any],
    usd_per_hour: Decimal,
    price_source: str,
    price_as_of: str,
    requests_per_month: float | None,
    peak_to_mean: float,
    own_concurrency: int | None,
    comparison: Mapping[str, Any],
    verdict: Mapping[str, Any],
    command: str,
    notes: Sequence[str] = (),
) -> Estimate:
    """Freeze one comparison. ``comparison`` and ``verdict`` are documents, as they are stored.

    Raises ValueError for a naive ``made_at`` or a peak below the mean.
    """
    if made_at.tzinfo is None:
        raise ValueError("made_at needs a time zone.")
    inputs = Inputs(requests_per_month, peak_to_mean, own_concurrency)
    fleet, fleet_notes = _fleet(comparison, verdict, inputs, usd_per_hour)
    gains = {**verdict["gains"], "money": money_gain(comparison, inputs, usd_per_hour)}
    kept = ("concurrency", "pairs", "blocks", "effects", "acceptance", "slo", "lengths")
    return Estimate(
        title=title,
        made_at=made_at.astimezone(UTC),
        arm=arm,
        baseline=baseline,
        target=target,
        design=design,
        price=Price(usd_per_hour, price_source, price_as_of),
        inputs=inputs,
        # The volume may be another one than the experiment's.
        verdict={**verdict, "gains": gains},
        levels=[
            {key: level[key] for key in kept if key in level} for level in comparison["levels"]
        ],
        # Where single answers differ concerns those who may see the requests.
        output_check={k: v for k, v in comparison["output_check"].items() if k != "examples"},
        fleet=fleet,
        command=command,
        notes=[*notes, *fleet_notes, *_standing_notes(inputs)],
    )


def to_document(estimate: Estimate) -> dict[str, Any]:
    """The estimate as JSON; money as decimal strings, the moment as ISO 8601 in UTC."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(estimate), default=_plain))
    return document


def canonical_json(document: Mapping[str, Any]) -> str:
    """One text for one content: sorted keys, no spaces. Raises ValueError for NaN."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def document_sha256(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def verify(document: Mapping[str, Any], sha256: str) -> bool:
    """Is this still the document that was hashed?"""
    return hmac.compare_digest(document_sha256(document), sha256)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds").replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in an estimate.")


def _fleet(
    comparison: Mapping[str, Any],
    verdict: Mapping[str, Any],
    inputs: Inputs,
    usd_per_hour: Decimal,
) -> tuple[FleetComparison, list[str]]:
    """Both fleets for the same traffic, and why no saving is claimed where none is."""
    if inputs.requests_per_month is None:
        note = "The volume is unknown, so there is no fleet and no monthly bill."
        return FleetComparison(None, None, None), [note]
    before, after = arm_fleets(comparison, inputs, usd_per_hour)
    refusal = _no_saving(comparison, verdict, before, after)
    saving = None
    if refusal is None and before is not None and after is not None:
        saving = saving_percent(before.replicas, after.replicas)
    return FleetComparison(before, after, saving), [] if refusal is None else [refusal]


def _no_saving(
    comparison: Mapping[str, Any],
    verdict: Mapping[str, Any],
    before: ArmFleet | None,
    after: ArmFleet | None,
) -> str | None:
    """Why no saving is claimed; None where one may be."""
    if before is None or after is None:
        return "An arm keeps the promise at no measured load, so the two fleets can't be compared."
    if verdict["code"] not in ("switch_on", "switch_on_below"):
        return "No saving is claimed: the verdict does not recommend the candidate."
    if comparison["capacity_change"] not in ("better", "worse"):
        return (
            "No saving is claimed: at the loads that set the size of the fleets, no difference in "
            "requests/s is shown."
        )
    return None


def _standing_notes(inputs: Inputs) -> list[str]:
    return [
        f"A month has {inputs.hours_per_month} hours; replicas are sized for a peak of "
        f"{inputs.peak_to_mean:g} times the mean at {inputs.target_load:.0%} load.",
        "Cost per request is the price of an engine-hour over the requests it completes at that "
        "load. It is money only when a machine is handed back.",
        "Capacity is the highest rate that was measured, with requests sent one after another "
        "on each connection; nothing is extrapolated beyond it.",
        "Ratios are geometric means over paired requests, with 95 % t intervals over server "
        "starts and requests. Prices are net of tax.",
    ]
