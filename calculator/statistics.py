"""Intervals for few server starts and few to many paired requests.

The design behind every formula: the same n requests are measured once in each of B blocks (a
block is one server start of each arm), so requests and blocks are *crossed*. A per-request value
(for a comparison: log of candidate over baseline) is modelled with two random effects,

    y[i, b] = mean + request[i] + block[b] + noise[i, b]

and the mean's variance is request/n + block/B + noise/(n B). The variance of the n request means
over n estimates request/n + noise/(n B); the variance of the B block means over B estimates
block/B + noise/(n B). Their sum counts the noise twice and so is never too small on average. For
two arms the noise is estimated too and taken off once; neither part is ever set to zero. This is
the crossed random-effects analysis of S. R. Searle, G. Casella, C. E. McCulloch, *Variance
Components* (Wiley, 1992), section 4.3, and of A. B. Owen, "The pigeonhole bootstrap", Annals of
Applied Statistics 1 (2007) 386-411, which shows that resampling or counting
only one of the two factors makes intervals too narrow.

Degrees of freedom follow B. L. Welch, "The generalization of Student's problem when several
different population variances are involved", Biometrika 34 (1947) 28-35, and F. E. Satterthwaite,
"An approximate distribution of estimates of variance components", Biometrics Bulletin 2 (1946)
110-114. With one block the variation between starts is unknown and there is no interval.

Block variances are not pooled over load levels: the levels of one run share its server start, so
pooling would add no degree of freedom beyond B - 1. Where two arms are compared, each arm's own
starts are counted (``compared``): `make truth` shows what that does with two and three starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence limits; None = unknown. Low and high come together."""

    estimate: float | None = None
    low: float | None = None
    high: float | None = None


UNKNOWN = Interval()


@dataclass(frozen=True, slots=True)
class Evidence:
    """A mean and the two parts of its variance, from which any interval can be made."""

    mean: float
    request_variance: float | None
    """Variance of the mean that more requests would lower; None when one request tells nothing."""
    block_variance: float | None
    """Variance of the mean that more server starts would lower; None with too few starts."""
    requests: int
    blocks: int
    block_df: float
    """Degrees of freedom behind ``block_variance``: B - 1 for one arm, up to 2 (B - 1) for two."""

    noise_variance: float = 0.0
    """What both parts hold, from one answer to the next of the same request; taken off once."""

    @property
    def variance(self) -> float | None:
        if self.request_variance is None or self.block_variance is None:
            return None
        both = self.request_variance + self.block_variance
        return max(both - self.noise_variance, self.request_variance, self.block_variance)

    @property
    def degrees_of_freedom(self) -> float | None:
        """Welch-Satterthwaite; between block_df and the sum of both parts' degrees."""
        if self.request_variance is None or self.block_variance is None:
            return None
        return satterthwaite(
            (self.request_variance, self.requests - 1), (self.block_variance, self.block_df)
        )

    def half_width(self, confidence: float = 0.95) -> float | None:
        """Half the t interval's width on the scale of ``mean``; None when it can't be known."""
        variance, df = self.variance, self.degrees_of_freedom
        if variance is None or df is None:
            return None
        return t_quantile(df, confidence) * math.sqrt(variance)

    def interval(self, confidence: float = 0.95) -> Interval:
        """The t interval on the scale of ``mean``."""
        half = self.half_width(confidence)
        if half is None:
            return Interval(self.mean)
        return Interval(self.mean, self.mean - half, self.mean + half)

    def ratio(self, confidence: float = 0.95) -> Interval:
        """The interval of exp(mean), for evidence on log values."""
        return exponential(self.interval(confidence))

    def inverse(self) -> Evidence:
        """Evidence of the negated mean: a log ratio with its arms swapped."""
        return replace(self, mean=-self.mean)


