"""A distribution given by some of its quantiles, linear between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum

import numpy as np

from .portable import Floats


@dataclass(frozen=True)
class QuantileTable:
    """Points (percent, value) of an inverse distribution function, from 0 to 100 percent, both ascending.

    Drawing is inverting: a uniform number picks a percentage, and the value is read off the line through the two
    neighbouring points. The mean is exact for that piecewise linear function.
    """

    points: tuple[tuple[float, float], ...]
    _percents: Floats = field(init=False, repr=False, compare=False)
    _values: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        percents = [percent for percent, _ in self.points]
        values = [value for _, value in self.points]
        if percents[:1] != [0] or percents[-1:] != [100] or len(percents) < 2:
            raise ValueError(f"points run over {percents}, they must run from 0 to 100 percent")
        if percents != sorted(set(percents)) or values != sorted(values):
            raise ValueError("points must ascend in percent and in value")
        object.__setattr__(self, "_percents", np.array(percents, dtype=np.float64))
        object.__setattr__(self, "_values", np.array(values, dtype=np.float64))

    def at(self, percents: Floats) -> Floats:
        """The values below which these percentages (0 to 100) of all draws lie."""
        above = np.clip(np.searchsorted(self._percents, percents, side="right"), 1, len(self._percents) - 1)
        low, value = self._percents[above - 1], self._values[above - 1]
        result: Floats = value + (self._values[above] - value) * (percents - low) / (self._percents[above] - low)
        return result

    def mean(self) -> float:
        """The mean of the distribution. (`sum` rounds differently in Python 3.11 and 3.12, `fsum` does not.)"""
        return fsum(
            (high - low) / 100 * (value + next_value) / 2 for (low, value), (high, next_value) in pairwise(self.points)
        )
