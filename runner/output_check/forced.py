"""Teacher forcing: a server reads prompt and answer as one prompt and says how likely each token
is.

Never asked of a server that speculates: its own scores can be wrong where its text is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from calculator.answers import ForcedScore
from runner.engines.base import Endpoint
from runner.output_check.exchange import Ask, exchange
from runner.output_check.greedy import GreedyAnswer
from runner.output_check.read import lead, prompt_steps

CONCURRENCY = 1
"""One at a time: scoring holds the probabilities of a whole prompt in the engine's memory."""
_TOPS = 2


def unscorable(answers: Mapping[str, GreedyAnswer]) -> str | None:
    """Why none of them can be scored, as a code of NOT_SCORED; None: some can."""
    if any(_scorable(answer) for answer in answers.values()):
        return None
    known = [answer for answer in answers.values() if answer.prompt_ids and answer.token_ids]
    return "shaped" if known else "no_token_ids"


def _scorable(answer: GreedyAnswer) -> bool:
    return bool(answer.prompt_ids and answer.token_ids and not answer.shaped)


def score(
    endpoint: Endpoint,
    answers: Mapping[str, GreedyAnswer],
    *,
    timeout_s: float,
    own: bool,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, ForcedScore]:
    """What the server thinks of each answer, by request id; those that it can't score are missing.

    ``own``: this server wrote the answers, so that their leads tell its noise. Answers of shaped
    requests are left out, as the model's own order did not choose them. Raises ReplayStopped or
    ServerGone.
    """
    chosen = {name: answer for name, answer in answers.items() if _scorable(answer)}
    asks = [
        Ask(
            name,
            "completion",
            {
                "model": endpoint.model,
                "prompt": [*answer.prompt_ids, *answer.token_ids],
                "max_tokens": 1,
                "temperature": 0,
                "prompt_logprobs": _TOPS,
                "stream": False,
            },
        )
        for name, answer in chosen.items()
    ]
    found = {}
    for name, document in exchange(
        endpoint, asks, concurrency=CONCURRENCY, timeout_s=timeout_s, should_stop=should_stop
    ):
        try:
            steps = prompt_steps(document["choices"][0])
        except (LookupError, TypeError, AttributeError):
            continue
        answer = chosen[name]
        if steps is not None and len(steps) == len(answer.prompt_ids) + len(answer.token_ids):
            result = _scored(answer, steps[len(answer.prompt_ids) :], own)
            if result is not None:
                found[name] = result
    return found


def _scored(
    answer: GreedyAnswer, steps: Sequence[Mapping[int, float]], own: bool
) -> ForcedScore | None:
    """None when a step does not tell the token's own probability."""
    gaps: list[tuple[int, float]] = []
    noise: list[float] = []
    for position, (token, step) in enumerate(zip(answer.token_ids, steps, strict=True)):
        if token not in step:
            return None
        gap = max(step.values()) - step[token]
        if gap > 0:
            gaps.append((position, round(gap, 6)))
        written = answer.leads[position] if position < len(answer.leads) else None
        read = lead(step, token)
        if own and written is not None and read is not None:
            noise.append(abs(written - read))
    return ForcedScore(len(answer.token_ids), tuple(gaps), max(noise, default=None))
