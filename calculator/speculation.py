"""What drafting can gain, from acceptance. Y. Leviathan, M. Kalman, Y. Matias, "Fast inference from
transformers via speculative decoding", ICML 2023 (arXiv 2211.17192), equations 1 and 3.8."""

from __future__ import annotations

from typing import Literal


def expected_tokens(*, acceptance: float, draft_tokens: int) -> float:
    """Tokens per verification step when each draft token is accepted with ``acceptance``:
    (1 - a^(k+1)) / (1 - a), and k + 1 when every token is accepted."""
    if not 0 <= acceptance <= 1 or draft_tokens < 0:
        raise ValueError("Acceptance lies between 0 and 1, and drafts have 0 tokens or more.")
    if acceptance == 1:
        return float(draft_tokens + 1)
    return float((1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance))


def leviathan_speedup(*, acceptance: float, draft_tokens: int, draft_cost_ratio: float) -> float:
    """Wall-time gain at batch 1; ``draft_cost_ratio`` = time of a draft step over a target step."""
    tokens = expected_tokens(acceptance=acceptance, draft_tokens=draft_tokens)
    return tokens / (draft_tokens * draft_cost_ratio + 1)


def break_even_batch(
    *,
    tokens_per_step: float,
    base_fixed_ms: float,
    base_ms_per_seq: float,
    spec_fixed_ms: float,
    spec_ms_per_seq: float,
) -> tuple[float | None, Literal["wins_below", "always_wins", "never_wins"]]:
    """The batch at which speculation stops paying, with step times linear in the batch.

    Solves tokens_per_step * (a + b B) = a' + b' B.
    """
    room = tokens_per_step * base_fixed_ms - spec_fixed_ms
    slope = spec_ms_per_seq - tokens_per_step * base_ms_per_seq
    if slope <= 0:
        return None, "always_wins"
    if room <= 0:
        return None, "never_wins"
    return room / slope, "wins_below"


def amdahl(*, decode_share: float, decode_speedup: float) -> float:
    """Speed-up of whole requests when only decoding gets faster."""
    if not 0 <= decode_share <= 1 or decode_speedup <= 0:
        raise ValueError("The decode share lies between 0 and 1; the speed-up is above 0.")
    return 1 / ((1 - decode_share) + decode_share / decode_speedup)
