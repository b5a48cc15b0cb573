"""Numbers of tokens: how long prompts and answers are.

A lognormal length is set by its mean and the sigma of its logarithm: mu = ln(mean) - sigma^2 / 2. Lengths are rounded
to whole tokens and are at least one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite, log
from random import Random
from statistics import NormalDist
from typing import Protocol

from disagg_load.errors import WorkloadError

from .quantiles import QuantileTable

_STANDARD_NORMAL = NormalDist()


class Lengths(Protocol):
    """A distribution of numbers of tokens."""

    def draw(self, rng: Random) -> int:
        """One length in tokens, at least 1. Takes exactly one number from `rng`, whatever the distribution."""
        ...


@dataclass(frozen=True)
class FixedLengths:
    """Always the same length."""

    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise WorkloadError(f"a length of {self.tokens} tokens was asked for, at least 1 is needed")

    def draw(self, rng: Random) -> int:
        """The length; the number taken from `rng` is not used."""
        rng.random()
        return self.tokens


@dataclass(frozen=True)
class LognormalLengths:
    """Lognormal lengths with this mean (tokens) and this sigma of the logarithm."""

    mean_tokens: float
    sigma: float

    def __post_init__(self) -> None:
        if not (isfinite(self.mean_tokens) and self.mean_tokens >= 1):
            raise WorkloadError(f"a mean length of {self.mean_tokens} tokens was asked for, at least 1 is needed")
        if not (isfinite(self.sigma) and 0 <= self.sigma <= 5):
            raise WorkloadError(f"a lognormal sigma of {self.sigma} was asked for, 0 to 5 make sense")

    def draw(self, rng: Random) -> int:
        """One length."""
        normal = _STANDARD_NORMAL.inv_cdf(max(rng.random(), 2.0**-53))
        return max(1, round(exp(log(self.mean_tokens) - self.sigma**2 / 2 + self.sigma * normal)))


@dataclass(frozen=True)
class EmpiricalLengths:
    """Lengths with the quantiles of a measured distribution."""

    table: QuantileTable

    def draw(self, rng: Random) -> int:
        """One length."""
        return max(1, round(self.table.at(100 * rng.random())))
