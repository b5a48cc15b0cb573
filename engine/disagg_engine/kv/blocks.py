"""A ledger of physical blocks: prefix reuse, reference counts, eviction.

A block is in exactly one of three states:

    held        reference count above 0: some open sequence's; shared when above 1; never evicted (case KV7)
    cached      count 0, but its key can be found: the next sequence with that prefix takes it back; evicted when room
                is needed, least recently held first, and of one sequence the end before the beginning
    free        count 0, no key

Keys are opaque and chained by whoever makes them: a key names the whole prefix up to its block, so a block is found
only if everything before it agrees. A block gets its key when it is full, its contents are committed and its key is
known; if another block has that key already, the newcomer stays private. So the key map points only at blocks with
that very content, and each key at one block (case WB10). Block ids are stable while a block is held or cached: a worker
may keep contents by id. Shared blocks are never written, because a match leaves the last token out (case WB6).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from disagg_engine.errors import DuplicateRequestError, SettingError, UnknownRequestError
from disagg_engine.kv.events import AllCleared, BlockRemoved, BlockStored, KvEvent, KvListener


@dataclass(slots=True)
class _Holding:
    """An open sequence: its blocks, its keys, and how many leading blocks have been looked at for publishing."""

    blocks: list[int]
    keys: list[Hashable]
    committed: int
    published: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSnapshot:
    """The pool at one moment: ids of free and cached blocks, count of every held block, and the key map."""

    free: tuple[int, ...]
    cached: tuple[int, ...]
    references: dict[int, int] = field(default_factory=dict)
    keys: dict[Hashable, int] = field(default_factory=dict)


class BlockLedger:
    """KV room as physical blocks; see the module's docstring.

    listener: told of blocks that become or cease to be findable, after the ledger is consistent; it must not raise.
    prefix_caching: off, nothing is ever reused and no events are told.
    """

    def __init__(
        self,
        *,
        capacity_tokens: int,
        block_tokens: int = 16,
        prefix_caching: bool = True,
        listener: KvListener | None = None,
    ) -> None:
        if not block_tokens >= 1:
            raise SettingError(field="block_tokens", value=block_tokens, wanted="at least 1")
        if not capacity_tokens >= block_tokens:
            raise SettingError(
                field="capacity_tokens", value=capacity_tokens, wanted=f"at least a block ({block_tokens})"
            )
        self._block = block_tokens
        self._total = capacity_tokens // block_tokens
        self._caching = prefix_caching
        self._listener = listener
        self._free: deque[int] = deque(range(self._total))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * self._total
        self._key_of: list[Hashable | None] = [None] * self._total
        self._by_key: dict[Hashable, int] = {}
        self._open: dict[str, _Holding] = {}
        self._evicted: list[tuple[Hashable, int]] = []

    @property
    def block_tokens(self) -> int:
        return self._block

    @property
    def capacity_tokens(self) -> int:
        return self._total * self._block

    @property
    def free_tokens(self) -> int:
        return (len(self._free) + len(self._cached)) * self._block

    @property
    def used_tokens(self) -> int:
        return self.capacity_tokens - self.free_tokens

    @property
    def listening(self) -> bool:
        return self._caching and self._listener is not None

    @property
    def cached_tokens(self) -> int:
        """Room of blocks that nobody holds but that can be found again; part of `free_tokens`."""
        return len(self._cached) * self._block

    def match(self, keys: Sequence[Hashable], tokens: int) -> int:
        return len(self._hits(keys, tokens)) * self._block

    def open(
        self,
        request_id: str,
        *,
        tokens: int,
        room_tokens: int,
        keys: Sequence[Hashable] = (),
        headroom_tokens: int = 0,
    ) -> int | None:
        if request_id in self._open:
            raise DuplicateRequestError(request_id)
        hits = self._hits(keys, tokens) if keys else []
        cached = len(hits) * self._block
        fresh = max(0, self._blocks(room_tokens) - len(hits))
        idle_hits = sum(1 for block in hits if self._references[block] == 0)
        if fresh + idle_hits + self._blocks(headroom_tokens) > len(self._free) + len(self._cached):
            return None
        holding = _Holding([], list(keys) if self._caching else [], cached, len(hits))
        try:
            for block in hits:
                self._hold(block)
                holding.blocks.append(block)
            self._take(holding.blocks, fresh)
        except Exception:
            self._give_back(holding.blocks)
            self._tell_evicted()
            raise
        self._open[request_id] = holding
        if self._evicted:
            self._tell_evicted()
        return cached

    def grow(self, request_id: str, room_tokens: int) -> bool:
        holding = self._get(request_id)
        more = self._blocks(room_tokens) - len(holding.blocks)
        if more <= 0:  # the usual case: the last block still has room
            return True
        if more > len(self._free) + len(self._cached):
            return False
        taken: list[int] = []
        try:
            self._take(taken, more)
        except Exception:
            self._give_back(taken)
            self._tell_evicted()
            raise
        holding.blocks.extend(taken)
        if self._evicted:
            self._tell_evicted()
        return True

    def add_keys(self, request_id: str, keys: Sequence[Hashable]) -> None:
        holding = self._get(request_id)
        if self._caching and keys:
            holding.keys.extend(keys)
            self._publish(request_id, holding)

    def commit(self, request_id: str, tokens: int) -> None:
        holding = self._get(request_id)
        if tokens > len(holding.blocks) * self._block:
            raise SettingError(field="tokens", value=tokens, wanted=f"within the room of {request_id!r}")
        holding.committed = tokens
        if holding.published < len(holding.keys) and tokens >= (holding.published + 1) * self._block:
            self._publish(request_id, holding)

    def close(self, request_id: str) -> None:
        holding = self._get(request_id)
        del self._open[request_id]
        self._give_back(holding.blocks)

    def block_ids(self, request_id: str) -> Sequence[int]:
        return self._get(request_id).blocks

    def clear_cache(self) -> None:
        self._by_key.clear()
        self._free.extend(self._cached)
        self._cached.clear()
        self._key_of = [None] * self._total
        for holding in self._open.values():
            holding.published = 0  # what open sequences hold is told anew at their next commit
        self._tell(AllCleared())

    def snapshot(self) -> BlockSnapshot:
        """The pool now; for tests and debugging."""
        return BlockSnapshot(
            free=tuple(self._free),
            cached=tuple(self._cached),
            references={block: count for block, count in enumerate(self._references) if count},
            keys=dict(self._by_key),
        )

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _get(self, request_id: str) -> _Holding:
        try:
            return self._open[request_id]
        except KeyError:
            raise UnknownRequestError(request_id) from None

    def _hold(self, block: int) -> None:
        if self._references[block] == 0:
            del self._cached[block]
        self._references[block] += 1

    def _hits(self, keys: Sequence[Hashable], tokens: int) -> list[int]:
        """Blocks of the leading keys that can be found, the last token's left out."""
        found: list[int] = []
        if self._caching:
            by_key = self._by_key
            for key in keys[: max(0, tokens - 1) // self._block]:
                block = by_key.get(key)
                if block is None:
                    break
                found.append(block)
        return found

    def _take(self, blocks: list[int], count: int) -> None:
        """Append blocks for new contents: free ones, then cached ones least recently held, which lose their keys."""
        references, free = self._references, self._free
        for _ in range(min(count, len(free))):
            block = free.popleft()
            references[block] = 1
            blocks.append(block)
            count -= 1
        for _ in range(count):
            block, _ = self._cached.popitem(last=False)
            key = self._key_of[block]
            if key is not None:
                del self._by_key[key]
                self._key_of[block] = None
                self._evicted.append((key, block))
            references[block] = 1
            blocks.append(block)

    def _give_back(self, blocks: list[int]) -> None:
        references, key_of, free, cached = self._references, self._key_of, self._free, self._cached
        for block in reversed(blocks):
            count = references[block] - 1
            references[block] = count
            if count == 0:
                if key_of[block] is None:
                    free.append(block)
                else:
                    cached[block] = None

    def _publish(self, request_id: str, holding: _Holding) -> None:
        """Give their keys to blocks that are full and committed; tell each run of successive ones at once."""
        stop = min(holding.committed // self._block, len(holding.keys))
        run: list[int] = []
        for index in range(holding.published, stop):
            key, block = holding.keys[index], holding.blocks[index]
            if key in self._by_key:
                self._tell_stored(request_id, holding, run)
                run = []
                continue
            self._by_key[key] = block
            self._key_of[block] = key
            run.append(index)
        holding.published = max(holding.published, stop)
        self._tell_stored(request_id, holding, run)

    def _tell_stored(self, request_id: str, holding: _Holding, run: list[int]) -> None:
        if run:
            self._tell(
                BlockStored(
                    request_id=request_id,
                    keys=tuple(holding.keys[index] for index in run),
                    block_ids=tuple(holding.blocks[index] for index in run),
                    parent_key=holding.keys[run[0] - 1] if run[0] > 0 else None,
                    first_block=run[0],
                )
            )

    def _tell_evicted(self) -> None:
        if self._evicted:
            evicted, self._evicted = self._evicted, []
            self._tell(
                BlockRemoved(keys=tuple(key for key, _ in evicted), block_ids=tuple(block for _, block in evicted))
            )

    def _tell(self, event: KvEvent) -> None:
        if self._listener is not None:
            self._listener(event)
