"""A work queue with one entry a key.

A key that is added while it waits is there once; one that is added while it is worked on is worked on again afterwards,
never by two workers at a time. Failures come back after a pause that doubles, with jitter so that many failing keys do
not come back together. Nothing that is said to the queue is lost, and nothing is remembered of keys that are done.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 60.0


class WorkQueue(Generic[K]):
    """``work`` handles a key and returns seconds until it wants to be called again, or None."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[float | None]],
        *,
        rng: random.Random,
        report: Callable[[K, Exception], None],
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._work = work
        self._rng = rng
        self._report = report
        self._first = first_pause_seconds
        self._longest = longest_pause_seconds
        self._waiting: deque[K] = deque()
        self._queued: set[K] = set()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Have the key worked on soon."""
        if key in self._active:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._waiting.append(key)
            self._arrived.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have it worked on in a while; an earlier appointment stands."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        known = self._timers.get(key)
        if known is not None:
            if known[0] <= at:
                return
            known[1].cancel()
        self._timers[key] = (at, loop.call_at(at, self._due, key))

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(workers):
                    group.create_task(self._worker(), name=f"reconcile-{number}")
        finally:
            for _, timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _worker(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            key = self._waiting.popleft()
            self._queued.discard(key)
            self._active.add(key)
            try:
                await self._once(key)
            finally:
                self._active.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    async def _once(self, key: K) -> None:
        try:
            again = await self._work(key)
        except Exception as error:  # noqa: BLE001 - whatever went wrong with one object must not stop the others
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            pause = min(self._longest, self._first * 2.0 ** min(failures, 30))
            self.add_after(key, pause * self._rng.uniform(0.5, 1.5))
            self._report(key, error)
            return
        self._failures.pop(key, None)
        if again is not None:
            self.add_after(key, again)
