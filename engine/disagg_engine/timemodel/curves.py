"""Measured points as piecewise linear curves, with one rule for what lies outside of them.

Between two points a curve is straight. Beyond the last it goes on with the slope of the last two, before the first with
that of the first two, but it never falls with growing load out there (a negative slope at an end is measuring noise)
and never falls below 0 on its way to no load. A curve of a single point is flat.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from disagg_engine.errors import SettingError

Point = tuple[float, float]


class Curve:
    """A curve through points, sorted by x here. Raises SettingError for none, twice the same x, or a wrong value."""

    def __init__(self, points: Iterable[Point], *, field: str) -> None:
        ordered = sorted(points)
        if not ordered:
            raise SettingError(field=field, value=[], wanted="at least one point")
        for (x, y), (following, _) in zip(ordered, [*ordered[1:], (math.inf, 0.0)], strict=True):
            if not (math.isfinite(x) and x >= 0 and math.isfinite(y) and y > 0):
                raise SettingError(field=field, value=(x, y), wanted="sizes of 0 or more and finite times above 0")
            if x == following:
                raise SettingError(field=field, value=x, wanted="there once: it has two times")
        self.xs = [x for x, _ in ordered]
        self.ys = [y for _, y in ordered]
        self.slopes = [
            (self.ys[i + 1] - self.ys[i]) / (self.xs[i + 1] - self.xs[i]) for i in range(len(ordered) - 1)
        ] or [0.0]

    def piece(self, x: float) -> tuple[float, float]:
        """The straight line at x, as (value at 0, slope)."""
        index = bisect_right(self.xs, x) - 1
        if 0 <= index < len(self.xs) - 1:
            slope = self.slopes[index]
        elif index < 0:
            index, slope = 0, min(max(0.0, self.slopes[0]), self.ys[0] / self.xs[0])
        else:
            slope = max(0.0, self.slopes[-1])
        return self.ys[index] - slope * self.xs[index], slope

    def __call__(self, x: float) -> float:
        """The value at x."""
        value, slope = self.piece(x)
        return value + slope * x


def pieces(curve: Curve) -> Sequence[tuple[float, float, float]]:
    """The whole curve from 0 on as (end, value at 0, slope) each, the last without end."""
    ends = [x for x in curve.xs if x > 0]
    starts = [0.0, *ends]
    return [(end, *curve.piece(start)) for start, end in zip(starts, [*ends, math.inf], strict=True)]