def t_quantile(df: float, confidence: float) -> float:
    """Two-sided Student t quantile for real-valued degrees of freedom."""
    return float(special.stdtrit(df, (1 + confidence) / 2))


def satterthwaite(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of independent (variance, degrees of freedom) parts.

    When nothing varies at all, the smallest degrees of freedom are returned.
    """
    total = sum(variance for variance, _ in parts)
    if total <= 0:
        return min(df for _, df in parts)
    return 1 / sum((variance / total) ** 2 / df for variance, df in parts if variance > 0)


def exponential(interval: Interval) -> Interval:
    """An interval of log values as one of ratios; what overflows becomes unknown."""
    if interval.estimate is None:
        return UNKNOWN
    if interval.low is None or interval.high is None or interval.high > 700:
        return Interval(math.exp(interval.estimate) if interval.estimate < 700 else None)
    return Interval(math.exp(interval.estimate), math.exp(interval.low), math.exp(interval.high))


def crossed(values: Floats) -> Evidence | None:
    """Evidence for the mean over requests of the mean over blocks.

    ``values`` has shape (requests, blocks), in any unit; NaN where a pair is missing. Rows and
    columns without any value are left out. None when nothing is left. With missing pairs, the
    variance between blocks is weighted by each block's share in the mean.
    """
    present = np.isfinite(values)
    present = present[present.any(axis=1)][:, present.any(axis=0)]
    values = values[np.isfinite(values).any(axis=1)][:, np.isfinite(values).any(axis=0)]
    requests, blocks = values.shape
    if requests == 0:
        return None
    filled = np.where(present, values, 0.0)
    per_request = present.sum(axis=1)
    request_means = filled.sum(axis=1) / per_request
    block_means = filled.sum(axis=0) / present.sum(axis=0)
    shares = (present / per_request[:, None]).sum(axis=0) / requests
    return Evidence(
        mean=float(request_means.mean()),
        request_variance=_variance_of_mean(request_means),
        block_variance=_weighted(block_means, shares),
        requests=requests,
        blocks=blocks,
        block_df=blocks - 1,
    )


def compared(before: Floats, after: Floats) -> Evidence | None:
    """Evidence for the mean of ``after - before``: a log ratio of two arms, paired by request.

    Both have shape (requests, blocks), NaN where a request is not in both. The mean and the
    requests' part are those of ``crossed``; the starts' part comes from each arm's own server
    starts: two variances of B - 1 degrees of freedom instead of one, with B. L. Welch's degrees for
    their sum. What both arms of a block share (a machine that wanders) is thereby counted, not
    cancelled: wider then, never narrower. Requests that one block misses say nothing about starts;
    without two that all blocks have, the blocks' differences are all there is.
    """
    found = crossed(after - before)
    if found is None or found.blocks < 2:
        return found
    seen = np.isfinite(after - before)
    blocks = seen.any(axis=0)
    whole = seen[:, blocks].all(axis=1)
    if whole.sum() < 2:
        return found
    complete = (before[whole][:, blocks], after[whole][:, blocks])
    variance, df = _of_two_arms(complete[0].mean(axis=0), complete[1].mean(axis=0))
    noise = _noise_of_mean(complete[1] - complete[0]) * int(whole.sum()) / found.requests
    return replace(found, block_variance=variance, block_df=df, noise_variance=noise)


def compared_totals(before: Floats, after: Floats, influence: Floats) -> Evidence | None:
    """Evidence for the ratio of two arms' rates: ``totals`` of their difference, the starts' part
    from each arm's own starts as in ``compared``. ``before`` and ``after`` (B,) are log rates."""
    found = totals(after - before, influence)
    if found is None or found.blocks < 2:
        return found
    variance, df = _of_two_arms(before, after)
    return replace(found, block_variance=variance, block_df=df)


def _of_two_arms(before: Floats, after: Floats) -> tuple[float, float]:
    """Variance of mean(after) - mean(before) over B starts each, and its degrees of freedom."""
    parts = [(float(arm.var(ddof=1)) / len(arm), len(arm) - 1) for arm in (before, after)]
    return sum(variance for variance, _ in parts), satterthwaite(*parts)


def _noise_of_mean(values: Floats) -> float:
    """noise/(n B): the interaction of requests and blocks over (n - 1)(B - 1) degrees of freedom,
    over the number of values (Searle et al., section 4.3)."""
    left = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
    degrees = (values.shape[0] - 1) * (values.shape[1] - 1)
    return float((left**2).sum() / degrees / values.size)


def totals(block_values: Floats, influence: Floats) -> Evidence | None:
    """Evidence for a log rate (a ratio of totals, such as tokens over seconds).

    ``block_values`` (B,) are the log rates, or log ratios of rates, of each block; ``influence``
    (n, B) says how much each request moved them: the linearised value of a ratio estimator
    (W. G. Cochran, *Sampling Techniques*, 3rd ed., 1977, section 2.11; the delta method). Blocks
    alone do not show how much the choice of requests matters, since all use the same requests.
    """
    blocks = len(block_values)
    moved = crossed(influence) if influence.size else None
    if blocks == 0 or not np.isfinite(block_values).all():
        return None
    return Evidence(
        mean=float(block_values.mean()),
        request_variance=None if moved is None else moved.request_variance,
        block_variance=_variance_of_mean(block_values),
        requests=0 if moved is None else moved.requests,
        blocks=blocks,
        block_df=blocks - 1,
    )


def mean_level(values: Floats, confidence: float = 0.95) -> Interval:
    """Arithmetic mean of positive values (requests, blocks) with an interval that stays positive.

    The t interval is made for log(mean) by the delta method, relative error = SE / mean.
    """
    evidence = crossed(values)
    if evidence is None:
        return UNKNOWN
    half = evidence.half_width(confidence)
    if half is None or evidence.mean <= 0 or half / evidence.mean > 700:
        return Interval(evidence.mean)
    factor = math.exp(half / evidence.mean)
    return Interval(evidence.mean, evidence.mean / factor, evidence.mean * factor)


def first_against_later(values: Floats) -> Evidence | None:
    """Later blocks minus first blocks of one arm: what two measurements of one thing differ by.

    ``values`` (requests, blocks) are logs; the first half of the blocks (rounded down) are the
    first. The variance between starts is pooled within the two groups, B - 2 degrees of freedom,
    so two starts give an estimate and no interval.
    """
    complete = values[np.isfinite(values).all(axis=1)] if values.size else values
    requests, blocks = complete.shape
    first = blocks // 2
    if requests == 0 or first == 0:
        return None
    groups = (complete[:, :first], complete[:, first:])
    difference = groups[1].mean(axis=1) - groups[0].mean(axis=1)
    return Evidence(
        mean=float(difference.mean()),
        request_variance=_variance_of_mean(difference),
        block_variance=_pooled(groups) if blocks > 2 else None,
        requests=requests,
        blocks=blocks,
        block_df=blocks - 2,
    )


def wilson(matched: int, total: int, confidence: float = 0.95) -> Interval:
    """Score interval of a share. E. B. Wilson, "Probable inference, the law of succession, and
    statistical inference", JASA 22 (1927) 209-212. Unknown when nothing was counted."""
    if total <= 0:
        return UNKNOWN
    z = float(special.ndtri((1 + confidence) / 2))
    share = matched / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + (z / total / 2) ** 2)
    low = 0.0 if matched == 0 else max(0.0, centre - half)
    high = 1.0 if matched == total else min(1.0, centre + half)
    return Interval(share, low, high)


