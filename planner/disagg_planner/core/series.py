"""A bounded history of one quantity, one value an interval.

Only finite numbers enter: an infinite or missing reading leaves a gap, and a gap is closed, because a forecaster has
nothing better to put there. The bound keeps the time of a fit and the memory of a month alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HISTORY = 60
"""Intervals kept: half an hour at the default interval, longer than the memory of any model fitted here."""


@dataclass(frozen=True, slots=True)
class Series:
    """(planner's clock in seconds, value) pairs, oldest first."""

    points: tuple[tuple[float, float], ...] = ()

    def add(self, at_seconds: float, value: float | None) -> Series:
        """The series with a value at its end; what is not a finite number changes nothing."""
        if value is None or not math.isfinite(value):
            return self
        return Series((*self.points[-(HISTORY - 1) :], (at_seconds, value)))

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(value for _, value in self.points)

    @property
    def last_at(self) -> float | None:
        return self.points[-1][0] if self.points else None
