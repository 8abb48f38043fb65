"""What answers look like besides their tokens: how they stop, whether they parse, how long they
are.

Each trait is compared pair by pair with the baseline's answer to the same request, by an exact
sign test, with the baseline's second run beside it as the control.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import numpy as np
from scipy import special

from calculator.answers import AnswerRecord, OutputRecord
from calculator.columns import Ints, TrialColumns
from calculator.statistics import exact_sign

Name = Literal["answered", "stopped_by_itself", "json_valid", "tool_calls_valid", "repeated_share"]


@dataclass(frozen=True, slots=True)
class Trait:
    """One trait in both arms. Means are shares, over the ``pairs`` that have the trait in both."""

    name: Name
    pairs: int
    baseline: float
    candidate: float
    control: float | None
    """The baseline's second run; None: there is none, or no pair with it."""
    worse: int
    """Pairs in which the candidate's answer is worse."""
    better: int
    p: float
    """Of "the candidate's answers are not worse"; of how answers stop: "not different"."""
    adjusted_p: float = 1.0
    """Holm's, for having looked at several."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of sampled answers (the measured traffic): the greatest distance between the arms'
    distribution functions, and its p. ``control``: the baseline's own two starts."""

    requests: int
    distance: float
    p: float
    control_distance: float | None
    control_p: float | None
    adjusted_p: float = 1.0


@dataclass(frozen=True, slots=True)
class LengthSamples:
    """Output tokens of completed requests in one start of each."""

    baseline: Sequence[int] | Ints
    candidate: Sequence[int] | Ints
    again: Sequence[int] | Ints = ()
    """The baseline's second start."""


def traits(
    baseline: OutputRecord, candidate: OutputRecord, control: OutputRecord | None
) -> list[Trait]:
    """Every trait that some pair of answers has; p values are not yet adjusted."""
    found = [_answered(baseline, candidate, control)]
    for name, value in _VALUES.items():
        trait = _paired(name, value, baseline, candidate, control)
        if trait is not None:
            found.append(trait)
    return found


def adjusted(traits: Sequence[Trait], by: Sequence[float]) -> list[Trait]:
    return [replace(trait, adjusted_p=p) for trait, p in zip(traits, by, strict=True)]


def _stopped(answer: AnswerRecord) -> float | None:
    return None if answer.stop_reason is None else float(answer.stop_reason != "length")


def _json(answer: AnswerRecord) -> float | None:
    return None if answer.json_valid is None else float(answer.json_valid)


def _tools(answer: AnswerRecord) -> float | None:
    return None if answer.tool_calls_valid is None else float(answer.tool_calls_valid)


def _repeated(answer: AnswerRecord) -> float | None:
    return answer.repeated_share


Value = Callable[[AnswerRecord], float | None]
_VALUES: dict[Name, Value] = {
    "stopped_by_itself": _stopped,
    "json_valid": _json,
    "tool_calls_valid": _tools,
    "repeated_share": _repeated,
}


def _answered(
    baseline: OutputRecord, candidate: OutputRecord, control: OutputRecord | None
) -> Trait:
    """Requests that got no answer with token ids count here, and in no other trait."""
    lost = len(baseline.answers.keys() - candidate.answers.keys())
    won = len(candidate.answers.keys() - baseline.answers.keys())
    asked = max(1, baseline.asked)
    return Trait(
        "answered",
        pairs=baseline.asked,
        baseline=len(baseline.answers) / asked,
        candidate=len(candidate.answers) / asked,
        control=None if control is None else len(control.answers) / max(1, control.asked),
        worse=lost,
        better=won,
        p=exact_sign(lost, won),
    )


def _paired(
    name: Name,
    value: Value,
    baseline: OutputRecord,
    candidate: OutputRecord,
    control: OutputRecord | None,
) -> Trait | None:
    pairs = _pairs(value, baseline.answers, candidate.answers)
    if not pairs:
        return None
    lower = sum(after < before for before, after in pairs)
    higher = sum(after > before for before, after in pairs)
    worse, better = (higher, lower) if name == "repeated_share" else (lower, higher)
    p = exact_sign(worse, better)
    if name == "stopped_by_itself":  # ending early is as much a change as running on
        p = min(1.0, 2 * min(p, exact_sign(better, worse)))
    again = [] if control is None else _pairs(value, baseline.answers, control.answers)
    return Trait(
        name,
        pairs=len(pairs),
        baseline=_mean([before for before, _ in pairs]),
        candidate=_mean([after for _, after in pairs]),
        control=_mean([after for _, after in again]) if again else None,
        worse=worse,
        better=better,
        p=p,
    )


def _pairs(
    value: Value, one: Mapping[str, AnswerRecord], other: Mapping[str, AnswerRecord]
) -> list[tuple[float, float]]:
    found = []
    for name in one.keys() & other.keys():
        before, after = value(one[name]), value(other[name])
        if before is not None and after is not None:
            found.append((before, after))
    return found


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def sampled_lengths(trials: Sequence[TrialColumns], baseline: str) -> LengthSamples:
    """Output tokens in each arm's first start and in the baseline's second, over all levels: of
    the requests that all of them completed, so that a time-out does not shorten one side."""
    levels = sorted({trial.concurrency for trial in trials})

    def tokens(of_baseline: bool, start: int) -> tuple[Ints, Ints]:
        """(n,) each: which request at which level, as one number, and its output tokens."""
        ours = [trial for trial in trials if (trial.arm == baseline) == of_baseline]
        blocks = sorted({trial.block for trial in ours})[start : start + 1]
        keys, written = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for trial in ours:
            if trial.block in blocks:
                known = trial.ok & np.isfinite(trial.output_tokens)
                keys.append(trial.request[known] * len(levels) + levels.index(trial.concurrency))
                written.append(trial.output_tokens[known].astype(np.int64))
        return np.concatenate(keys), np.concatenate(written)

    sides = [tokens(True, 0), tokens(False, 0), tokens(True, 1)]
    measured = [keys for keys, _ in sides if keys.size]
    common = reduce(np.intersect1d, measured) if measured else ()
    return LengthSamples(*(written[np.isin(keys, common)] for keys, written in sides))


def lengths(samples: LengthSamples) -> Lengths | None:
    """Two-sample Kolmogorov-Smirnov test with its asymptotic p; None where an arm has nothing.

    N. Smirnov, "Table for estimating the goodness of fit of empirical distributions", Annals of
    Mathematical Statistics 19 (1948) 279-281. Ties, and that both arms answer the same requests,
    make it say "different" less often than its p promises.
    """
    if not len(samples.baseline) or not len(samples.candidate):
        return None
    distance, p = _smirnov(samples.baseline, samples.candidate)
    again = _smirnov(samples.baseline, samples.again) if len(samples.again) else (None, None)
    return Lengths(len(samples.candidate), distance, p, *again)


def _smirnov(one: Sequence[int] | Ints, other: Sequence[int] | Ints) -> tuple[float, float]:
    first, second = np.sort(np.asarray(one)), np.sort(np.asarray(other))
    at = np.union1d(first, second)
    shares = [np.searchsorted(part, at, side="right") / len(part) for part in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    effective = len(first) * len(second) / (len(first) + len(second))
    return distance, float(special.kolmogorov(distance * math.sqrt(effective)))
