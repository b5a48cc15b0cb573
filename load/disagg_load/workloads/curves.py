"""Rates that change with time: arrivals as a Poisson process whose rate follows a curve.

A curve is a factor on a rate, 1 meaning "as usual": a cycle, a burst, a ramp, steps, noise, or products and sums of
those. Some of it is random (noise), so a curve first becomes a `Path`, the way it goes for one seed. Arrivals come from
thinning (Lewis and Shedler, 1979), which is exact for every curve: candidates at the highest rate of a stretch of time,
each kept with the probability rate / highest rate. What is random about kept candidates lies in streams of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from math import inf, isfinite, pi, sqrt
from operator import add, mul
from typing import Protocol

import numpy as np

from disagg_load.errors import WorkloadError

from . import portable
from .arrivals import block_sizes, check_rate
from .portable import Floats
from .streams import Stream, Streams

_REQUESTS_A_STRETCH = 2**13
"""How long stretches are: long enough for so many requests at the usual rate."""
_LONGEST_PAUSE_STRETCHES = 1000


class Path(Protocol):
    """A curve as it goes for one seed."""

    def values(self, times: Floats) -> Floats:
        """The factor at these times, 0 or more."""
        ...

    def most(self, start_seconds: float, end_seconds: float) -> float:
        """No factor between these times is above this one. (The same bits everywhere: times are computed from it.)"""
        ...


class Curve(Protocol):
    """A factor that changes with time."""

    def path(self, streams: Streams) -> Path:
        """The way it goes with these random numbers."""
        ...


def _check(what: str, value: float, *, least: float = 0.0, most: float = float("inf"), wanted: str) -> None:
    if not (isfinite(value) and least <= value <= most):
        raise WorkloadError(f"{what} of {value:g} was asked for, {wanted} is needed")


@dataclass(frozen=True)
class Cycle:
    """A sinusoid, lowest at the start: 1 - `amplitude` * cos(2 pi t / `period_seconds`)."""

    amplitude: float
    period_seconds: float

    def __post_init__(self) -> None:
        _check("a cycle's amplitude", self.amplitude, most=1, wanted="a number from 0 to 1")
        _check("a cycle's period", self.period_seconds, least=1e-3, wanted="a time of at least 1 ms")

    def path(self, streams: Streams) -> Path:
        """Nothing about it is random."""
        return self

    def values(self, times: Floats) -> Floats:
        """The factor at these times."""
        result: Floats = 1 - self.amplitude * np.cos(2 * pi / self.period_seconds * times)
        return result

    def most(self, start_seconds: float, end_seconds: float) -> float:
        """The crest."""
        return 1 + self.amplitude


@dataclass(frozen=True)
class Line:
    """Straight lines through points (seconds, factor), level before the first and after the last.

    Two points at one time are a step, which belongs to the second.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        times = [time for time, _ in self.points]
        if not times or not all(isfinite(time) for time in times) or times != sorted(times):
            raise WorkloadError(f"a curve through the times {times} was asked for, ascending ones are needed")
        for _, factor in self.points:
            _check("a factor on the rate", factor, wanted="a number of at least 0")

    def path(self, streams: Streams) -> Path:
        """Nothing about it is random."""
        return self

    def values(self, times: Floats) -> Floats:
        """The factor at these times."""
        at, factors = (np.array(column, dtype=np.float64) for column in zip(*self.points, strict=True))
        after = np.searchsorted(at, times, side="right")
        above, below = np.minimum(after, len(at) - 1), np.maximum(after - 1, 0)
        width = np.where(at[above] > at[below], at[above] - at[below], 1.0)
        share = np.clip((times - at[below]) / width, 0, 1)
        result: Floats = factors[below] + (factors[above] - factors[below]) * share
        return result

    def most(self, start_seconds: float, end_seconds: float) -> float:
        """The highest of both ends and of the points between."""
        ends = self.values(np.array([start_seconds, end_seconds]))
        inner = [factor for time, factor in self.points if start_seconds <= time <= end_seconds]
        return float(max(*ends, *inner))


def burst(factor: float, start_seconds: float, end_seconds: float, ramp_seconds: float = 0.0) -> Line:
    """`factor` times the rate between two times, with a linear ramp of `ramp_seconds` at either end, inside them."""
    if not (start_seconds < end_seconds and 0 <= 2 * ramp_seconds <= end_seconds - start_seconds):
        raise WorkloadError(
            f"a burst from {start_seconds:g} to {end_seconds:g} s with ramps of {ramp_seconds:g} s was asked for; it "
            "must end after it starts, and both ramps must fit in"
        )
    up, down = start_seconds + ramp_seconds, end_seconds - ramp_seconds
    return Line(((start_seconds, 1.0), (up, factor), (down, factor), (end_seconds, 1.0)))


def ramp(factor: float, start_seconds: float, end_seconds: float) -> Line:
    """The rate grows (or shrinks) in a line from 1 to `factor` times the usual between two times, and stays there."""
    if not start_seconds < end_seconds:
        raise WorkloadError(
            f"a ramp from {start_seconds:g} to {end_seconds:g} s was asked for, it must end after it starts"
        )
    return Line(((start_seconds, 1.0), (end_seconds, factor)))


