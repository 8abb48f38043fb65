"""The order in which one run answers greedily and has its answers scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from calculator.answers import ForcedScore, OutputRecord
from runner.engines.base import Endpoint, EngineError
from runner.output_check.forced import score, unscorable
from runner.output_check.greedy import GreedyAnswer, greedy_answers
from runner.output_check.record import output_record
from runner.plan import Design, PlannedRun
from runner.traffic.request import NormalisedRequest

CONCURRENCY = 4
"""The same in every arm: how many requests run together changes an engine's noise."""
Result = TypeVar("Result")


class Wait(Protocol):
    """Does work beside the engine. Raises EngineStopped, and EngineError where the engine ends."""

    def __call__(self, work: Callable[[Callable[[], bool]], Result], /) -> Result: ...


class OutputCheckPhase:
    """``tell`` gets the record of the answers, and again with what the baseline thinks of them.

    ``start_scorer`` ends this run's engine and starts the baseline's in its place.
    """

    def __init__(
        self,
        planned: PlannedRun,
        design: Design,
        *,
        key: bytes,
        cache_salt: str,
        wait: Wait,
        start_scorer: Callable[[], Endpoint],
        tell: Callable[[OutputRecord], None],
    ) -> None:
        self._planned, self._design = planned, design
        self._key, self._cache_salt = key, cache_salt
        self._wait, self._start_scorer, self._tell = wait, start_scorer, tell
        self._is_baseline = planned.arm.method == "none"

    def carry_out(self, endpoint: Endpoint, chosen: Sequence[NormalisedRequest]) -> None:
        """Raises what ``wait`` raises while answers are written; scoring raises EngineStopped only:
        all is measured by then, so an engine that fails costs the scores and not the run."""
        answers = self._wait(
            lambda stop: greedy_answers(
                endpoint,
                chosen,
                max_tokens=self._design.output_check_tokens,
                concurrency=CONCURRENCY,
                timeout_s=self._design.request_timeout_s,
                cache_salt=self._cache_salt,
                leads=self._is_baseline,
                should_stop=stop,
            )
        )
        self._record(answers, {}, None)
        # One start of a candidate is enough: each costs a start of the baseline's engine.
        if self._is_baseline or self._planned.block == 0:
            self._record(answers, *self._scores(endpoint, answers))

    def _record(
        self,
        answers: Mapping[str, GreedyAnswer],
        scores: Mapping[str, ForcedScore],
        not_scored: str | None,
    ) -> None:
        self._tell(
            output_record(
                answers,
                scores,
                asked=len(self._planned.output_check_ids),
                concurrency=CONCURRENCY,
                key=self._key,
                not_scored=not_scored,
            )
        )

    def _scores(
        self, endpoint: Endpoint, answers: Mapping[str, GreedyAnswer]
    ) -> tuple[dict[str, ForcedScore], str | None]:
        """The baseline's scores of the answers, or a code of NOT_SCORED.

        A candidate's are scored at once, by a baseline that is started for it, so that no token id
        outlives the run that made it.
        """
        why_not = unscorable(answers)
        if why_not is not None:
            return {}, why_not
        try:
            scorer = endpoint if self._is_baseline else self._start_scorer()
            scores = self._wait(
                lambda stop: score(
                    scorer,
                    answers,
                    timeout_s=self._design.request_timeout_s,
                    own=self._is_baseline,
                    should_stop=stop,
                )
            )
        except EngineError:
            return {}, "engine_failed"
        return scores, None if scores else "no_prompt_logprobs"
