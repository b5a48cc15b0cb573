"""Readings without Prometheus: the router's and the workers' /metrics, scraped once an interval.

A window is the difference of two snapshots. A counter that went down was reset by a restart, and counts from zero. A
worker that appears later than the baseline counts from zero as well (its series exist at 0 before its first request);
one that does not answer keeps its last totals, is named as silent, and catches up when it answers again. Without the
router there is no reading, because it alone counts arrivals. Metrics need no token: workers keep that page open, so a
planner holds none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from disagg_contract.discovery import DiscoveredWorker, DiscoveryFile
from disagg_contract.errors import DocumentError
from disagg_contract.labels import Role
from disagg_contract.ports import METRICS_PATH
from disagg_planner.core import signals
from disagg_planner.core.signals import Problem, ProblemKind, Reading
from disagg_planner.shell.exposition import Counters, read_counters
from disagg_planner.shell.sources import Past

ROUTER = "router"
Snapshot = Mapping[str, Counters]


@dataclass(frozen=True, slots=True)
class _Scraped:
    snapshot: Snapshot
    silent: tuple[str, ...]
    problem: Problem | None = None


class ScrapeSource:
    """Scrapes `router_url` and the workers of `discovery_file`; windows end now and are at least `window_seconds`."""

    def __init__(
        self, *, router_url: str, discovery_file: str, model: str, window_seconds: float, timeout_seconds: float = 5.0
    ) -> None:
        self._router_url = router_url.rstrip("/") + METRICS_PATH
        self._discovery_file = discovery_file
        self._model = model
        self._window_seconds = window_seconds
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_seconds))
        self._snapshots: deque[tuple[float, Snapshot]] = deque()

    async def start(self, now: float) -> None:
        """Take the baseline, so that the first window is a whole one."""
        scraped = await self._scrape()
        if scraped.problem is None:
            self._snapshots.append((now, scraped.snapshot))

    async def close(self) -> None:
        await self._session.close()

    async def history(self, now: float, intervals: int) -> Sequence[Past]:
        """Nothing: a process remembers no past."""
        return ()

    async def read(self, now: float) -> Reading:
        scraped = await self._scrape()
        if scraped.problem is not None:
            return Reading(
                at_seconds=now, window_seconds=self._window_seconds, silent=scraped.silent, problem=scraped.problem
            )
        before = self._baseline(now)
        self._snapshots.append((now, scraped.snapshot))
        if before is None:
            problem = Problem(ProblemKind.MISSING, "this was the first scrape; the next one ends the first window")
            return Reading(at_seconds=now, window_seconds=self._window_seconds, problem=problem)
        at, earlier = before
        return difference(earlier, scraped.snapshot, now=now, window_seconds=now - at, silent=scraped.silent)

    def _baseline(self, now: float) -> tuple[float, Snapshot] | None:
        """The newest snapshot that is a window old, or else the oldest; older ones are forgotten."""
        # Half a tick of tolerance: the loop's ticks are not exactly one window apart.
        while len(self._snapshots) > 1 and now - self._snapshots[1][0] >= 0.95 * self._window_seconds:
            self._snapshots.popleft()
        if not self._snapshots or now <= self._snapshots[0][0]:
            return None
        return self._snapshots[0]

    async def _scrape(self) -> _Scraped:
        try:
            workers = await asyncio.to_thread(_read_discovery, self._discovery_file)
        except (OSError, DocumentError) as error:
            return _Scraped({}, (), Problem(ProblemKind.UNREACHABLE, f"{self._discovery_file}: {error}"))
        router, *scraped = await asyncio.gather(
            self._get(self._router_url, None),
            *(self._get(f"http://{worker.host}:{worker.port}{METRICS_PATH}", worker.role) for worker in workers),
        )
        if isinstance(router, str):
            return _Scraped({}, (), Problem(ProblemKind.UNREACHABLE, router))
        last = self._snapshots[-1][1] if self._snapshots else {}
        snapshot: dict[str, Counters] = {ROUTER: router}
        silent = []
        for worker, counters in zip(workers, scraped, strict=True):
            if not isinstance(counters, str):
                snapshot[worker.uid] = counters
                continue
            if worker.uid in last:
                snapshot[worker.uid] = last[worker.uid]
            if worker.ready:
                silent.append(worker.name)
        return _Scraped(snapshot, tuple(sorted(silent)))

    async def _get(self, url: str, role: Role | None) -> Counters | str:
        """Counters of a target, or why there are none."""
        wanted = [signal for signal in signals.SIGNALS if signal.role is role]
        try:
            async with self._session.get(url) as response:
                if response.status != 200:
                    return f"{url} answered {response.status}"
                return read_counters(await response.text(), wanted, model=self._model)
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{url} cannot be scraped: {error or type(error).__name__}"
        except ValueError as error:
            return f"{url}: {error}"


def difference(
    before: Snapshot, after: Snapshot, *, now: float, window_seconds: float, silent: tuple[str, ...] = ()
) -> Reading:
    """What the targets of `after` counted since `before`."""
    increases: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    for name, counters in after.items():
        earlier = before.get(name, Counters())
        for key, total in counters.values.items():
            increases[key] = increases.get(key, 0.0) + _since(earlier.values.get(key, 0.0), total)
        for key, bounds in counters.buckets.items():
            old = earlier.buckets.get(key, {})
            sums = buckets.setdefault(key, {})
            for bound, total in bounds.items():
                sums[bound] = sums.get(bound, 0.0) + _since(old.get(bound, 0.0), total)
    return Reading(
        at_seconds=now,
        window_seconds=window_seconds,
        increases=increases,
        buckets={key: tuple(sorted(bounds.items())) for key, bounds in buckets.items()},
        silent=silent,
    )


def _since(before: float, after: float) -> float:
    return after - before if after >= before else after


def _read_discovery(path: str) -> tuple[DiscoveredWorker, ...]:
    if not path:
        return ()
    return DiscoveryFile.from_json(Path(path).read_bytes(), what=f"discovery file {path}").workers
