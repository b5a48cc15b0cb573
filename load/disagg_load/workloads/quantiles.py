"""A distribution given by some of its quantiles, linear between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class QuantileTable:
    """Points (percent, value) of an inverse distribution function, from 0 to 100 percent, both ascending.

    Drawing is inverting: a uniform number picks a percentage, and the value is read off the line through the two
    neighbouring points. The mean is exact for that piecewise linear function.
    """

    points: tuple[tuple[float, float], ...]
    _percents: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        percents = tuple(percent for percent, _ in self.points)
        values = [value for _, value in self.points]
        if percents[:1] != (0,) or percents[-1:] != (100,) or len(percents) < 2:
            raise ValueError(f"points run over {percents}, they must run from 0 to 100 percent")
        if list(percents) != sorted(set(percents)) or values != sorted(values):
            raise ValueError("points must ascend in percent and in value")
        object.__setattr__(self, "_percents", percents)

    def at(self, percent: float) -> float:
        """The value below which `percent` (0 to 100) of all draws lie."""
        above = min(max(bisect_right(self._percents, percent), 1), len(self.points) - 1)
        (low, value), (high, next_value) = self.points[above - 1], self.points[above]
        return value + (next_value - value) * (percent - low) / (high - low)

    def mean(self) -> float:
        """The mean of the distribution."""
        pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]] = list(
            zip(self.points, self.points[1:], strict=False)
        )
        return sum((high - low) / 100 * (value + next_value) / 2 for (low, value), (high, next_value) in pairs)
