"""Quantiles and shares from cumulative buckets, without the traps.

A quantile of nothing is None, not 0 and not the lowest bucket. One that lies beyond the last finite bound is flagged
saturated: the bound is then a lower limit, not the value. Inside a bucket the observations are taken as spread evenly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_planner.core.signals import Buckets


@dataclass(frozen=True, slots=True)
class Quantile:
    """`value` in the histogram's unit; with `saturated` the truth lies above it."""

    value: float
    saturated: bool = False


def usable(buckets: Buckets) -> bool:
    """Whether the buckets hold at least one observation and nothing that is not a number."""
    return bool(buckets) and all(math.isfinite(count) for _, count in buckets) and buckets[-1][1] > 0


def quantile(buckets: Buckets, q: float) -> Quantile | None:
    """The q-quantile, or None without observations."""
    if not usable(buckets):
        return None
    rank = q * buckets[-1][1]
    below, low = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            if math.isinf(bound):
                return Quantile(low, saturated=True)
            return Quantile(low + (bound - low) * (rank - below) / (count - below))
        if math.isfinite(bound):
            below, low = max(below, count), bound
    return Quantile(low, saturated=True)


def share_within(buckets: Buckets, limit: float) -> float | None:
    """Share of observations that are at most `limit`, or None without observations. Exact at bucket bounds."""
    if not usable(buckets):
        return None
    total = buckets[-1][1]
    below, low = 0.0, 0.0
    for bound, count in buckets:
        if limit <= bound:
            if math.isinf(bound):
                return below / total
            return (below + (count - below) * (limit - low) / (bound - low)) / total
        below, low = count, bound
    return below / total
