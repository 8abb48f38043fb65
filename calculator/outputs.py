"""Is the text unchanged? Greedy answers of both arms, judged beside the baseline against itself.

An engine need not repeat itself exactly: verifying several tokens at once adds numbers up in
another order than writing one, and where two tokens are almost equally likely the other one may
win. From there on two answers are two texts. So neither "some answers differ" nor "most are equal"
says whether speculation changed anything. What says it is *where* they part:

* The baseline is given the candidate's text token by token (teacher forcing). A token that it finds
  less likely than its own choice by more than its own noise was not written by the same model.
  After a harmless flip the text goes on to be judged, so one flip hides nothing.
* Without such scores: answers that part where the baseline's choice led by more than that noise.

The noise is measured, not assumed: by how much the baseline's lead of its first over its second
choice differs between writing a text and reading it again, over every token of its own answers, and
how far its own choices ever are from the best when read again. ``tolerance_nats`` is twice the
largest of these. One token beyond it is a change: twice the largest of thousands of differences is
not reached by noise, and a test that asked for more than one would need several times the tokens to
see a corruption of one token in a thousand.

Where the engine tells none of this, only rates are left: the candidate's answers equal the
baseline's less often, or part earlier, than the baseline's second run (McNemar, log-rank). Rates
alone never decide where positions are known: flips of near-ties are allowed to be more frequent.

Three outcomes. ``unchanged`` says how rare a change would have been found (``detectable_rate``).
What rates alone leave open is ``not_tested``, not a fourth outcome: with "some differ, by noise or
not" nobody has tested anything, and the reader's next step is the same, to check more answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from calculator.answers import ForcedScore, OutputRecord
from calculator.divergence import CurvePoint, Parted, curve, log_rank, parted
from calculator.noise import largest_noise, shaped
from calculator.statistics import exact_sign, holm, wilson
from calculator.traits import (
    Lengths,
    LengthSamples,
    Trait,
    adjusted,
    lengths,
    traits,
)

Status = Literal["unchanged", "changed", "not_tested"]
SIGNIFICANCE = 0.05
SUSPICION = 0.30
"""Rates alone with a p below this leave the question open."""
LEAST_TOLERANCE_NATS = 0.1
"""Below this two tokens count as equally likely however exact the engine is."""
TOLERANCE_OF_UNKNOWN_NOISE_NATS = 0.5
"""Where nothing says how large the noise is: what 16-bit arithmetic was seen to differ by."""
MOST_EXAMPLES = 20
MOST_MARGINS = 200

WHY: dict[str, str] = {
    "unlikely_tokens": (
        "The baseline, given the candidate's text, finds tokens less likely than its own choice by "
        "more than its own noise."
    ),
    "wide_divergence": (
        "Answers part where the baseline's choice led the next token by more than its own noise."
    ),
    "less_alike": (
        "The answers equal the baseline's less often, or part earlier, than the baseline's second "
        "run, and not by chance."
    ),
    "trait_changed": (
        "The answers stop differently, parse less often, repeat themselves more, or are missing, "
        "and not by chance."
    ),
    "lengths_changed": "The lengths of sampled answers differ, and not by chance.",
    "no_answers": "There are no answers with token ids of both arms.",
    "unexplained": (
        "Some answers differ, and nothing tells a change from the engine's own noise: it gives no "
        "probabilities, and there are too few answers."
    ),
}
"""Why a check ended as ``changed`` or as ``not_tested``, by code."""


@dataclass(frozen=True, slots=True)
class Match:
    """Requests whose answers were equal; Wilson limits of the share."""

    matched: int
    total: int
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Forced:
    """Tokens that the baseline scored: its own choice, within the tolerance of it, or beyond."""

    tokens: int
    chosen: int
    within: int
    beyond: int
    low: float | None
    """Wilson limits of the share that is chosen or within."""
    high: float | None


@dataclass(frozen=True, slots=True)
class Example:
    """Where one answer differs; for the members of its workspace only."""

    request_id: str
    run: int
    position: int
    """Of the token, from 0."""
    kind: Literal["unlikely", "wide", "near_tie", "differs"]
    nats: float | None


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """``not_tested``: nobody looked, or what was seen does not tell; ``why`` says which."""

    status: Status
    candidate_match: Match
    control_match: Match
    why: str | None = None
    """Code of WHY; None for ``unchanged``."""
    first_divergence: list[int] = field(default_factory=list)
    """Token positions, from 0, where a candidate's answer first left the baseline's."""
    match_p: float | None = None
    """One-sided p of "equal as often as the control" (McNemar, exact); None: no control."""
    curve: list[CurvePoint] = field(default_factory=list)
    curve_p: float | None = None
    """One-sided p of "parts no earlier than the control" (log-rank); None: no control."""
    tolerance_nats: float | None = None
    """None: the engine gives no probabilities."""
    margins: dict[str, list[float]] = field(default_factory=dict)
    """By ``candidate`` and ``control``: the baseline's lead where each answer first parted."""
    wide: int = 0
    """Candidate's answers that part at a lead beyond the tolerance, over all of its runs."""
    forced: dict[str, Forced | None] = field(default_factory=dict)
    """By ``candidate`` and ``control`` (the baseline's own text)."""
    not_scored: str | None = None
    """Code of ``answers.NOT_SCORED``."""
    traits: list[Trait] = field(default_factory=list)
    lengths: Lengths | None = None
    tokens_checked: int = 0
    """Tokens of the candidate that were scored; without scores, those before answers part."""
    detectable_rate: float | None = None
    """The rarest change (per token) that would have been found with 95 %; None: none would."""
    examples: list[Example] = field(default_factory=list)


