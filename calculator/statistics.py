"""Intervals for few server starts and few to many paired requests.

The design behind every formula: the same n requests are measured once in each of B blocks (a
block is one server start of each arm), so requests and blocks are *crossed*. A per-request value
(for a comparison: log of candidate over baseline) is modelled with two random effects,

    y[i, b] = mean + request[i] + block[b] + noise[i, b]

and the mean's variance is request/n + block/B + noise/(n B). The variance of the n request means
over n estimates request/n + noise/(n B); the variance of the B block means over B estimates
block/B + noise/(n B). Their sum counts the noise twice and so is never too small on average; the
block part is never subtracted or set to zero. This is the crossed random-effects analysis of
S. R. Searle, G. Casella, C. E. McCulloch, *Variance Components* (Wiley, 1992), section 4.3, and of
A. B. Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1 (2007) 386-411, which shows
that resampling or counting only one of the two factors makes intervals too narrow.

Degrees of freedom follow B. L. Welch, "The generalization of Student's problem when several
different population variances are involved", Biometrika 34 (1947) 28-35, and F. E. Satterthwaite,
"An approximate distribution of estimates of variance components", Biometrics Bulletin 2 (1946)
110-114. With one block the variation between starts is unknown and there is no interval.

Block variances are not pooled over load levels: the levels of one run share its server start, so
pooling would add no degree of freedom beyond B - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    block_df: int
    """Degrees of freedom behind ``block_variance``; B - 1 for paired blocks."""

    @property
    def variance(self) -> float | None:
        if self.request_variance is None or self.block_variance is None:
            return None
        return self.request_variance + self.block_variance

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
        return Evidence(
            -self.mean,
            self.request_variance,
            self.block_variance,
            self.requests,
            self.blocks,
            self.block_df,
        )


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


@dataclass(frozen=True, slots=True)
class Need:
    """How much measuring would settle a question, if the variation stays as it was."""

    blocks: int
    requests: int


def needed(evidence: Evidence, distance: float, confidence: float = 0.95) -> Need | None:
    """The cheapest (server starts) x (requests) whose half width is below ``distance``.

    Looks at up to 30 starts and up to 64 times the requests; None when even that is too little,
    or when the present variation is unknown.
    """
    request, block = evidence.request_variance, evidence.block_variance
    if request is None or block is None or distance <= 0:
        return None
    found: list[Need] = []
    for factor in (1, 2, 4, 8, 16, 32, 64):
        requests = evidence.requests * factor
        blocks = _blocks_needed(evidence, request / factor, requests, distance, confidence)
        if blocks is not None:
            found.append(Need(blocks, requests))
    return min(found, key=lambda need: (need.blocks * need.requests, need.blocks), default=None)


def _blocks_needed(
    evidence: Evidence, request: float, requests: int, distance: float, confidence: float
) -> int | None:
    for blocks in range(max(2, evidence.blocks), 31):
        block = (evidence.block_variance or 0.0) * evidence.blocks / blocks
        df = satterthwaite((request, max(1, requests - 1)), (block, blocks - 1))
        if t_quantile(df, confidence) * math.sqrt(request + block) < distance:
            return blocks
    return None


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