def fisher_fewer(matched: int, total: int, control_matched: int, control_total: int) -> float:
    """One-sided p of "the first share is not smaller than the control's". R. A. Fisher, *The
    Design of Experiments* (1935), chapter 2; the hypergeometric tail given both margins."""
    everything, hits = total + control_total, matched + control_matched
    if total <= 0 or control_total <= 0:
        return 1.0
    lowest = max(0, hits - control_total)
    tail = sum(
        math.comb(hits, k) * math.comb(everything - hits, total - k)
        for k in range(lowest, matched + 1)
    )
    return tail / math.comb(everything, total)


def exact_sign(worse: int, better: int) -> float:
    """One-sided p of "worse is as likely as better", given how many pairs differ.

    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or
    percentages", Psychometrika 12 (1947) 153-157; the binomial tail, not its approximation.
    """
    return float(special.bdtrc(worse - 1, worse + better, 0.5)) if worse else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """p values as if each had been the only one looked at.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
    Statistics 6 (1979) 65-70.
    """
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


@dataclass(frozen=True, slots=True)
class Need:
    """How much measuring would settle a question, if the variation stays as it was."""

    blocks: int
    requests: int


ASSURANCE = 0.70
"""A variance seen on few starts is as likely too small as too large, and too small costs more: the
planner takes the upper limit that holds with this chance."""


