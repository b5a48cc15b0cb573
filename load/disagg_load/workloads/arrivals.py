"""Arrival processes: when requests come.

Each process is an endless, ascending stream of arrival times in seconds, the first at 0, with a known mean rate. The
burstiness of a renewal process is the coefficient of variation (CV) of its gaps: 0 for a clock, 1 for Poisson, above 1
for bursts. Gamma gaps with shape 1 / CV^2 reach any CV.

A renewal process draws gaps of mean 1 and divides their sums by its rate. So its times at rate r are exactly those at
rate 1 divided by r: a search over rates that scales one drawn load compares all rates on the same random numbers.
Where the rate itself changes with time, see `disagg_load.workloads.curves`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Protocol

import numpy as np

from disagg_load.errors import WorkloadError

from . import portable
from .portable import Floats
from .quantiles import QuantileTable
from .streams import Stream, Streams

LARGEST_BLOCK = 2**16


class Arrivals(Protocol):
    """A process of arrivals with `rate` requests a second in the mean."""

    @property
    def rate(self) -> float:
        """Mean requests a second."""
        ...

    def blocks(self, streams: Streams, *, until_seconds: float = inf) -> Iterator[Floats]:
        """Arrival times in seconds, ascending from 0, a block at a time, without end or to beyond `until_seconds`."""
        ...


def check_rate(rate: float) -> None:
    """Refuse a rate that is none."""
    if not (isfinite(rate) and rate > 0):
        raise WorkloadError(f"a rate of {rate} requests/s was asked for, a number above 0 is needed")


def block_sizes() -> Iterator[int]:
    """How many arrivals to draw at a time: few at first, for the many short loads, then as many as caches like."""
    size = 2**10
    while True:
        yield size
        size = min(2 * size, LARGEST_BLOCK)


def _sums(gaps: Iterator[Floats]) -> Iterator[Floats]:
    """Times of events that gaps lie between, the first at 0. Sums run in order, so blocks change nothing."""
    last = 0.0
    yield np.zeros(1)
    for block in gaps:
        block[:1] += last
        times = np.cumsum(block)
        last = float(times[-1]) if len(times) else last
        yield times


@dataclass(frozen=True)
class ClockArrivals:
    """One request every 1 / rate seconds."""

    rate: float

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def blocks(self, streams: Streams, *, until_seconds: float = inf) -> Iterator[Floats]:
        """Arrival times."""
        first = 0
        for size in block_sizes():
            yield np.arange(first, first + size, dtype=np.float64) / self.rate
            first += size


@dataclass(frozen=True)
class PoissonArrivals:
    """Independent users: exponential gaps, CV 1."""

    rate: float

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def blocks(self, streams: Streams, *, until_seconds: float = inf) -> Iterator[Floats]:
        """Arrival times."""
        stream = streams.stream("arrivals")
        return (times / self.rate for times in _sums(-portable.log(stream.uniforms(size)) for size in block_sizes()))


@dataclass(frozen=True)
class GammaArrivals:
    """Gamma gaps with this coefficient of variation: bursts above 1, more regular than Poisson below."""

    rate: float
    cv: float

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if not (isfinite(self.cv) and self.cv > 0):
            raise WorkloadError(f"an inter-arrival CV of {self.cv} was asked for, a number above 0 is needed")

    def blocks(self, streams: Streams, *, until_seconds: float = inf) -> Iterator[Floats]:
        """Arrival times."""
        shape = 1 / (self.cv * self.cv)
        stream = streams.stream("arrivals")
        gaps = (_gammas(shape, stream, size) / shape for size in block_sizes())
        return (times / self.rate for times in _sums(gaps))


def _gammas(shape: float, stream: Stream, candidates: int) -> Floats:
    """Gamma variates of scale 1 out of so many candidates, of which nearly all are taken.

    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000); below shape 1 by their
    boost, u^(1/shape) times a variate of shape + 1. Each candidate takes three uniform numbers, whatever becomes of it.
    """
    rows = stream.uniforms(3 * candidates).reshape(candidates, 3)
    d = (shape if shape >= 1 else shape + 1) - 1 / 3
    normal = portable.normal_quantile(rows[:, 0].copy())
    root = 1 + normal / sqrt(9 * d)
    possible = root > 0
    cube = np.where(possible, root * root * root, 1.0)
    limit = normal * normal / 2 + d - d * cube + d * portable.log(cube)
    taken = possible & (portable.log(rows[:, 1].copy()) < limit)
    values: Floats = d * cube[taken]
    if shape < 1:
        values *= portable.exp(portable.log(rows[taken, 2]) / shape)
    return values


@dataclass(frozen=True)
class EmpiricalArrivals:
    """Independent gaps shaped like a measured distribution, stretched to this rate."""

    rate: float
    gaps_seconds: QuantileTable

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def blocks(self, streams: Streams, *, until_seconds: float = inf) -> Iterator[Floats]:
        """Arrival times."""
        stream = streams.stream("arrivals")
        mean = self.gaps_seconds.mean()
        gaps = (self.gaps_seconds.at(100 * stream.uniforms(size)) / mean for size in block_sizes())
        return (times / self.rate for times in _sums(gaps))


@dataclass(frozen=True)
class TickedArrivals:
    """Poisson arrivals as a trace with a coarse clock records them: in batches, one every `tick_seconds`."""

    rate: float
    tick_seconds: float

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if not (isfinite(self.tick_seconds) and self.tick_seconds > 0):
            raise WorkloadError(f"a tick of {self.tick_seconds} s was asked for, a number above 0 is needed")

    def blocks(self, streams: Streams, *, until_seconds: float = inf) -> Iterator[Floats]:
        """Arrival times, all of them multiples of the tick."""
        for times in PoissonArrivals(self.rate).blocks(streams):
            yield np.floor(times / self.tick_seconds) * self.tick_seconds
