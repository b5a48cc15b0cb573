"""Hash ids of prompts that share prefixes, as conversations on top of one system prompt do.

Every prompt begins with the same block (the system prompt). With probability `continued` a request goes on from an
earlier one: it takes over a share of that one's blocks and appends new ones; otherwise all further blocks are new.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from .quantiles import QuantileTable


@dataclass
class PrefixChains:
    """Makes the hash ids of one request after another; holds the `remembered` newest chains to go on from."""

    rng: Random
    continued: float
    shared_share: QuantileTable
    remembered: int = 256
    _chains: deque[tuple[int, ...]] = field(init=False)
    _next_id: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self._chains = deque(maxlen=self.remembered)

    def hash_ids(self, blocks: int) -> tuple[int, ...]:
        """The ids of a prompt of `blocks` blocks, at least 1."""
        prefix: tuple[int, ...] = (0,)
        if self.rng.random() < self.continued and self._chains:
            wanted = round(blocks * self.shared_share.at(100 * self.rng.random()))
            long_enough = [chain for chain in self._chains if len(chain) >= wanted] or [max(self._chains, key=len)]
            prefix = self.rng.choice(long_enough)[: max(wanted, 1)]
        new = range(self._next_id, self._next_id + blocks - len(prefix))
        self._next_id += len(new)
        chain = (*prefix, *new)
        self._chains.append(chain)
        return chain
