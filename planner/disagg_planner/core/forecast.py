"""What a series will be at the next decision, and how that is known.

Every forecast is finite, not negative, and names its source, so that a fallback is never mistaken for a model. The
rules come before any model:

- no points: no forecast; fewer than five: the last value; a constant series: that constant;
- a jump begins a new series. A change over one or two intervals (a step in the load falls into the middle of a window)
  that is far outside of earlier changes is a new level: what was before says nothing about its slope, and a model that
  sees both fits the jump itself and overshoots. With fewer than five points since then: their mean.

Then the candidates are fitted, the one with the best score is used, and one that raises scores infinity and is named:
it can neither tie with a working one nor be forgotten. When all fail, the last value stands in, as `fallback`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

FEWEST_POINTS = 5
JUMP_SIGMAS = 5.0
JUMP_SHARE = 0.25
RANGE_SHARE = 1.5
"""A forecast is at most this many times the largest value of the history."""


class Source(StrEnum):
    """Where a forecast comes from."""

    MODEL = "model"
    LAST_VALUE = "last-value"
    CONSTANT = "constant"
    LEVEL_SHIFT = "level-shift"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """`value` in the unit of the series; `model` is the candidate used, `failed` those that raised.

    `points` is how many observations a value rests on that is their plain mean, 0 where a model smooths or where the
    last value is what was asked for.
    """

    value: float
    source: Source
    model: str = ""
    failed: tuple[str, ...] = ()
    points: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """Values of the next steps, nearest first, and an information criterion: lower is better."""

    path: tuple[float, ...]
    score: float


Fitter = Callable[[Sequence[float], int], Fit]
"""(values, steps) → Fit. May raise ValueError or ArithmeticError (numpy's LinAlgError is a ValueError)."""


class Predictor(Protocol):
    """Forecasts one series. Implementations hold no state: the same values give the same forecast."""

    def forecast(self, values: Sequence[float], *, steps: int = 1) -> Forecast | None:
        """The largest value expected within the next `steps` intervals, or None for an empty series."""
        ...


class LastValue:
    """The constant predictor: what was is what will be."""

    def forecast(self, values: Sequence[float], *, steps: int = 1) -> Forecast | None:
        usable = finite_values(values)
        return Forecast(value=max(usable[-1], 0.0), source=Source.LAST_VALUE) if usable else None


class BestOf:
    """The best-scored of several models, behind the rules of this module."""

    def __init__(self, candidates: Mapping[str, Fitter]) -> None:
        self._candidates = dict(candidates)

    def forecast(self, values: Sequence[float], *, steps: int = 1) -> Forecast | None:
        usable = finite_values(values)
        if not usable:
            return None
        last = max(usable[-1], 0.0)
        if len(usable) < FEWEST_POINTS:
            return Forecast(value=last, source=Source.LAST_VALUE, points=1)
        largest = max(abs(value) for value in usable)
        if max(usable) - min(usable) <= 1e-9 * largest:
            return Forecast(value=last, source=Source.CONSTANT)
        level = since_jump(usable)
        if len(level) < FEWEST_POINTS:
            mean = max(math.fsum(level) / len(level), 0.0)
            return Forecast(value=mean, source=Source.LEVEL_SHIFT, points=len(level))
        scores, fits, failed = self._fit([value / largest for value in level], steps)
        best = min(scores, key=scores.__getitem__, default=None)
        if best is None or not math.isfinite(scores[best]):
            return Forecast(value=last, source=Source.FALLBACK, failed=failed, points=1)
        value = min(max(max(fits[best].path), 0.0), RANGE_SHARE) * largest
        return Forecast(value=value, source=Source.MODEL, model=best, failed=failed)

    def _fit(self, scaled: Sequence[float], steps: int) -> tuple[dict[str, float], dict[str, Fit], tuple[str, ...]]:
        # Rounding makes the series that the models see independent of its unit to the last bit, and with it the
        # path that their optimisers take.
        rounded = [round(value, 9) for value in scaled]
        scores: dict[str, float] = {}
        fits: dict[str, Fit] = {}
        failed: list[str] = []
        for name, fitter in self._candidates.items():
            try:
                fit = fitter(rounded, steps)
            except (ValueError, ArithmeticError, IndexError):
                failed.append(name)
                scores[name] = math.inf
                continue
            if not fit.path or not all(math.isfinite(value) for value in (*fit.path, fit.score)):
                failed.append(name)
                scores[name] = math.inf
                continue
            scores[name], fits[name] = fit.score, fit
        return scores, fits, tuple(failed)


def finite_values(values: Sequence[float]) -> list[float]:
    """The finite numbers among `values`."""
    return [value for value in values if math.isfinite(value)]


def since_jump(values: Sequence[float]) -> Sequence[float]:
    """The values from the end of the latest jump on; all of them when there was none."""
    for end in range(len(values), FEWEST_POINTS - 1, -1):
        if jumped(values[:end]):
            return values[end - 1 :]
    return values


def jumped(values: Sequence[float]) -> bool:
    """Whether the last one or two changes are far outside of the earlier ones, and a quarter of the level."""
    if len(values) < FEWEST_POINTS:
        return False
    earlier = [abs(b - a) for a, b in pairwise(values[:-2])]
    noise = 1.4826 * statistics.median(earlier)
    change = max(abs(values[-1] - values[-2]), abs(values[-1] - values[-3]))
    level = max(abs(value) for value in values[-3:])
    return change > JUMP_SIGMAS * noise and change > JUMP_SHARE * level
