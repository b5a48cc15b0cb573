"""How far the workers' loops lagged behind their own clocks during a run, and whether that makes the run void.

A simulated worker says when each iteration ends on its engine's clock, and makes it end then on the wall's. On a busy
machine it wakes up late. The engine's timeline stays right, but what clients, router and planner see is then the
machine's slowness and not the deployment's. Workers therefore export, for each iteration, the lag at its end, and
count as late those whose lag passed a fifth of the iteration's own length. What flows in here is the text of their
metrics; what flows out is one line for people, and the verdict.

A run lagged, and is void, when for some loop the lag passed a fifth of a step in more than `VOID_SHARE` of its
iterations: when the 95th percentile of lag over length is above a fifth. The worst loop decides, since one slow
instance spoils what is measured of its role; loops of fewer than `FEWEST_ITERATIONS` say nothing and don't count.
Single late iterations happen on every machine that does anything else and move no percentile that tests look at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from disagg_contract.metrics import LAG_BUCKETS, WORKER_ITERATIONS, WORKER_LAG, WORKER_LATE, Metric

VOID_SHARE = 0.05
FEWEST_ITERATIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLag:
    """Iterations of a loop, and how many lagged by at most each of `LAG_BUCKETS` (wall seconds)."""

    iterations: int
    late: int
    within: tuple[int, ...]

    @classmethod
    def from_metrics(cls, text: str) -> LoopLag | None:
        """The lag that a worker exposes at /metrics; None where the text has no such series."""
        iterations, late = _total(text, WORKER_ITERATIONS), _total(text, WORKER_LATE)
        if iterations is None or late is None:
            return None
        pattern = rf'^{WORKER_LAG.name}_bucket{{[^}}]*le="([^"]+)"[^}}]*}} (\S+)$'
        buckets = {float(bound): int(float(count)) for bound, count in re.findall(pattern, text, re.MULTILINE)}
        return cls(iterations=iterations, late=late, within=tuple(buckets.get(bound, 0) for bound in LAG_BUCKETS))

    @property
    def late_share(self) -> float:
        """Share (0 to 1) of the iterations whose lag passed a fifth of their length; 0 where there were none."""
        return self.late / self.iterations if self.iterations else 0.0

    def at_most(self, quantile: float) -> float:
        """The lowest bucket bound that this share of the iterations kept to; infinite above the last one."""
        wanted = ceil(quantile * self.iterations)
        return next((bound for bound, count in zip(LAG_BUCKETS, self.within, strict=True) if count >= wanted), inf)

    def __add__(self, other: LoopLag) -> LoopLag:
        return LoopLag(
            iterations=self.iterations + other.iterations,
            late=self.late + other.late,
            within=tuple(a + b for a, b in zip(self.within, other.within, strict=True)),
        )


NO_LAG = LoopLag(iterations=0, late=0, within=(0,) * len(LAG_BUCKETS))


def worst_loop(loops: Mapping[str, LoopLag]) -> str | None:
    """The loop with the largest share of late iterations, of those with enough of them; None where none has."""
    counted = {name: loop for name, loop in loops.items() if loop.iterations >= FEWEST_ITERATIONS}
    return max(sorted(counted), key=lambda name: counted[name].late_share, default=None)


def is_void(loops: Mapping[str, LoopLag]) -> bool:
    """Whether a run with these loops, by name of the instance, lagged too much to mean anything."""
    worst = worst_loop(loops)
    return worst is not None and loops[worst].late_share > VOID_SHARE


def show_lag(loops: Mapping[str, LoopLag]) -> str:
    """One line for people."""
    total = sum(loops.values(), start=NO_LAG)
    if not total.iterations:
        return "no iterations"
    p50, p99, worst = (_bound(total.at_most(quantile)) for quantile in (0.5, 0.99, 1.0))
    line = (
        f"{total.late_share:.1%} of {total.iterations} iterations late by over a fifth of a step; "
        f"lag p50 {p50}, p99 {p99}, worst {worst}"
    )
    slowest = worst_loop(loops)
    return line if slowest is None else f"{line}; worst loop {slowest} with {loops[slowest].late_share:.1%}"


def _bound(seconds: float) -> str:
    return f"> {LAG_BUCKETS[-1] * 1000:g} ms" if seconds == inf else f"≤ {seconds * 1000:g} ms"


def _total(text: str, metric: Metric) -> int | None:
    found = re.findall(rf"^{metric.series}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return int(sum(float(value) for value in found)) if found else None
