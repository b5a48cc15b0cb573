"""Arrival processes: when requests come.

Each process is an endless, ascending stream of arrival times in seconds, the first at 0, with a known mean rate. The
burstiness of a renewal process is the coefficient of variation (CV) of its gaps: 0 for a clock, 1 for Poisson, above 1
for bursts. Gamma gaps with shape 1 / CV^2 reach any CV.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, isfinite, log1p
from random import Random
from typing import Protocol

from disagg_load.errors import WorkloadError

from .quantiles import QuantileTable


class Arrivals(Protocol):
    """A process of arrivals with `rate` requests a second in the mean."""

    @property
    def rate(self) -> float:
        """Mean requests a second."""
        ...

    def times(self, rng: Random) -> Iterator[float]:
        """Arrival times in seconds, ascending from 0, without end."""
        ...


def _check_rate(rate: float) -> None:
    if not (isfinite(rate) and rate > 0):
        raise WorkloadError(f"a rate of {rate} requests/s was asked for, a number above 0 is needed")


@dataclass(frozen=True)
class PoissonArrivals:
    """Independent users: exponential gaps, CV 1."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def times(self, rng: Random) -> Iterator[float]:
        """Arrival times."""
        now = 0.0
        while True:
            yield now
            now -= log1p(-rng.random()) / self.rate


@dataclass(frozen=True)
class GammaArrivals:
    """Gamma gaps with this coefficient of variation: bursts above 1, more regular than Poisson below."""

    rate: float
    cv: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if not (isfinite(self.cv) and self.cv > 0):
            raise WorkloadError(f"an inter-arrival CV of {self.cv} was asked for, a number above 0 is needed")

    def times(self, rng: Random) -> Iterator[float]:
        """Arrival times."""
        shape = self.cv**-2
        now = 0.0
        while True:
            yield now
            now += rng.gammavariate(shape, 1 / (shape * self.rate))


@dataclass(frozen=True)
class EmpiricalArrivals:
    """Independent gaps shaped like a measured distribution, stretched to this rate."""

    rate: float
    gaps_seconds: QuantileTable

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def times(self, rng: Random) -> Iterator[float]:
        """Arrival times."""
        stretch = 1 / (self.rate * self.gaps_seconds.mean())
        now = 0.0
        while True:
            yield now
            now += stretch * self.gaps_seconds.at(100 * rng.random())


@dataclass(frozen=True)
class TickedArrivals:
    """Poisson arrivals as a trace with a coarse clock records them: in batches, one every `tick_seconds`."""

    rate: float
    tick_seconds: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def times(self, rng: Random) -> Iterator[float]:
        """Arrival times, all of them multiples of the tick."""
        for time in PoissonArrivals(self.rate).times(rng):
            yield floor(time / self.tick_seconds) * self.tick_seconds