def check_outputs(
    records: Mapping[int, OutputRecord],
    baseline_runs: Sequence[int],
    candidate_runs: Sequence[int],
    sampled: LengthSamples | None = None,
) -> OutputCheck:
    """Compare the candidate's answers with those of the baseline's first run, beside its second.

    ``records`` by the run's index. Rates compare one pair of runs each, so that a candidate that
    changes nothing differs as often as the baseline differs from itself; positions and scores are
    looked at in every run.
    """
    before = [records[run] for run in baseline_runs if run in records]
    after = {run: records[run] for run in candidate_runs if run in records}
    spread = None if sampled is None else lengths(sampled)
    if not before or not before[0].answers or not any(one.answers for one in after.values()):
        return OutputCheck("not_tested", _match({}), _match({}), "no_answers", lengths=spread)
    return _Check(before, after, spread).result()


class _Check:
    def __init__(
        self, before: list[OutputRecord], after: dict[int, OutputRecord], spread: Lengths | None
    ) -> None:
        self.base = before[0]
        self.again = before[1] if len(before) > 1 else None
        self.first = next(iter(after.values()))
        self.before, self.after = before, after
        self.spread = spread
        self.unusable = shaped(before)
        self.noise = largest_noise(before, self.unusable)
        self.candidate = _equal(self.base, self.first)
        self.control = {} if self.again is None else _equal(self.base, self.again)
        self.tolerance = self._tolerance()
        self.examples = sorted(self._examples(), key=_gravity)

    def result(self) -> OutputCheck:
        parts = {"candidate": _parts(self.base, self.first)}
        parts["control"] = [] if self.again is None else _parts(self.base, self.again)
        found = traits(self.base, self.first, self.again)
        match_p = curve_p = None
        if self.again is not None:
            match_p = exact_sign(*_discordant(self.candidate, self.control))
            curve_p = log_rank(parts["candidate"], parts["control"])
        # Where positions are known, how often answers part does not decide, so it is no test.
        rates = [p for p in (match_p, curve_p) if p is not None and not self.positions_known]
        by_holm = holm(
            [*(one.p for one in found), *([self.spread.p] if self.spread else []), *rates]
        )
        found = adjusted(found, by_holm[: len(found)])
        if self.spread is not None:
            self.spread = replace(self.spread, adjusted_p=by_holm[len(found)])
        status, why = self._status(found, by_holm[len(by_holm) - len(rates) :])
        tokens = self._tokens_checked(parts["candidate"])
        return OutputCheck(
            status,
            _match(self.candidate),
            _match(self.control),
            why,
            first_divergence=sorted(one.tokens for one in parts["candidate"] if one.differs),
            match_p=match_p,
            curve=curve(parts["candidate"], parts["control"]),
            curve_p=curve_p,
            tolerance_nats=self.tolerance,
            margins={
                "candidate": self._margins(self.first),
                "control": [] if self.again is None else self._margins(self.again),
            },
            wide=sum(one.kind == "wide" for one in self.examples),
            forced={
                "candidate": self._forced(self.after.values()),
                "control": self._forced(self.before),
            },
            not_scored=next((r.not_scored for r in self.after.values() if r.not_scored), None),
            traits=found,
            lengths=self.spread,
            tokens_checked=tokens,
            detectable_rate=self._detectable(tokens),
            examples=self.examples[:MOST_EXAMPLES],
        )

    @property
    def positions_known(self) -> bool:
        return self.tolerance is not None

    def _tolerance(self) -> float | None:
        """Nats; None where neither scores nor leads are known."""
        if self.noise is not None:
            return max(LEAST_TOLERANCE_NATS, 2 * self.noise)
        leads = any(answer.leads for answer in self.base.answers.values())
        if not leads and not self._scored(self.after.values()):
            return None
        margins = [] if self.again is None else self._margins(self.again)
        return max(TOLERANCE_OF_UNKNOWN_NOISE_NATS, *(2 * margin for margin in (0.0, *margins)))

    def _status(self, found: Sequence[Trait], rates: Sequence[float]) -> tuple[Status, str | None]:
        kinds = {one.kind for one in self.examples}
        if "unlikely" in kinds:
            return "changed", "unlikely_tokens"
        if "wide" in kinds:
            return "changed", "wide_divergence"
        if any(p < SIGNIFICANCE for p in rates):
            return "changed", "less_alike"
        if any(one.adjusted_p < SIGNIFICANCE for one in found):
            return "changed", "trait_changed"
        if self.spread is not None and self.spread.adjusted_p < SIGNIFICANCE:
            return "changed", "lengths_changed"
        if self._unexplained():
            return "not_tested", "unexplained"
        return "unchanged", None

    def _unexplained(self) -> bool:
        """Some answer differs, and only rates that are not clear could say why."""
        if all(self.candidate.values()):
            return False
        if self.positions_known:
            return self._silent()
        if not self.control or all(self.control.values()):
            return True
        return exact_sign(*_discordant(self.candidate, self.control)) < SUSPICION

    def _silent(self) -> bool:
        """Not one difference has a lead or a score: all of them are in shaped requests."""
        if self.first.answers.keys() != self.base.answers.keys():
            return False  # missing answers are a trait
        known = {"near_tie", "wide", "unlikely"}
        differs = [one for one in self.examples if one.run == next(iter(self.after))]
        return bool(differs) and not any(one.kind in known for one in differs)

    def _examples(self) -> Iterator[Example]:
        for run, record in self.after.items():
            for name in sorted(self.base.answers.keys() & record.answers.keys()):
                answer = record.answers[name]
                if answer.forced is not None and name not in self.unusable:
                    for position, nats in answer.forced.gaps:
                        if self.tolerance is not None and nats > self.tolerance:
                            yield Example(name, run, position, "unlikely", nats)
                part = parted(self.base.answers[name], answer)
                if part.differs:
                    yield self._parting(name, run, part.tokens, answer.forced is not None)

    def _parting(self, name: str, run: int, position: int, scored: bool) -> Example:
        lead = self._lead(name, position)
        if lead is None or self.tolerance is None:
            kind: Literal["near_tie", "differs"] = "near_tie" if scored else "differs"
            return Example(name, run, position, kind, None)
        return Example(name, run, position, "wide" if lead > self.tolerance else "near_tie", lead)

    def _lead(self, name: str, position: int) -> float | None:
        """The baseline's lead at a token; None where it is not known or did not choose."""
        leads = self.base.answers[name].leads
        lead = leads[position] if position < len(leads) else None
        return None if lead is None or lead < 0 or name in self.unusable else lead

    def _margins(self, other: OutputRecord) -> list[float]:
        found = []
        for name in self.base.answers.keys() & other.answers.keys():
            part = parted(self.base.answers[name], other.answers[name])
            lead = self._lead(name, part.tokens) if part.differs else None
            if lead is not None:
                found.append(lead)
        return sorted(found)[-MOST_MARGINS:]

    def _scored(self, records: Iterable[OutputRecord]) -> list[ForcedScore]:
        return [
            answer.forced
            for record in records
            for name, answer in record.answers.items()
            if answer.forced is not None and name not in self.unusable
        ]

    def _forced(self, records: Iterable[OutputRecord]) -> Forced | None:
        scores = self._scored(records)
        tokens = sum(score.tokens for score in scores)
        if not tokens or self.tolerance is None:
            return None
        gaps = [nats for score in scores for _, nats in score.gaps]
        beyond = sum(nats > self.tolerance for nats in gaps)
        share = wilson(tokens - beyond, tokens)
        return Forced(tokens, tokens - len(gaps), len(gaps) - beyond, beyond, share.low, share.high)

    def _tokens_checked(self, parts: Sequence[Parted]) -> int:
        scored = sum(score.tokens for score in self._scored(self.after.values()))
        return scored or sum(one.tokens + one.differs for one in parts)

    def _detectable(self, tokens: int) -> float | None:
        """The rate at which one change in ``tokens`` visible ones has a chance of 95 %.

        That none was seen bounds the rate by about 3 / n: J. A. Hanley, A. Lippman-Hand, "If
        nothing goes wrong, is everything all right?", JAMA 249 (1983) 1743-1745.
        """
        visible = tokens * self._visible_share()
        return 1 - SIGNIFICANCE ** (1 / visible) if visible > 0 else None

    def _visible_share(self) -> float:
        """Share of the baseline's tokens whose replacement by the next likely one would show."""
        if self.tolerance is None:
            return 1.0
        leads = [
            lead
            for name, answer in self.base.answers.items()
            if name not in self.unusable
            for lead in answer.leads
            if lead is not None and lead >= 0
        ]
        tolerance = self.tolerance
        return sum(lead > tolerance for lead in leads) / len(leads) if leads else 1.0


def _gravity(example: Example) -> tuple[int, float, str]:
    order = {"unlikely": 0, "wide": 1, "differs": 2, "near_tie": 3}
    return order[example.kind], -(example.nats or 0.0), example.request_id


def _equal(one: OutputRecord, other: OutputRecord) -> dict[str, bool]:
    return {
        name: name in other.answers and not parted(answer, other.answers[name]).differs
        for name, answer in one.answers.items()
    }


def _parts(one: OutputRecord, other: OutputRecord) -> list[Parted]:
    return [
        parted(one.answers[name], other.answers[name])
        for name in sorted(one.answers.keys() & other.answers.keys())
    ]


def _match(equal: Mapping[str, bool]) -> Match:
    matched = sum(equal.values())
    share = wilson(matched, len(equal))
    return Match(matched, len(equal), share.low, share.high)


def _discordant(candidate: Mapping[str, bool], control: Mapping[str, bool]) -> tuple[int, int]:
    """Requests whose answer equals the baseline's in the control only; in the candidate only."""
    lost = sum(control[name] and not candidate[name] for name in candidate)
    won = sum(candidate[name] and not control[name] for name in candidate)
    return lost, won
