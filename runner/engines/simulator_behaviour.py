"""What a simulated engine does, as data: the truth that a test knows before it measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

READINESS_PROMPT = "Answer with one word to show that you are ready."
"""The start's own completion. Injected failures neither hit nor count it."""


class BehaviourError(ValueError):
    """A setting that makes no behaviour; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A batch engine in a few numbers.

    One loop serves all: a step takes ``step_ms`` plus ``step_slowdown_per_sequence_ms`` for each
    sequence in it, and gives each its tokens in one event. A request's first token comes
    ``ttft_ms`` after it arrived; it takes part in the steps that begin after that. So, with R
    sequences running, TPOT = (step_ms + R * step_slowdown_per_sequence_ms) / tokens per step.
    """

    ttft_ms: float = 20.0
    step_ms: float = 5.0
    step_slowdown_per_sequence_ms: float = 0.0
    tokens_per_step: float = 1.0
    """Mean tokens per step and sequence without drafts (2.5: two or three, evenly)."""
    draft_tokens: int = 0
    """Draft length k. Above 0, a step writes 1 + accepted tokens instead of ``tokens_per_step``,
    on average 1 + a + a^2 + ... + a^k with a = ``acceptance_rate``."""
    acceptance_rate: float = 0.0
    """Chance that a draft token is accepted, given that all before it were (0 to 1)."""
    draft_share: float = 1.0
    """Share of the steps that have a draft at all, as a lookup does not always find one."""
    output_tokens: int | None = None
    """Natural length of an answer; None: every answer is as long as ``max_tokens`` allows."""
    output_tokens_spread: float = 0.0
    """Natural lengths lie evenly within this share around ``output_tokens``, set by the prompt."""
    noise_cv: float = 0.0
    """Standard deviation of step time and TTFT as a share of their mean."""
    seed: int = 1
    """Same seed and same requests: same answers, lengths, accepted drafts and failures."""
    corrupt_token_rate: float = 0.0
    """Share of answer tokens replaced by others, as a faulty engine does; the text goes on from
    there as another one."""
    numerics_noise_nats: float = 0.0
    """Standard deviation of the noise in how far a token leads the runner-up. Another noise at each
    start, whatever the seed, as real engines have it: where it exceeds the lead, the runner-up is
    written. With 0.04 about 1 token in 200."""
    omit_logprobs: bool = False
    """Says no probabilities, of answers and of prompts alike."""
    omit_usage: bool = False
    error_rate: float = 0.0
    """Share of the requests that end in an error object inside a 200 after half of the answer."""
    cut_rate: float = 0.0
    """Share of the requests whose connection closes after half of the answer."""
    refuse_rate: float = 0.0
    """Share of the requests that get a 429 at once."""
    crash_after_requests: int | None = None
    """The process dies without a word when this many requests were taken, at their next step."""
    hang_after_requests: int | None = None
    """Requests after this many are taken and never answered."""
    exit_at_start: str | None = None
    """Print this and exit with code 1 instead of serving."""
    start_delay_s: float = 0.0

    @property
    def speculates(self) -> bool:
        return self.draft_tokens > 0

    @property
    def mean_tokens_per_step(self) -> float:
        """Expected tokens per step and sequence; for drafts the chain of Leviathan et al. 2022."""
        if not self.speculates:
            return self.tokens_per_step
        chain = sum(self.acceptance_rate**i for i in range(1, self.draft_tokens + 1))
        return 1.0 + self.draft_share * chain

    def tpot_ms(self, running: int) -> float:
        """Expected time per output token with ``running`` sequences in every step."""
        step_ms = self.step_ms + running * self.step_slowdown_per_sequence_ms
        return step_ms / self.mean_tokens_per_step


def from_document(document: Mapping[str, Any]) -> Behaviour:
    """A Behaviour from plain values; BehaviourError for a name or value that has no sense."""
    known = {field.name for field in fields(Behaviour)}
    unknown = sorted(set(document) - known)
    if unknown:
        raise BehaviourError(
            f"The simulator has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}."
        )
    behaviour = Behaviour(**document)
    for name, value in asdict(behaviour).items():
        _check(name, value)
    return behaviour


def to_document(behaviour: Behaviour) -> dict[str, Any]:
    return asdict(behaviour)


_SHARES = frozenset(
    {"acceptance_rate", "draft_share", "corrupt_token_rate", "error_rate", "cut_rate"}
    | {"refuse_rate", "output_tokens_spread"}
)
_COUNTS = {"draft_tokens": 0, "output_tokens": 1, "crash_after_requests": 1}
_OPTIONAL = {"output_tokens", "crash_after_requests", "hang_after_requests", "exit_at_start"}


def _check(name: str, value: object) -> None:
    if value is None and name in _OPTIONAL:
        return
    if name == "exit_at_start":
        good = isinstance(value, str)
    elif name in ("omit_usage", "omit_logprobs"):
        good = isinstance(value, bool)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        good = False
    elif name in _SHARES:
        good = 0 <= value <= 1
    elif name in _COUNTS or name in ("seed", "hang_after_requests"):
        good = isinstance(value, int) and value >= _COUNTS.get(name, 0)
    elif name == "step_ms":
        good = value > 0
    elif name == "tokens_per_step":
        good = value >= 1
    else:
        good = value >= 0
    if not good:
        raise BehaviourError(f"The simulator cannot use {name} = {value!r}.")
