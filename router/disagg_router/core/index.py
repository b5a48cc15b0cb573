"""Which prefixes each worker holds, as far as the router can know without being told: approximate mode.

The router remembers the block hashes of the prompts it sent. Per worker that is a bounded least-recently-used set, no
larger than the worker's own KV room, because what does not fit there is not there any more. The set is closed under
prefixes: a chain is touched from its leaf to its root, so a parent is never older than its child and eviction takes
leaves first. That is why the length of the longest known prefix can be found by bisection.

Nothing outlives the process start it belongs to: :meth:`PrefixIndex.forget` is called when a worker leaves, restarts
or stops answering.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
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
        if not held or not hashes or hashes[0] not in held:
            return 0
        low, high = 1, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in held:
                low = middle
            else:
                high = middle - 1
        return low

    def record(self, key: Hashable, hashes: Sequence[Hashable], *, capacity_blocks: int) -> None:
        """The worker was sent a prompt with these blocks; ``capacity_blocks`` is its KV room (0: unknown)."""
        if not hashes:
            return
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = OrderedDict()
        for block in reversed(hashes):
            held[block] = None
            held.move_to_end(block)
        limit = min(self._max_blocks, capacity_blocks or self._max_blocks)
        while len(held) > limit:
            held.popitem(last=False)

    def forget(self, key: Hashable) -> None:
        self._held.pop(key, None)

    def blocks(self, key: Hashable) -> int:
        """Blocks remembered of one worker."""
        return len(self._held.get(key, ()))

    def __len__(self) -> int:
        """Blocks remembered of all workers."""
        return sum(map(len, self._held.values()))