def needed(
    evidence: Evidence, distance: float, confidence: float = 0.95, power: float = 0.80
) -> Need | None:
    """The cheapest (server starts) x (requests) that shows an effect ``distance`` away from what
    has to be excluded, with this chance: (t of the confidence + t of the power) x SE < distance.

    J. Cohen, *Statistical Power Analysis for the Behavioral Sciences*, 2nd ed. (1988), section
    2.4, with an upper limit of the variance: M. Kieser, G. Wassmer, "On the use of the upper
    confidence limit for the variance from a pilot sample for sample size determination",
    Biometrical Journal 38 (1996) 941-949. Looks at up to 30 starts and up to 64 times the requests;
    None when even that is too little, or when the present variation is unknown.
    """
    df = evidence.degrees_of_freedom
    if df is None or distance <= 0:
        return None
    surely = math.sqrt(df / float(special.chdtri(df, ASSURANCE)))
    found: list[Need] = []
    for factor in (1, 2, 4, 8, 16, 32, 64):
        for blocks in range(max(2, evidence.blocks), 31):
            planned = _planned(evidence, factor, blocks)
            half, planned_df = planned.half_width(confidence), planned.degrees_of_freedom
            if half is None or planned_df is None:
                return None
            share = float(special.stdtrit(planned_df, power)) / t_quantile(planned_df, confidence)
            if half * (1 + share) * surely < distance:
                found.append(Need(blocks, planned.requests))
                break
    return min(found, key=lambda need: (need.blocks * need.requests, need.blocks), default=None)


def _planned(evidence: Evidence, factor: int, blocks: int) -> Evidence:
    """What ``factor`` times the requests on ``blocks`` starts would show of the same world."""
    more_starts = evidence.blocks / blocks
    return replace(
        evidence,
        request_variance=(evidence.request_variance or 0.0) / factor,
        block_variance=(evidence.block_variance or 0.0) * more_starts,
        noise_variance=evidence.noise_variance / factor * more_starts,
        requests=evidence.requests * factor,
        blocks=blocks,
        block_df=evidence.block_df * (blocks - 1) / (evidence.blocks - 1),
    )


def _variance_of_mean(values: Floats) -> float | None:
    return None if len(values) < 2 else float(values.var(ddof=1)) / len(values)


def _weighted(block_means: Floats, shares: Floats) -> float | None:
    if len(block_means) < 2:
        return None
    return float(block_means.var(ddof=1)) * float((shares**2).sum())


def _pooled(groups: tuple[Floats, Floats]) -> float:
    means = [group.mean(axis=0) for group in groups]
    spread = sum(float(((mean - mean.mean()) ** 2).sum()) for mean in means)
    df = sum(len(mean) - 1 for mean in means)
    return spread / df * sum(1 / len(mean) for mean in means)
