"""What a block ledger tells a listener: the engine's side of KV events.

Plain values without token ids or wire format; the worker, who knows the tokens, turns them into the contract's events.
Only blocks that can be found again by their key are reported, each `BlockStored` once per physical block and each
`BlockRemoved` when the key stops being findable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Successive full blocks of one sequence became reusable.

    `first_block` is the index of `keys[0]` within the sequence (token `first_block * block_tokens`), `parent_key` the
    key of the block before it (None at the start of the sequence).
    """

    request_id: str
    keys: tuple[Hashable, ...]
    block_ids: tuple[int, ...]
    parent_key: Hashable | None
    first_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """These keys can no longer be found (evicted to make room)."""

    keys: tuple[Hashable, ...]
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The whole prefix cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllCleared
KvListener = Callable[[KvEvent], None]
