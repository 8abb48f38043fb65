"""One request, one trial: raw time stamps in, the field's metrics out.

Every time stamp is in nanoseconds of the client's monotonic clock (``perf_counter_ns``), counted
from the start of the trial. Metrics are derived, never stored, so that a definition can be
corrected without measuring again.

Definitions (``docs/metrics.md`` repeats them in words):

* TTFT = first token - sent
* E2E = last token - sent
* TPOT = (last token - first token) / (output tokens - tokens in the first event)

In an open loop, where users do not wait for each other, "sent" is when the request should have
gone out: a client that is late must not make a slow server look fast (coordinated omission,
G. Tene, "How NOT to Measure Latency", 2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


MARKS: dict[str, str] = {
    "tokens_estimated": "The server sent no usage; its own tokeniser counted the answer's text.",
    "usage_impossible": "The server's usage contradicts itself or the answer, and is not used.",
    "only_reasoning": "The answer ended before its first word: all of it was reasoning.",
}
"""What is odd about a request that was measured, by code."""


class Outcome(StrEnum):
    """How one request ended. Only ``OK`` enters latency figures; all are counted."""

    OK = "ok"
    ERROR = "error"  # the server answered with an error, before or inside the stream
    CUT = "cut"  # the connection closed before a finish reason or [DONE]
    TIMEOUT = "timeout"  # our own time limit; a censored value, not a missing one
    REFUSED = "refused"  # connection refused, or 429 / 503


@dataclass(frozen=True, slots=True)
class Measurement:
    """One request of one trial. Holds no prompt and no answer text."""

    request_id: str
    """Stable id of the request in the sample: the key by which arms are paired."""
    sequence: int
    """Position in the trial's send order, from 0."""
    category: str | None
    outcome: Outcome
    scheduled_ns: int
    """When the request should have gone out."""
    sent_ns: int
    done_ns: int
    """When the stream ended, however it ended."""
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    """First non-empty text, reasoning or tool-call piece. A role-only event is none."""
    last_token_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    """From the server's ``usage``; a chunk is not a token. None when the server did not say."""
    first_event_tokens: int | None = None
    """Tokens in the first token-bearing event, where the server says so; else None."""
    chunks: int = 0
    """Number of token-bearing events."""
    finish_reason: str | None = None
    error_kind: str | None = None
    """A short code such as ``http_500``; never a server's text, which may quote a prompt."""
    first_reasoning_ns: int | None = None
    """First non-empty piece of reasoning ("thinking")."""
    first_answer_ns: int | None = None
    """First non-empty piece of text or of a tool call that is no reasoning."""
    retry_after_s: float | None = None
    """What a refusal's Retry-After asked for. Refusals are counted and never sent again."""
    open_loop: bool = False
    """Latencies count from ``scheduled_ns`` instead of ``sent_ns``."""
    marks: tuple[str, ...] = ()
    """Codes of MARKS."""
    chunk_gaps_us: Sequence[int] = ()
    """Per token-bearing event: microseconds since the one before; the first since ``began_ns``."""
    chunk_bytes: Sequence[int] = ()
    """Per token-bearing event: bytes of its text in UTF-8."""
    chunk_tokens: Sequence[int] = ()
    """Per token-bearing event: its tokens; empty where the server does not say."""

    @property
    def began_ns(self) -> int:
        """From when latencies count."""
        return self.scheduled_ns if self.open_loop else self.sent_ns

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token in ms; None when no token came."""
        return self._since_began(self.first_token_ns)

    @property
    def ttfr_ms(self) -> float | None:
        """Time to first reasoning in ms; None when no reasoning came."""
        return self._since_began(self.first_reasoning_ns)

    @property
    def ttfa_ms(self) -> float | None:
        """Time to first answer token in ms; None when none came (only reasoning, or nothing)."""
        return self._since_began(self.first_answer_ns)

    def _since_began(self, at_ns: int | None) -> float | None:
        return None if at_ns is None else (at_ns - self.began_ns) / NS_PER_MS

    @property
    def e2e_ms(self) -> float | None:
        """End-to-end latency, send to last token, in ms; None when no token came."""
        return self._since_began(self.last_token_ns)

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first event, in ms.

        None when tokens are unknown or all of them came in the first event.
        """
        if self.first_token_ns is None or self.last_token_ns is None or self.output_tokens is None:
            return None
        later = self.output_tokens - (self.first_event_tokens or 1)
        if later <= 0:
            return None
        return (self.last_token_ns - self.first_token_ns) / NS_PER_MS / later

    @property
    def lateness_ms(self) -> float:
        """How late our own send was, in ms; large values mean the client was the bottleneck."""
        return (self.sent_ns - self.scheduled_ns) / NS_PER_MS


@dataclass(frozen=True, slots=True)
class SpeculationCounters:
    """Differences of an engine's cumulative counters over one trial; None = not exposed."""

    drafts: float | None = None
    """Verification steps that had a draft."""
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    requests_finished: float | None = None
    prefix_cache_hits: float | None = None
    prefix_cache_queries: float | None = None
    preemptions: float | None = None


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """What the load generator says of itself for one trial."""

    lateness_p99_ms: float
    cpu_s: float
    """CPU time that the client's process spent during the trial."""
    overhead_share: float
    """Share of the trial's wall time in which the client's own work held the event loop."""
    peak_in_flight: int
    loop_stall_max_ms: float
    probe_p50_ms: float | None = None
    """How late our own time stamps were: bytes that another process sent through the loop-back
    now and then, written to read. None: not probed."""
    probe_p99_ms: float | None = None
    ruler_ttft_p50_error_ms: float | None = None
    """How far off the load generator's TTFT was, at this load and before the run, against a local
    server that answers when it says. None: that was not looked at."""
    ruler_ttft_p99_error_ms: float | None = None
    processes: int = 1
    """Sending processes; of the other figures the worst is given, of CPU time the sum."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One load level replayed inside one run (one server start), with all its requests."""

    arm: str
    run: int
    """Index of the run in the plan's order, from 0."""
    block: int
    """Index of the pairing block: the k-th run of each arm shares block k."""
    concurrency: int
    duration_s: float
    measurements: tuple[Measurement, ...]
    counters: SpeculationCounters | None
    client: ClientHealth | None
    """None for trials measured by somebody else's tool."""
    invalid_reasons: tuple[str, ...] = ()
    """Codes of ``validity.REASONS`` that only whoever measured could see."""