def steps(starts: tuple[tuple[float, float], ...]) -> Line:
    """From each of these (seconds, factor) on, that factor; 1 before the first."""
    points, before = [], 1.0
    for start, factor in starts:
        points += [(start, before), (start, factor)]
        before = factor
    return Line(tuple(points))


@dataclass(frozen=True)
class Noise:
    """1 + x, where x is an autoregressive process that takes a step every `step_seconds` and is constant in between.

    x' = `persistence` * x + e, with normal e such that x has the standard deviation `sigma` at all times. Where 1 + x
    would be negative it is 0. `name` tells the noises of one curve apart.
    """

    sigma: float
    persistence: float = 0.9
    step_seconds: float = 60.0
    name: str = "noise"

    def __post_init__(self) -> None:
        _check("noise with a sigma", self.sigma, most=1, wanted="a number from 0 to 1")
        _check("noise with a persistence", self.persistence, least=-1, most=1, wanted="a number from -1 to 1")
        _check("a step of noise", self.step_seconds, least=1e-3, wanted="a time of at least 1 ms")

    def path(self, streams: Streams) -> Path:
        """Starts in the stationary state."""
        return _NoisePath(self, streams.stream(self.name))


class _NoisePath:
    def __init__(self, shape: Noise, stream: Stream) -> None:
        self._shape = shape
        self._stream = stream
        self._factors = np.empty(0)
        self._last: float | None = None

    def _until(self, step: int) -> Floats:
        shape = self._shape
        fresh = sqrt(1 - shape.persistence * shape.persistence)
        while len(self._factors) <= step:
            now, path = self._last, []
            for normal in portable.normal_quantile(self._stream.uniforms(256)).tolist():
                now = shape.sigma * normal if now is None else shape.persistence * now + shape.sigma * fresh * normal
                path.append(max(0.0, 1 + now))
            self._last = now
            self._factors = np.concatenate((self._factors, path))
        return self._factors

    def values(self, times: Floats) -> Floats:
        which = (times // self._shape.step_seconds).astype(np.int64)
        result: Floats = self._until(int(which.max(initial=0)))[which]
        return result

    def most(self, start_seconds: float, end_seconds: float) -> float:
        first, last = (int(time // self._shape.step_seconds) for time in (start_seconds, end_seconds))
        return float(self._until(last)[first : last + 1].max())


@dataclass(frozen=True)
class Product:
    """All of these curves at once, multiplied."""

    curves: tuple[Curve, ...]

    def path(self, streams: Streams) -> Path:
        """The product of their paths."""
        return _Combined(tuple(curve.path(streams) for curve in self.curves), product=True)


@dataclass(frozen=True)
class Sum:
    """These curves added: loads on top of each other."""

    curves: tuple[Curve, ...]

    def path(self, streams: Streams) -> Path:
        """The sum of their paths."""
        return _Combined(tuple(curve.path(streams) for curve in self.curves), product=False)


@dataclass(frozen=True)
class _Combined:
    paths: tuple[Path, ...]
    product: bool

    def values(self, times: Floats) -> Floats:
        each = (path.values(times) for path in self.paths)
        return reduce(mul if self.product else add, each, np.full(len(times), float(self.product)))

    def most(self, start_seconds: float, end_seconds: float) -> float:
        each = (path.most(start_seconds, end_seconds) for path in self.paths)
        return reduce(mul if self.product else add, each, float(self.product))


@dataclass(frozen=True)
class CurveArrivals:
    """Poisson arrivals at `rate` times the curve. (The first comes at 0, as in every load.)"""

    rate: float
    curve: Curve

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def blocks(self, streams: Streams, *, until_seconds: float = inf) -> Iterator[Floats]:
        """Arrival times, a stretch of time a block.

        Raises WorkloadError where the rate stays at 0 for good and no time ends the load.
        """
        path = self.curve.path(streams)
        gaps, thinning = streams.stream("arrivals"), streams.stream("thinning")
        width = _REQUESTS_A_STRETCH / self.rate
        yield np.zeros(1)
        stretch = pause = 0
        while stretch * width < until_seconds:
            start, end = stretch * width, (stretch + 1) * width
            most = path.most(start, end)
            times = _candidates(self.rate * most, start, end, gaps)
            times = times[thinning.uniforms(len(times)) * most < path.values(times)]
            pause = 0 if len(times) else pause + 1
            if pause > _LONGEST_PAUSE_STRETCHES and until_seconds == inf:
                raise WorkloadError(f"no more requests come before {end:g} s; bound the load by seconds")
            yield times
            stretch += 1


def _candidates(rate: float, start: float, end: float, stream: Stream) -> Floats:
    """A Poisson process of that rate between two times. The gap that reaches beyond the end is thrown away with what
    was drawn after it: a Poisson process has no memory."""
    if rate == 0:
        return np.empty(0)
    parts: list[Floats] = []
    last = start
    for size in block_sizes():
        gaps = portable.log(stream.uniforms(size)) / -rate
        gaps[0] += last
        parts.append(np.cumsum(gaps))
        last = float(parts[-1][-1])
        if last >= end:
            break
    times = np.concatenate(parts)
    return times[: np.searchsorted(times, end)]
