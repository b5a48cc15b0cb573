"""Summaries of many numbers: percentiles, weighted ones, and how sure a share is.

Requests of a queue are not independent: one long prompt delays all that come after it. So the confidence interval of an
attainment is Wilson's, at the number of independent requests that would vary as much as batches of neighbouring
requests do (batch means). Without correlation that is the number of requests itself.
"""

from __future__ import annotations

from math import isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from disagg_load.report import Distribution

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BATCHES = 25
"""Batches of neighbouring requests that the variance of a share is estimated from."""

Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


def a_second(count: float, seconds: float) -> float | None:
    """`count / seconds`; None where that is no finite number, over no time or over next to none."""
    rate = count / seconds if seconds > 0 else float("inf")
    return rate if isfinite(rate) else None


def distribution(values: Floats) -> Distribution | None:
    """Mean and percentiles (linear between neighbours) of seconds, or None where there are none."""
    if not values.size:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Distribution(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, max=float(values.max()))


def weighted_distribution(values: Floats, counts: NDArray[np.int64]) -> Distribution | None:
    """The distribution of `values[i]` seen `counts[i]` times each; a percentile is the smallest that covers it."""
    seen = counts > 0
    values, counts = values[seen], counts[seen]
    if not values.size:
        return None
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    below = np.cumsum(counts)
    total = int(below[-1])
    ranks = np.ceil(np.array((0.50, 0.90, 0.99)) * total)
    p50, p90, p99 = values[np.searchsorted(below, ranks)].tolist()
    mean = float(np.dot(values, counts)) / total
    return Distribution(mean=mean, p50=p50, p90=p90, p99=p99, max=float(values[-1]))


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share seen in `count` independent trials (0 to 1 without any)."""
    if count <= 0:
        return 0.0, 1.0
    square = Z_95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = Z_95 * sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if share == 0 else low), (1.0 if share == 1 else high)


def share_interval(met: Bools) -> tuple[float, float]:
    """The 95 % interval of the share of True in a sequence whose neighbours depend on each other."""
    count = met.size
    if not count:
        return 0.0, 1.0
    share = float(met.mean())
    independent = float(count)
    size = count // BATCHES
    if size >= 2 and 0 < share < 1:
        means = met[count - size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
        ratio = float(means.var(ddof=1)) / BATCHES / (share * (1 - share) / count)
        independent /= max(1.0, ratio)
    return wilson(share, independent)
