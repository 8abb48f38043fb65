"""The simulated batch engine: one step loop, its counters, and the text of its ``/metrics``."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from runner.engines.simulator_behaviour import Behaviour
from runner.engines.simulator_text import Script

CACHE_BLOCK_TOKENS = 16
CRASH_CODE = 70


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the engine. ``emit(start, end)`` is called with each new span of tokens."""

    script: Script
    emit: Callable[[int, int], None]
    written: int = 0

    @property
    def ended(self) -> bool:
        return self.written >= len(self.script.answer_ids)


@dataclass(slots=True)
class Counters:
    """Cumulative, as vLLM counts."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    generation_tokens: int = 0
    prompt_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    finished: Counter[str] = field(default_factory=lambda: Counter({"stop": 0, "length": 0}))
    steps: int = 0
    late_s: float = 0.0
    """Sum over steps of how much later than due they ended: the ruler's own error."""
    latest_s: float = 0.0


class Engine:
    """Runs sequences in steps. ``add`` from the event loop; tokens come back through ``emit``."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.counters = Counters(accepted_per_position=[0] * behaviour.draft_tokens)
        self.taken = 0
        self._running: list[Sequence] = []
        self._prefilling = 0
        self._noise = random.Random(behaviour.seed)  # noqa: S311 no secret depends on it
        self._work = asyncio.Event()
        self._cached_blocks: set[int] = set()

    @property
    def in_flight(self) -> int:
        return len(self._running) + self._prefilling

    async def run(self) -> None:
        """The step loop; never returns."""
        due = perf_counter()
        while True:
            if not self._running:
                self._work.clear()
                await self._work.wait()
                due = perf_counter()
            batch = list(self._running)
            due += self._step_s(len(batch))
            await _sleep_until(due)
            self._note_lateness(due)
            self._crash_if_due()
            for sequence in batch:
                if sequence in self._running:
                    self._step(sequence)

    async def prefill(self, sequence: Sequence, arrived: float, cache_salt: str) -> int:
        """Wait for the first token's time, write it and join the batch; returns cached tokens.

        ``arrived`` is the request's time on ``perf_counter``.
        """
        self.taken += not sequence.script.is_probe
        cached = self._look_up(sequence.script.prompt_ids, cache_salt)
        self._prefilling += 1
        due = arrived + self.behaviour.ttft_ms / 1000 * self._noise_factor()
        try:
            await _sleep_until(due)
        finally:
            self._prefilling -= 1
        self._note_lateness(due)
        self._crash_if_due()
        self.counters.prompt_tokens += len(sequence.script.prompt_ids)
        self._running.append(sequence)
        self._write(sequence, 1)
        self._work.set()
        return cached

    def drop(self, sequence: Sequence) -> None:
        """The client went away."""
        if sequence in self._running:
            self._running.remove(sequence)

    def hangs(self) -> bool:
        limit = self.behaviour.hang_after_requests
        return limit is not None and self.taken >= limit

    def _step_s(self, running: int) -> float:
        behaviour = self.behaviour
        step_ms = behaviour.step_ms + running * behaviour.step_slowdown_per_sequence_ms
        return step_ms / 1000 * self._noise_factor()

    def _noise_factor(self) -> float:
        if self.behaviour.noise_cv == 0:
            return 1.0
        return max(0.05, self._noise.gauss(1.0, self.behaviour.noise_cv))

    def _step(self, sequence: Sequence) -> None:
        behaviour, chance = self.behaviour, sequence.script.tokens_random
        if not behaviour.speculates:
            whole = int(behaviour.tokens_per_step)
            self._write(sequence, whole + (chance.random() < behaviour.tokens_per_step - whole))
            return
        accepted = 0
        if chance.random() < behaviour.draft_share:
            while accepted < behaviour.draft_tokens and chance.random() < behaviour.acceptance_rate:
                accepted += 1
            counters = self.counters
            counters.drafts += 1
            counters.draft_tokens += behaviour.draft_tokens
            counters.accepted_tokens += accepted
            for position in range(accepted):
                counters.accepted_per_position[position] += 1
        self._write(sequence, 1 + accepted)

    def _write(self, sequence: Sequence, tokens: int) -> None:
        start = sequence.written
        sequence.written = min(start + tokens, len(sequence.script.answer_ids))
        self.counters.generation_tokens += sequence.written - start
        sequence.emit(start, sequence.written)
        if sequence.ended:
            self.drop(sequence)
            self.counters.finished[sequence.script.finish_reason] += 1

    def _look_up(self, prompt_ids: tuple[int, ...], cache_salt: str) -> int:
        """Tokens at the prompt's start that a request of the same salt had sent before."""
        cached, chain, unbroken = 0, hash(cache_salt), True
        for end in range(CACHE_BLOCK_TOKENS, len(prompt_ids), CACHE_BLOCK_TOKENS):
            chain = hash((chain, prompt_ids[end - CACHE_BLOCK_TOKENS : end]))
            unbroken = unbroken and chain in self._cached_blocks
            cached += CACHE_BLOCK_TOKENS * unbroken
            self._cached_blocks.add(chain)
        self.counters.prefix_cache_queries += len(prompt_ids)
        self.counters.prefix_cache_hits += cached
        return cached

    def _note_lateness(self, due: float) -> None:
        late = max(0.0, perf_counter() - due)
        self.counters.steps += 1
        self.counters.late_s += late
        self.counters.latest_s = max(self.counters.latest_s, late)

    def _crash_if_due(self) -> None:
        limit = self.behaviour.crash_after_requests
        if limit is not None and self.taken >= limit:
            os._exit(CRASH_CODE)

    def metrics_text(self, model: str) -> str:
        """Prometheus text with vLLM's names; the draft counters exist only when drafting."""
        counters = self.counters
        labels = f'engine="0",model_name="{_escape(model)}"'
        lines: list[str] = []

        def write(name: str, kind: str, *samples: tuple[str, float]) -> None:
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(f"{name}{{{labels}{extra}}} {float(value)}" for extra, value in samples)

        write("vllm:num_requests_running", "gauge", ("", self.in_flight))
        write("vllm:num_requests_waiting", "gauge", ("", 0))
        write("vllm:prompt_tokens_total", "counter", ("", counters.prompt_tokens))
        write("vllm:generation_tokens_total", "counter", ("", counters.generation_tokens))
        write("vllm:prefix_cache_queries_total", "counter", ("", counters.prefix_cache_queries))
        write("vllm:prefix_cache_hits_total", "counter", ("", counters.prefix_cache_hits))
        write("vllm:num_preemptions_total", "counter", ("", 0))
        write(
            "vllm:request_success_total",
            "counter",
            *((f',finished_reason="{reason}"', n) for reason, n in counters.finished.items()),
        )
        if self.behaviour.speculates:
            prefix = "vllm:spec_decode_num"
            write(f"{prefix}_drafts_total", "counter", ("", counters.drafts))
            write(f"{prefix}_draft_tokens_total", "counter", ("", counters.draft_tokens))
            write(f"{prefix}_accepted_tokens_total", "counter", ("", counters.accepted_tokens))
            write(
                f"{prefix}_accepted_tokens_per_pos_total",
                "counter",
                *((f',position="{i}"', n) for i, n in enumerate(counters.accepted_per_position)),
            )
        write("simulator:steps_total", "counter", ("", counters.steps))
        write("simulator:late_seconds_total", "counter", ("", counters.late_s))
        write("simulator:latest_step_seconds", "gauge", ("", counters.latest_s))
        return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


async def _sleep_until(due: float) -> None:
    await asyncio.sleep(max(0.0, due - perf_counter()))
