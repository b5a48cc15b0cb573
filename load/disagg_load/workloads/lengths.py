"""Numbers of tokens: how long prompts and answers are.

A length is drawn by inversion: one uniform number for each request, whatever the distribution, so that two loads with
the same seed have long and short requests at the same places. A lognormal length is set by its mean and the sigma of
its logarithm: mu = ln(mean) - sigma^2 / 2. Lengths are rounded to whole tokens and are at least one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log
from typing import Protocol

import numpy as np

from disagg_load.errors import WorkloadError

from . import portable
from .portable import Floats
from .quantiles import QuantileTable

LONGEST_TOKENS = 2**31 - 1
"""The longest length that `disagg_load.columns` holds; longer ones are cut to it."""


class Lengths(Protocol):
    """A distribution of numbers of tokens."""

    @property
    def mean_tokens(self) -> float:
        """The mean length."""
        ...

    def tokens(self, uniforms: Floats, arrival_seconds: Floats) -> Floats:
        """A whole number of tokens, at least 1, for each uniform number (0 to 1) and arrival time."""
        ...


def _whole(tokens: Floats, least: int = 1) -> Floats:
    return np.clip(np.rint(tokens), least, LONGEST_TOKENS)


@dataclass(frozen=True)
class FixedLengths:
    """Always the same length; the uniform numbers are not used."""

    length_tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.length_tokens <= LONGEST_TOKENS:
            raise WorkloadError(f"a length of {self.length_tokens} tokens was asked for, at least 1 is needed")

    @property
    def mean_tokens(self) -> float:
        """The length."""
        return self.length_tokens

    def tokens(self, uniforms: Floats, arrival_seconds: Floats) -> Floats:
        """The length for each."""
        return np.full(len(uniforms), float(self.length_tokens))


@dataclass(frozen=True)
class LognormalLengths:
    """Lognormal lengths with this mean (tokens) and this sigma of the logarithm, and at least `least_tokens`.

    The mean is that of the distribution before rounding; `least_tokens` is meant for tails that hardly occur.
    """

    mean_tokens: float
    sigma: float
    least_tokens: int = 1

    def __post_init__(self) -> None:
        if not (isfinite(self.mean_tokens) and self.mean_tokens >= 1):
            raise WorkloadError(f"a mean length of {self.mean_tokens} tokens was asked for, at least 1 is needed")
        if not (isfinite(self.sigma) and 0 <= self.sigma <= 5):
            raise WorkloadError(f"a lognormal sigma of {self.sigma} was asked for, 0 to 5 make sense")
        if self.least_tokens < 1:
            raise WorkloadError(f"lengths of at least {self.least_tokens} tokens were asked for, at least 1 is needed")

    def tokens(self, uniforms: Floats, arrival_seconds: Floats) -> Floats:
        """Lengths."""
        mu = log(self.mean_tokens) - self.sigma * self.sigma / 2
        return _whole(portable.exp(mu + self.sigma * portable.normal_quantile(uniforms)), self.least_tokens)


@dataclass(frozen=True)
class EmpiricalLengths:
    """Lengths with the quantiles of a measured distribution."""

    table: QuantileTable

    @property
    def mean_tokens(self) -> float:
        """The mean of the table."""
        return self.table.mean()

    def tokens(self, uniforms: Floats, arrival_seconds: Floats) -> Floats:
        """Lengths."""
        return _whole(self.table.at(100 * uniforms))


@dataclass(frozen=True)
class Phase:
    """Requests that arrive from `start_seconds` (inclusive) to `end_seconds` have lengths of their own."""

    start_seconds: float
    end_seconds: float
    lengths: Lengths


@dataclass(frozen=True)
class PhasedLengths:
    """Lengths by time of arrival: those of the first phase that holds it, else `usual`."""

    usual: Lengths
    phases: tuple[Phase, ...]

    @property
    def mean_tokens(self) -> float:
        """The mean outside the phases."""
        return self.usual.mean_tokens

    def tokens(self, uniforms: Floats, arrival_seconds: Floats) -> Floats:
        """Lengths."""
        result = self.usual.tokens(uniforms, arrival_seconds)
        for phase in reversed(self.phases):
            inside = (arrival_seconds >= phase.start_seconds) & (arrival_seconds < phase.end_seconds)
            result[inside] = phase.lengths.tokens(uniforms[inside], arrival_seconds[inside])
        return result
