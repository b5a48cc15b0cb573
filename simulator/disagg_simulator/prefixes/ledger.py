"""KV room of one instance with prefix reuse, without block ids.

Decides exactly as `disagg_engine.kv.BlockLedger` does for requests that reserve their room once and give it back once.
Which physical block a name lies in matters to whoever holds contents; who finds what, and what is evicted when, follows
from names and counts alone:

    findable   every name that can be found, with the number of open requests that hold it
    cached     those that nobody holds, least recently held first, and of one request the end before the beginning
    free       blocks without a findable name, as a number

A prompt's names become findable when it has been computed. One that is findable by then stays with whom it belongs to,
and the newcomer's block is an unnamed one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

Holding = tuple[list[int], int]
"""What an open request has: the names it holds, in the order of its prompt, and its number of unnamed blocks."""


class NameLedger:
    """See the module's docstring. Room is `blocks` blocks of `block_tokens`."""

    __slots__ = ("_block", "_cached", "_findable", "_free", "blocks")

    def __init__(self, *, blocks: int, block_tokens: int) -> None:
        self.blocks = blocks
        self._block = block_tokens
        self._free = blocks
        self._findable: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    def match(self, names: Sequence[int], tokens: int) -> list[int]:
        """The leading names that are findable; those of a prompt of `tokens` leave its last token out."""
        if names and len(names) * self._block >= tokens:
            names = names[: (tokens - 1) // self._block]
        return list(takewhile(self._findable.__contains__, names))

    def open(self, hits: list[int], room_tokens: int) -> int | None:
        """Take room for a request that reuses `hits`; the number of fresh blocks, or None where they are not there."""
        fresh = -(-room_tokens // self._block) - len(hits)
        findable, cached = self._findable, self._cached
        free = self._free
        if fresh > free and fresh + sum(1 for name in hits if not findable[name]) > free + len(cached):
            return None
        for name in hits:
            count = findable[name]
            if not count:
                del cached[name]
            findable[name] = count + 1
        if fresh > free:
            for _ in range(fresh - free):
                del findable[cached.popitem(last=False)[0]]
            self._free = 0
        else:
            self._free = free - fresh
        return fresh

    def publish(self, names: Sequence[int], hits: list[int], fresh: int) -> Holding:
        """The prompt of an open request has been computed: its names beyond the hits become findable."""
        findable = self._findable
        new = names[len(hits) :] if hits else names
        if not new:
            return hits, fresh
        ours = dict.fromkeys(new, 1)
        if len(ours) == len(new) and findable.keys().isdisjoint(ours):
            findable.update(ours)
            return [*hits, *new], fresh - len(new)
        held = hits.copy()
        for name in new:
            if name not in findable:
                findable[name] = 1
                held.append(name)
        return held, fresh - (len(held) - len(hits))

    def close(self, holding: Holding) -> None:
        """Give a request's room back. Its names stay findable until they are evicted."""
        held, unnamed = holding
        self._free += unnamed
        findable, cached = self._findable, self._cached
        for name in reversed(held):
            count = findable[name] - 1
            findable[name] = count
            if not count:
                cached[name] = None
