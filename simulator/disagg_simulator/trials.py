"""Trials of a goodput search by simulation, all of them on the same requests."""

from __future__ import annotations

from collections.abc import Callable

from disagg_load.columns import Columns
from disagg_load.report import Attainment, Slo
from disagg_simulator.deployment import Deployment
from disagg_simulator.figures import Figures
from disagg_simulator.goodput import Trial
from disagg_simulator.options import DEFAULTS, Options
from disagg_simulator.recording import Recording
from disagg_simulator.report import judge
from disagg_simulator.simulate import simulate
from disagg_simulator.statistics import share_interval

Source = Callable[[float, int], Columns]
"""(requests a second, how many) → the first requests of a stream; the same ones at every rate, but for their times."""


def verdict(recording: Recording, slo: Slo, *, rate: float) -> Trial:
    """What a recording says about a rate."""
    figures = Figures.of(recording)
    ttft, tpot = figures.met(slo)
    both = ttft & tpot
    low, high = share_interval(both)
    return Trial(
        rate=rate,
        requests=both.size,
        attainment=Attainment(ttft=float(ttft.mean()), tpot=float(tpot.mean()), both=float(both.mean())),
        low=low,
        high=high,
        stable=not judge(figures).unstable,
        over_context=figures.over_context,
    )


class Trials:
    """Trials of one deployment; an `Evaluate` of `disagg_simulator.goodput`. seed: of the routing's ties."""

    def __init__(
        self, deployment: Deployment, source: Source, slo: Slo, *, seed: int, options: Options = DEFAULTS
    ) -> None:
        self._deployment = deployment
        self._source = source
        self._slo = slo
        self._seed = seed
        self._options = options

    def __call__(self, rate: float, requests: int) -> Trial:
        """Simulate the first `requests` requests at `rate`."""
        columns = self._source(rate, requests)
        recording = simulate(self._deployment, columns, seed=self._seed, options=self._options)
        return verdict(recording, self._slo, rate=rate)


def at_unit_rate(columns: Columns) -> Columns:
    """The same requests at one arrival a second in the mean (as they are, where they have no rate)."""
    span = columns.span_seconds
    if len(columns) < 2 or span <= 0:
        return columns
    return columns.at_rate(span / (len(columns) - 1))
