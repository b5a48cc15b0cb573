"""The seam between the batching loop and the KV cache.

The loop opens a sequence, grows it, commits what has been computed and closes it; where the tokens lie is the ledger's
affair. `CountingLedger` only counts (fast, no reuse); `BlockLedger` has physical blocks, prefix keys, reference counts
and eviction. Both round a sequence's room up to whole blocks, so where nothing is reused they take the same decisions.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol


class KvLedger(Protocol):
    """KV room of one instance. All counts are tokens of room: whole blocks × `block_tokens`."""

    @property
    def block_tokens(self) -> int:
        """Tokens in a block."""
        ...

    @property
    def capacity_tokens(self) -> int:
        """Room of the whole pool."""
        ...

    @property
    def free_tokens(self) -> int:
        """Room that could be given out now, cached blocks nobody holds included."""
        ...

    @property
    def used_tokens(self) -> int:
        """Room held by open sequences; capacity − free. A shared block counts once."""
        ...

    @property
    def listening(self) -> bool:
        """Whether somebody is told when blocks become findable or cease to be, and so when that is matters."""
        ...

    def match(self, keys: Sequence[Hashable], tokens: int) -> int:
        """How many leading tokens of a `tokens` long sequence are cached; always fewer than `tokens` (case WB6)."""
        ...

    def open(
        self,
        request_id: str,
        *,
        tokens: int,
        room_tokens: int,
        keys: Sequence[Hashable] = (),
        headroom_tokens: int = 0,
    ) -> int | None:
        """Give a new sequence of `tokens` known tokens room for `room_tokens`; return how many tokens were cached.

        None, and nothing changed, if the room (plus `headroom_tokens` left free) is not there (case WB4).
        """
        ...

    def grow(self, request_id: str, room_tokens: int) -> bool:
        """Make the sequence's room at least `room_tokens`. False, and nothing changed, if that cannot be."""
        ...

    def add_keys(self, request_id: str, keys: Sequence[Hashable]) -> None:
        """Name the sequence's next full blocks, in order, so that they become reusable once committed."""
        ...

    def commit(self, request_id: str, tokens: int) -> None:
        """The KV of the sequence's first `tokens` tokens is now really there."""
        ...

    def close(self, request_id: str) -> None:
        """Take the sequence's room back. Keyed blocks stay findable until they are evicted."""
        ...

    def block_ids(self, request_id: str) -> Sequence[int]:
        """Physical blocks of an open sequence, in order; empty where the ledger has none. A view: it grows with it."""
        ...

    def clear_cache(self) -> None:
        """Forget every key. Blocks of open sequences stay theirs and become findable again at their next commit."""
        ...
