"""How much traffic keeps a promise, and how many engines that takes.

Formulas: docs/costs.md. ``None`` is unknown or unreachable, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SLACK = 1e-9  # 30 / (6 * 1.0) is five replicas, whatever binary fractions make of it


@dataclass(frozen=True, slots=True)
class Level:
    """One measured load level."""

    concurrency: int
    ttft_ms: float
    tpot_ms: float
    rps: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What has to be served, and how carefully."""

    avg_rps: float
    peak_rps: float
    gpus_per_replica: int = 1
    target_load: float = 0.8
    """Share of its capacity that a replica is loaded with at the peak."""
    spare_replicas: int = 0
    min_replicas: int = 1
    gpus_per_node: int | None = None
    nodes_lost_survived: int = 0

    def __post_init__(self) -> None:
        numbers = (self.avg_rps, self.peak_rps, self.target_load)
        if not all(math.isfinite(n) and n >= 0 for n in numbers):
            raise ValueError("Rates and the target load must be finite and 0 or more.")
        if self.peak_rps < self.avg_rps:
            raise ValueError("The peak rate is below the average rate.")
        if not 0 < self.target_load <= 1:
            raise ValueError("The target load must be above 0 and at most 1.")
        counts = (self.spare_replicas, self.min_replicas, self.nodes_lost_survived)
        if any(count < 0 for count in counts) or self.gpus_per_replica < 1:
            raise ValueError("Replicas and GPUs are counted from 0 and 1 up.")
        if self.gpus_per_node is not None and self.gpus_per_node < self.gpus_per_replica:
            raise ValueError("A replica does not fit into a node.")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Whole replicas, whole nodes, and the GPUs that are paid for."""

    replicas: int | None
    nodes: int | None
    gpus: int | None


def highest_passing(
    levels: Sequence[Level], *, ttft_ms: float | None, tpot_ms: float | None
) -> Level | None:
    """The highest measured level that keeps every clause; never beyond the last level."""
    passing = [
        level
        for level in levels
        if (ttft_ms is None or level.ttft_ms <= ttft_ms)
        and (tpot_ms is None or level.tpot_ms <= tpot_ms)
    ]
    return max(passing, key=lambda level: level.concurrency, default=None)


def mixed_capacity_rps(classes: Sequence[tuple[float, float]]) -> float:
    """Capacity for a mix of request classes (share, capacity): the harmonic mean by share."""
    if not classes or any(share < 0 or rps <= 0 for share, rps in classes):
        raise ValueError("Each class needs a share of 0 or more and a capacity above 0.")
    return sum(share for share, _ in classes) / sum(share / rps for share, rps in classes)


def fleet(demand: Demand, capacity_rps: float | None) -> Fleet:
    """Replicas = max(minimum, ceil(peak / (capacity * target load)) + spare), in whole nodes."""
    if capacity_rps is None:
        return Fleet(None, None, None)
    if not math.isfinite(capacity_rps) or capacity_rps <= 0:
        raise ValueError("A replica's capacity must be above 0 requests a second, or unknown.")
    busy = math.ceil(demand.peak_rps / (capacity_rps * demand.target_load) - SLACK)
    replicas = max(demand.min_replicas, busy + demand.spare_replicas)
    if demand.gpus_per_node is None:
        return Fleet(replicas, None, replicas * demand.gpus_per_replica)
    per_node = demand.gpus_per_node // demand.gpus_per_replica
    nodes = math.ceil(replicas / per_node) + demand.nodes_lost_survived
    return Fleet(replicas, nodes, nodes * demand.gpus_per_node)


def little(*, concurrency: int, mean_e2e_s: float, measured_rps: float) -> tuple[float, bool]:
    """(rate that a closed loop must show, does it within 5 %?). Little 1961: L = lambda W."""
    if mean_e2e_s <= 0:
        raise ValueError("The mean latency must be above 0 seconds.")
    expected = concurrency / mean_e2e_s
    return expected, abs(measured_rps / expected - 1) < 0.05


def roofline_tokens_per_s(
    *, batch: int, bandwidth_bytes_per_s: float, weight_bytes: float
) -> float:
    """Most tokens/s that memory allows: each step reads all weights once for the batch."""
    if weight_bytes <= 0 or bandwidth_bytes_per_s <= 0 or batch < 1:
        raise ValueError("Batch, bandwidth and weights must be above 0.")
    return batch * bandwidth_bytes_per_s / weight_bytes
