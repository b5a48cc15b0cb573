"""Whether a deployment keeps up with what it is offered.

Beyond capacity a queue grows for as long as the load lasts, so a mean delay says how long the run was and nothing about
the deployment. Two signs are needed before a run is called unstable:

growth     the time in the system rises with the time of arrival, through most of the run and by a good part of what it
           was at the start (in first-come-first-served order its slope is the load less 1)
overload   the backlog that the last arrival left is worked off more slowly than requests had come in on the average

A burst at the end of a bearable load shows growth but is worked off fast; a large deployment in which many requests are
in service at once drains slowly by chance but shows no growth. Where a run is cut off before it drains, the completions
of its second half stand for the drain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from disagg_simulator.statistics import Bools, Floats, a_second

FEWEST_REQUESTS = 30
"""With fewer requests nothing is said."""

WINDOWS = 10
"""Windows of equally many arrivals; the first one is start-up and left out of the trend."""

RISING_SHARE = 0.75
"""Pairs of windows of which the later one must have the longer delay (1/2 is no trend)."""

GROWTH = 0.25
"""Growth from the early windows to the late ones that counts, as a share of the early delay."""

MARGIN = 0.01
"""How far the load must be above 1: what a finite run cannot tell from 1."""

SPANS = 2.0
"""A run without growth that is shorter than so many median times in the system is all start-up and says nothing."""

DRAINED, DRAINED_MOST, DRAINED_REQUESTS = 0.3, 0.7, 60
"""Part of the last backlog whose completion is timed, or so many requests, up to the larger part.

Towards the end nobody waits any more: what is left runs in ever smaller batches, and without new prompts in between.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """stable: None where a run is too short to tell. offered: mean arrivals a second, None without a span.

    capacity: completions a second in the middle of the run. load: the offered rate over it. Both only where the run is
    unstable.
    """

    stable: bool | None
    offered_requests_per_second: float | None
    load: float | None = None
    capacity_requests_per_second: float | None = None

    @property
    def unstable(self) -> bool:
        """Whether the load is known to exceed the capacity."""
        return self.stable is False


def grows(delays: Floats) -> bool:
    """Whether delays (in order of arrival) keep growing through a run, by more than a finite run's noise."""
    if delays.size < FEWEST_REQUESTS:
        return False
    medians = np.array([np.median(window) for window in np.array_split(delays, WINDOWS)])[1:]
    later, earlier = np.tril_indices(medians.size, -1)
    rising = float(np.mean(medians[later] > medians[earlier]))
    third = medians.size // 3
    early, late = float(np.mean(medians[:third])), float(np.mean(medians[-third:]))
    return rising >= RISING_SHARE and late - early > GROWTH * max(early, float(np.median(delays)) * 0.1)


def assess(arrival: Floats, finish: Floats) -> Stability:
    """Judge a run. arrival: ascending; finish: NaN where a request was not done when the run was cut off."""
    count = arrival.size
    span = float(arrival[-1] - arrival[0]) if count else 0.0
    offered = a_second(count - 1, span)
    if offered is None or count < FEWEST_REQUESTS:
        return Stability(stable=None, offered_requests_per_second=offered)
    done = ~np.isnan(finish)
    drained = bool(done.all())
    if not (grows(finish - arrival) if drained else _falls_behind(arrival, finish, done)):
        long_enough = not done.any() or span > SPANS * float(np.median((finish - arrival)[done]))
        return Stability(stable=True if long_enough else None, offered_requests_per_second=offered)
    last = float(arrival[-1])
    ends = np.sort(finish[done])
    served = _drain_rate(ends, last) if drained else _late_rate(ends, last)
    if served is None or offered <= served * (1 + MARGIN):
        return Stability(stable=True, offered_requests_per_second=offered)
    capacity = _middle_rate(ends)
    return Stability(
        stable=False,
        offered_requests_per_second=offered,
        load=offered / capacity if capacity else None,
        capacity_requests_per_second=capacity,
    )


def _falls_behind(arrival: Floats, finish: Floats, done: Bools) -> bool:
    """Growth in a run that was cut off: of those who came before the last one that got done, or half are not done."""
    if np.count_nonzero(done) * 2 < done.size:
        return True
    until = int(np.flatnonzero(done)[-1]) + 1
    delays = (finish - arrival)[:until]
    return grows(delays[done[:until]])


def _drain_rate(ends: Floats, last: float) -> float | None:
    """Requests a second while the backlog at the last arrival is worked off; None for a backlog of a few."""
    backlog = ends[np.searchsorted(ends, last, side="right") :]
    few = int(max(backlog.size * DRAINED, min(backlog.size * DRAINED_MOST, DRAINED_REQUESTS)))
    if few < 3 or backlog[few - 1] <= last:
        return None
    return few / float(backlog[few - 1] - last)


def _late_rate(ends: Floats, last: float) -> float | None:
    """Completions a second in the second half of the arrivals."""
    if last <= 0:
        return None
    return float(np.count_nonzero((ends > last / 2) & (ends <= last))) / (last / 2)


def _middle_rate(ends: Floats) -> float | None:
    """Completions a second between the fifth and the last fifth of them."""
    low, high = int(ends.size * 0.2), int(ends.size * 0.8)
    if high <= low or ends[high] <= ends[low]:
        return None
    return (high - low) / float(ends[high] - ends[low])
