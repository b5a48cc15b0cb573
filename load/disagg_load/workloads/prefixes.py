"""Hash ids of prompts that share prefixes, as conversations on top of one system prompt do.

Every prompt begins with the same block (the system prompt), and only full blocks are taken over. With probability
`continued` a request goes on from an earlier one that nothing has gone on from yet: it takes over a share of that one's
blocks and appends new ones; otherwise all further blocks are new. How far back the earlier one lies, counted in
requests, decides how large a cache has to be to find it, so it is a measured distribution as well. Where it lies before
the first request, the request begins anew: a load starts in the middle of other people's conversations, whose
beginnings nobody has cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disagg_load.requests import DEFAULT_BLOCK_TOKENS

from .arrivals import block_sizes
from .quantiles import QuantileTable
from .streams import Stream, Streams

_FARTHEST_SEARCH = 256
"""So many requests before and after the drawn place are looked at for a prompt that is long enough."""


@dataclass(frozen=True)
class PrefixChains:
    """What hash ids look like: `continued`, the share of blocks taken over, and how many requests they lie back."""

    continued: float
    shared_share: QuantileTable
    requests_back: QuantileTable

    def chains(self, streams: Streams) -> _Chains:
        """Makes the hash ids of one request after another."""
        return _Chains(self, streams.stream("prefixes"))


class _Chains:
    def __init__(self, shape: PrefixChains, stream: Stream) -> None:
        self._shape = shape
        self._drawn = self._draws(stream)
        self._open: list[tuple[int, ...]] = []
        """The prompts so far; an empty tuple is in the place of one that was gone on from."""
        self._next_id = 1

    def _draws(self, stream: Stream) -> Iterator[tuple[float, float, float]]:
        shape = self._shape
        for size in block_sizes():
            rows = stream.uniforms(3 * size).reshape(size, 3)
            shares = shape.shared_share.at(100 * rows[:, 1])
            backs = shape.requests_back.at(100 * rows[:, 2])
            yield from zip(rows[:, 0].tolist(), shares.tolist(), backs.tolist(), strict=True)

    def __call__(self, tokens: int) -> tuple[int, ...]:
        """The ids of a prompt of so many tokens."""
        full = tokens // DEFAULT_BLOCK_TOKENS
        blocks = -(-tokens // DEFAULT_BLOCK_TOKENS)
        chance, share, back = next(self._drawn)
        prefix: tuple[int, ...] = (0,)
        place = len(self._open) - max(1, round(back))
        if chance < self._shape.continued and place >= 0:
            wanted = max(min(round(blocks * share), full), 1)
            found = self._nearest(place, wanted)
            prefix = self._open[found][:wanted] or prefix
            self._open[found] = ()
        first = self._next_id
        self._next_id += blocks - len(prefix)
        chain = (*prefix, *range(first, self._next_id))
        self._open.append(chain[:full])
        return chain

    def _nearest(self, place: int, wanted: int) -> int:
        """Where the nearest prompt of `wanted` blocks or more lies, or the longest one where none is near."""
        prompts = self._open
        longest = place
        for distance in range(_FARTHEST_SEARCH):
            for candidate in (place - distance, place + distance):
                if 0 <= candidate < len(prompts):
                    length = len(prompts[candidate])
                    if length >= wanted:
                        return candidate
                    if length > len(prompts[longest]):
                        longest = candidate
        return longest
