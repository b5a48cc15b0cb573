"""Who waits, and who is next.

Requests of a higher priority go first. Among equals the order decides:

    fcfs             first come first served: one long prompt holds up everybody behind it (the convoy effect)
    shortest-first   by rank = arrival + ageing · tokens to compute: a short prompt overtakes a long one, but only if it
                     came within ageing · (difference of their tokens) after it. So a request is overtaken by those of a
                     bounded span of time alone, and starves never; without ageing (infinite) it could
    preemptive       the same, and prompts under way are ranked with the waiting ones by what they have left

The rank does not change while a request waits, so the queue is a heap, and whoever was blocked at its head stays there
until something happens. A request that has lost its room, or whose pull failed, goes ahead of its priority: it has
waited before.

A driver that is late may report arrivals that the engine's clock has not reached yet; they are kept apart until then.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heappop, heappush
from math import inf

from disagg_contract.choices import QueueOrder
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.sequence import Sequence

_Place = tuple[int, float, int, Sequence]


class Queue:
    """See the module's text. `size` counts those who have not arrived yet too."""

    def __init__(self, config: BatchingConfig) -> None:
        self._ageing = 0.0 if config.queue_order is QueueOrder.FCFS else config.ageing_seconds_per_token
        self._fcfs = config.queue_order is QueueOrder.FCFS
        self._later: deque[Sequence] = deque()
        self._heap: list[_Place] = []
        self._seen_seconds = -inf
        self._number = 0
        self.size = 0

    def push(self, sequence: Sequence) -> None:
        """A request that joins when it is ready."""
        self.size += 1
        sequence.queued = True
        later = self._later
        if later and later[-1].ready_seconds > sequence.ready_seconds:
            insort(later, sequence, key=_ready)
        else:
            later.append(sequence)

    def push_front(self, sequence: Sequence) -> None:
        """One that waited before and is ahead of its priority, the latest such first."""
        self.size += 1
        sequence.queued = True
        sequence.recalled = True
        if sequence.ready_seconds <= self._seen_seconds:
            self._place(sequence)
        else:
            insort(self._later, sequence, key=_ready)

    def rank(self, sequence: Sequence) -> float:
        """What orders requests of one priority, the smallest first."""
        return sequence.arrival_seconds + self._ageing * sequence.missing

    def head(self, now: float) -> Sequence | None:
        """The first of those ready by `now`."""
        later, heap = self._later, self._heap
        if now > self._seen_seconds:
            self._seen_seconds = now
        while later and later[0].ready_seconds <= now:
            self._place(later.popleft())
        while heap:
            _, _, place, sequence = heap[0]
            if sequence.queued and sequence.place == place:
                if sequence.ready_seconds <= now:
                    return sequence
                # Only a late driver gets here: it asked about a later time before, and now about an earlier one.
                ready = [entry for entry in self._standing() if entry[3].ready_seconds <= now]
                return min(ready)[3] if ready else None
            heappop(heap)
        return None

    def take(self, sequence: Sequence) -> None:
        """Remove the head that was just seen."""
        if self._heap[0][3] is sequence:
            heappop(self._heap)
        sequence.queued = False
        self.size -= 1

    def remove(self, sequence: Sequence) -> None:
        """Take one out from wherever it stands."""
        sequence.queued = False
        self.size -= 1

    def next_ready(self, now: float) -> float:
        """When the next of those not ready by `now` is ready; infinite if there is none."""
        later = self._later
        while later and not later[0].queued:
            later.popleft()
        first = later[0].ready_seconds if later else inf
        if self._seen_seconds > now:
            for _, _, _, sequence in self._standing():
                if now < sequence.ready_seconds < first:
                    first = sequence.ready_seconds
        return first

    def _standing(self) -> list[_Place]:
        return [entry for entry in self._heap if entry[3].queued and entry[3].place == entry[2]]

    def _place(self, sequence: Sequence) -> None:
        if not sequence.queued:
            return
        self._number += 1
        rank, place = 0.0 if self._fcfs else self.rank(sequence), self._number
        if sequence.recalled:
            sequence.recalled = False
            rank, place = -inf, -place
        sequence.place = place
        heappush(self._heap, (-sequence.request.priority, rank, place, sequence))


def _ready(sequence: Sequence) -> float:
    return sequence.ready_seconds
