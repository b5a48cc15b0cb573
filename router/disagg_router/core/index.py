"""Which prefixes each worker holds, as far as the router can know without being told: approximate mode.

The router remembers the block hashes of the prompts it sent. Per worker that is a bounded least-recently-used set, no
larger than the worker's own KV room, because what does not fit there is not there any more. The set is closed under
prefixes: a chain is touched from its leaf to its root, so a parent is never older than its child and eviction takes
leaves first. That is why the length of the longest known prefix can be found by bisection; most prompts share little
with most workers, so the span to bisect is found by doubling from the start.

Nothing outlives the process start it belongs to: :meth:`PrefixIndex.forget` is called when a worker leaves, restarts
or stops answering.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

MAX_BLOCKS: Final = 1 << 18
"""Most blocks remembered of one worker: 4 million tokens at 16 a block, some 40 MB."""

SPARE_HASHES: Final = 1024
"""Hashes listed beyond twice those remembered before the list is cleared of repeats."""


class PrefixIndex:
    """Block hashes by worker."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._held: dict[Hashable, _Recent] = {}

    def overlap(self, key: Hashable, hashes: Sequence[Hashable]) -> int:
        """Blocks at the start of ``hashes`` (a prefix chain) that the worker is believed to hold."""
        return self.overlaps((key,), hashes)[0]

    def overlaps(self, keys: Iterable[Hashable], hashes: Sequence[Hashable]) -> list[int]:
        """``overlap`` of each worker."""
        count, get = len(hashes), self._held.get
        first = hashes[0] if count else None
        second = hashes[1] if count > 1 else None
        found = []
        for key in keys:
            recent = get(key)
            if recent is None or not count or first not in recent.stamps:
                found.append(0)
            elif count == 1 or second not in recent.stamps:
                found.append(1)
            else:
                found.append(_leading(recent.stamps, hashes))
        return found

    def record(self, key: Hashable, hashes: Sequence[Hashable], *, capacity_blocks: int) -> int:
        """The worker was sent a prompt with these blocks; ``capacity_blocks`` is its KV room (0: unknown).

        Returns how many of them it was believed to hold before.
        """
        if not hashes:
            return 0
        recent = self._held.get(key)
        if recent is None:
            recent = self._held[key] = _Recent()
        known = _leading(recent.stamps, hashes) if hashes[0] in recent.stamps else 0
        recent.touch(hashes)
        excess = len(recent.stamps) - min(self._max_blocks, capacity_blocks or self._max_blocks)
        if excess > 0:
            recent.forget_oldest(excess)
        return known

    def forget(self, key: Hashable) -> None:
        self._held.pop(key, None)

    def blocks(self, key: Hashable) -> int:
        """Blocks remembered of one worker."""
        recent = self._held.get(key)
        return len(recent.stamps) if recent is not None else 0

    def __len__(self) -> int:
        """Blocks remembered of all workers."""
        return sum(len(recent.stamps) for recent in self._held.values())


class _Recent:
    """Block hashes of one worker by when they were last sent there, handled a prompt at a time.

    Each has the stamp of the last prompt that had it. Prompts are listed in order; the oldest is forgotten from its end
    on, and a hash that has a later stamp by then belongs to a later prompt and is passed over.
    """

    __slots__ = ("_listed", "_prompts", "_stamp", "stamps")

    def __init__(self) -> None:
        self.stamps: dict[Hashable, int] = {}
        self._prompts: deque[tuple[int, Sequence[Hashable], int]] = deque()
        """Stamp, hashes, and how many of them are left."""
        self._listed = 0
        self._stamp = 0

    def touch(self, hashes: Sequence[Hashable]) -> None:
        """A prompt with these blocks was sent. They are kept, and must not change."""
        stamp = self._stamp = self._stamp + 1
        stamps = self.stamps
        for block in hashes:
            stamps[block] = stamp
        self._prompts.append((stamp, hashes, len(hashes)))
        self._listed += len(hashes)
        if self._listed > 2 * len(stamps) + SPARE_HASHES:
            self._clear()

    def forget_oldest(self, count: int) -> None:
        """Forget so many, of which there are as many."""
        stamps, prompts = self.stamps, self._prompts
        get = stamps.get
        while count:
            stamp, hashes, end = prompts[0]
            kept = end
            for block in islice(reversed(hashes), len(hashes) - end, None):
                kept -= 1
                if get(block) == stamp:
                    del stamps[block]
                    count -= 1
                    if not count:
                        break
            self._listed -= end - kept
            if kept:
                prompts[0] = stamp, hashes, kept
            else:
                prompts.popleft()

    def _clear(self) -> None:
        """Leave out of the list what later prompts have."""
        get = self.stamps.get
        self._listed = 0
        prompts, self._prompts = self._prompts, deque()
        for stamp, hashes, _ in prompts:
            kept = [block for block in hashes if get(block) == stamp]
            if kept:
                self._prompts.append((stamp, kept, len(kept)))
                self._listed += len(kept)


def _leading(held: Mapping[Hashable, object], hashes: Sequence[Hashable]) -> int:
    """How many of ``hashes``, the first of which is held, lead up to the first that is not."""
    low, high, count = 1, 2, len(hashes)
    while high <= count and hashes[high - 1] in held:
        low, high = high, 2 * high
    high = min(high - 1, count)
    while low < high:
        middle = (low + high + 1) // 2
        if hashes[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low
