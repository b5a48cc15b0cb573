"""Which prefixes each worker holds, as far as the router can know without being told: approximate mode.

The router remembers the block hashes of the prompts it sent. Per worker that is a bounded least-recently-used set, no
larger than the worker's own KV room, because what does not fit there is not there any more. The set is closed under
prefixes: a chain is touched from its leaf to its root, so a parent is never older than its child and eviction takes
leaves first. That is why the length of the longest known prefix can be found by bisection; most prompts share little
with most workers, so the span to bisect is found by doubling from the start.

Nothing outlives the process start it belongs to: :meth:`PrefixIndex.forget` is called when a worker leaves, restarts
or stops answering.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

MAX_BLOCKS: Final = 1 << 18
"""Most blocks remembered of one worker: 4 million tokens at 16 a block, some 40 MB."""


class PrefixIndex:
    """Block hashes by worker."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._held: dict[Hashable, OrderedDict[Hashable, None]] = {}

    def overlap(self, key: Hashable, hashes: Sequence[Hashable]) -> int:
        """Blocks at the start of ``hashes`` (a prefix chain) that the worker is believed to hold."""
        held = self._held.get(key)
        return _leading(held, hashes) if held and hashes else 0

    def overlaps(self, keys: Iterable[Hashable], hashes: Sequence[Hashable]) -> list[int]:
        """``overlap`` of each worker."""
        if not hashes:
            return [0 for _ in keys]
        get = self._held.get
        return [_leading(held, hashes) if (held := get(key)) else 0 for key in keys]

    def record(self, key: Hashable, hashes: Sequence[Hashable], *, capacity_blocks: int) -> int:
        """The worker was sent a prompt with these blocks; ``capacity_blocks`` is its KV room (0: unknown).

        Returns how many of them it was believed to hold before.
        """
        if not hashes:
            return 0
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = OrderedDict()
        known = _leading(held, hashes)
        held.update(dict.fromkeys(reversed(hashes[known:])))
        for block in reversed(hashes[:known]):
            held.move_to_end(block)
        excess = len(held) - min(self._max_blocks, capacity_blocks or self._max_blocks)
        for _ in range(excess):
            held.popitem(last=False)
        return known

    def forget(self, key: Hashable) -> None:
        self._held.pop(key, None)

    def blocks(self, key: Hashable) -> int:
        """Blocks remembered of one worker."""
        return len(self._held.get(key, ()))

    def __len__(self) -> int:
        """Blocks remembered of all workers."""
        return sum(map(len, self._held.values()))


def _leading(held: Mapping[Hashable, None], hashes: Sequence[Hashable]) -> int:
    """How many of ``hashes``, which are not empty, lead up to the first that is not held."""
    if hashes[0] not in held:
        return 0
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
