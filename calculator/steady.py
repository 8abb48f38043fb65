"""Is a server keeping up with what is asked of it?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from calculator.columns import Ints
from calculator.measurement import NS_PER_MS
from calculator.statistics import Floats

FEWEST_ARRIVALS = 40
BASE_OF = 10
"""The first answers, which found no queue yet, say how long one takes without it."""
TRANSIENT_BASES = 4
"""The requests in flight rise by themselves for about as long as an answer takes."""
MOST_PILED_UP = 0.10
FEWEST_A_THIRD = 10
MOST_SLOWER = 1.25
SURELY_Z = 3.1


def queue_grows(sent_ns: Sequence[int] | Ints, done_ns: Sequence[int] | Ints, now_ns: int) -> bool:
    """More requests arrive than are answered, so that the queue grows without bound.

    ``sent_ns`` are the sends so far and ``done_ns`` the ends so far, both ascending and of one
    clock, the first send at the trial's start; what lies after ``now_ns`` is not looked at. In the
    second half of the time until then, more than a tenth of the arrivals, and more than three
    standard deviations of a Poisson count of them, joined the queue for good: a stable queue gives
    back what it takes (conservation of flow; L. Kleinrock, *Queueing Systems* I, 1975, section
    2.1). False where too little is seen: fewer than 40 arrivals, or a half shorter than four
    unqueued answers.
    """
    if len(sent_ns) < 2 or len(done_ns) < BASE_OF:
        return False
    sent, done = np.asarray(sent_ns), np.asarray(done_ns)
    began_ns = int(sent[0])
    middle_ns = (began_ns + now_ns) // 2
    base_ns = int(done[BASE_OF - 1]) - int(sent[BASE_OF - 1])
    if now_ns - middle_ns < TRANSIENT_BASES * max(base_ns, NS_PER_MS):
        return False
    arrived = np.searchsorted(sent, now_ns, "right") - np.searchsorted(sent, middle_ns)
    ended = np.searchsorted(done, now_ns, "right") - np.searchsorted(done, middle_ns)
    if arrived < FEWEST_ARRIVALS:
        return False
    return bool(arrived - ended > MOST_PILED_UP * arrived + 3 * math.sqrt(arrived))


def gets_slower(values: Sequence[float | None] | Floats) -> bool:
    """Is the last third of ``values``, in the order of their sends, larger than the first?

    By more than a quarter of the median, and more than chance explains: the rank-sum test of
    F. Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1 (1945) 80-83,
    in its normal approximation, one-sided, z above 3.1 (p = 0.001). Requests are sent in a drawn
    order, so long ones do not pile up at one end. False with fewer than 10 known values
    (neither None nor NaN) a third.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    third = len(known) // 3
    if third < FEWEST_A_THIRD:
        return False
    first, last = known[:third], known[-third:]
    if np.median(last) <= MOST_SLOWER * np.median(first):
        return False
    order = np.concatenate([first, last]).argsort(kind="stable").argsort(kind="stable")
    rank_sum = float(order[third:].sum()) + third
    expected = third * (2 * third + 1) / 2
    deviation = math.sqrt(third * third * (2 * third + 1) / 12)
    return (rank_sum - expected) / deviation > SURELY_Z
