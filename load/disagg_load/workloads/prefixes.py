"""Hash ids of prompts that share prefixes, as conversations on top of one system prompt do.

Every prompt begins with the same block (the system prompt). With probability `continued` a request goes on from an
earlier one: it takes over a share of that one's blocks and appends new ones; otherwise all further blocks are new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .arrivals import block_sizes
from .quantiles import QuantileTable
from .streams import Stream, Streams


@dataclass(frozen=True)
class PrefixChains:
    """What hash ids look like; a request can go on from the `remembered` newest ones."""

    continued: float
    shared_share: QuantileTable
    remembered: int = 256

    def chains(self, streams: Streams) -> _Chains:
        """Makes the hash ids of one request after another."""
        return _Chains(self, streams.stream("prefixes"))


class _Chains:
    def __init__(self, shape: PrefixChains, stream: Stream) -> None:
        self._shape = shape
        self._drawn = self._draws(stream)
        self._newest: deque[tuple[int, ...]] = deque(maxlen=shape.remembered)
        self._next_id = 1

    def _draws(self, stream: Stream) -> Iterator[tuple[float, float, float]]:
        for size in block_sizes():
            rows = stream.uniforms(3 * size).reshape(size, 3)
            shares = self._shape.shared_share.at(100 * rows[:, 1])
            yield from zip(rows[:, 0].tolist(), shares.tolist(), rows[:, 2].tolist(), strict=True)

    def __call__(self, blocks: int) -> tuple[int, ...]:
        """The ids of a prompt of `blocks` blocks, at least 1."""
        chance, share, which = next(self._drawn)
        prefix: tuple[int, ...] = (0,)
        if chance < self._shape.continued and self._newest:
            wanted = round(blocks * share)
            long_enough = [chain for chain in self._newest if len(chain) >= wanted] or [max(self._newest, key=len)]
            prefix = long_enough[int(which * len(long_enough))][: max(wanted, 1)]
        first = self._next_id
        self._next_id += blocks - len(prefix)
        chain = (*prefix, *range(first, self._next_id))
        self._newest.append(chain)
        return chain
