"""Where readings come from: the seam between the loop and Prometheus or direct scraping.

A source never raises for what may happen in production (a host that does not resolve, an answer that is no JSON, a
worker that refuses): it returns a reading with a `Problem`, or with the silent targets named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from disagg_planner.core.signals import Problem, ProblemKind, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One interval of the past: arrivals per engine second and mean lengths; None is unknown."""

    at_seconds: float
    rate: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None


class MetricsSource(Protocol):
    """Reads windows. `now` is the planner's clock in seconds."""

    async def start(self, now: float) -> None:
        """Prepare: take a baseline, where one is needed."""
        ...

    async def read(self, now: float) -> Reading:
        """The window that ends now."""
        ...

    async def history(self, now: float, intervals: int) -> Sequence[Past]:
        """Intervals before now, oldest first, as far as the source remembers them."""
        ...

    async def close(self) -> None: ...


class NoSource:
    """Stands in where no source is configured: always a problem that says which setting is missing."""

    def __init__(self, detail: str) -> None:
        self._detail = detail

    async def start(self, now: float) -> None:
        """Nothing to prepare."""

    async def read(self, now: float) -> Reading:
        return Reading(at_seconds=now, window_seconds=1.0, problem=Problem(ProblemKind.NO_SOURCE, self._detail))

    async def history(self, now: float, intervals: int) -> Sequence[Past]:
        return ()

    async def close(self) -> None:
        """Nothing to close."""
