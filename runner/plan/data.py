"""An experiment as data: what a PLAN.toml, or a row of the site, says."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

Method = Literal["none", "ngram", "suffix", "draft_model"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One engine configuration. ``method`` "none" is the baseline; exactly one arm has it."""

    name: str
    method: Method = "none"
    parameters: dict[str, Any] = field(default_factory=dict)
    """Parameters of the method from the allow-list in ``runner.arms``."""


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A closed loop: ``concurrency`` requests in flight until ``requests`` were sent."""

    concurrency: int
    requests: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is served and how. ``engine`` "simulator" serves behaviour instead of a model."""

    engine: Literal["vllm", "simulator"]
    model: str
    """A local folder or a Hugging Face id; the served name for the simulator."""
    dtype: str = "auto"
    max_model_len: int | None = None
    enforce_eager: bool = False
    simulator: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For the simulator: behaviour by method name, e.g. {"none": {...}, "ngram": {...}}."""


@dataclass(frozen=True, slots=True)
class Slo:
    """The promise to users; a clause that is None is not promised."""

    ttft_p95_ms: float | None = None
    tpot_p95_ms: float | None = None
    e2e_p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What one engine costs per hour, who says so and since when (ISO date)."""

    usd_per_hour: Decimal
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class Design:
    """How often and how long. Defaults are those of the site."""

    runs_per_arm: int = 3
    seed: int = 1
    warmup_requests: int = 2
    output_check_requests: int = 16
    output_check_tokens: int = 256
    """Of each answer, at most. All answers together decide how rare a change can be found: 4,096
    tokens are enough for one token in 1,000."""
    max_output_tokens: int | None = None
    request_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What the verdict is asked for."""

    min_gain_percent: float = 5.0
    """The smallest gain that matters."""
    own_concurrency: int | None = None
    """Requests in flight at the client's own busy hour, when known."""
    requests_per_month: float | None = None
    peak_to_mean: float = 2.0


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """One question asked of one sample and one target."""

    target: Target
    arms: tuple[Arm, ...]
    levels: tuple[LoadLevel, ...]
    price: Price
    slo: Slo = Slo()
    design: Design = Design()
    decision: Decision = Decision()


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One load level of one run. ``cache_salt`` keeps its prefix cache apart."""

    index: int
    level: LoadLevel
    request_ids: tuple[str, ...]
    cache_salt: str


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One server start of one arm; the k-th run of every arm is block k."""

    index: int
    arm: Arm
    block: int
    warmup_ids: tuple[str, ...]
    trials: tuple[PlannedTrial, ...]
    output_check_ids: tuple[str, ...]


class PlanError(Exception):
    """The plan can't be carried out; the text is one sentence that says what to change."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What the schedule needs to know of a request: no text."""

    id: str
    category: str | None = None
    prompt_key: str | None = None
    """Equal for equal prompts; None: this prompt is the only one of its kind."""
