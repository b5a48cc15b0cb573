"""Decode memory that KV is pushed into, whether there is room or not (ADR 16).

KV that has landed lies in the pool beside that of the admitted requests, and takes room from whoever is to be admitted
next. What lands where there is no room is dropped: its prompt is computed again, here. When nothing runs and the
head of the queue still finds no room, the landed KV itself is what stands in the way (everybody holds a prompt and
nobody gets the room for an answer); then the latest landed gives way, as often as needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from disagg_engine.kv.protocol import KvLedger


class LandingLedger:
    """A ledger that shares its room with landed KV. All counts are tokens of room, whole blocks.

    peak_tokens: the most that was asked of the pool at a time: what it held and the dropped KV of requests that still
    wait, so it passes the capacity where there was an overrun. dropped: how often KV was lost for want of room.
    """

    def __init__(self, ledger: KvLedger) -> None:
        self._ledger = ledger
        self._landed: dict[str, int] = {}
        self._landed_tokens = 0
        self._missing: dict[str, int] = {}
        self._claimed: set[str] = set()
        self.peak_tokens = 0
        self.dropped = 0

    def land(self, request_id: str, tokens: int) -> bool:
        """KV of a request arrives, which is not admitted yet; False if it had to be dropped."""
        room = -(-tokens // self.block_tokens) * self.block_tokens
        fits = self.used_tokens + room <= self.capacity_tokens
        self._landed[request_id] = room
        self._landed_tokens += room
        if not fits:
            self._drop(request_id)
        self._note()
        return fits

    def claim(self, request_id: str) -> bool:
        """Whether the KV of a request just admitted is still there; told once."""
        if request_id not in self._claimed:
            return False
        self._claimed.remove(request_id)
        return True

    def forget(self, request_id: str) -> None:
        """A request that waits with its KV landed is gone."""
        self._landed_tokens -= self._landed.pop(request_id, 0)
        self._missing.pop(request_id, None)
        self._claimed.discard(request_id)

    def _drop(self, request_id: str) -> None:
        room = self._landed.pop(request_id)
        self._landed_tokens -= room
        self._missing[request_id] = room
        self.dropped += 1

    def _note(self) -> None:
        self.peak_tokens = max(self.peak_tokens, self.used_tokens + sum(self._missing.values()))

    @property
    def block_tokens(self) -> int:
        return self._ledger.block_tokens

    @property
    def capacity_tokens(self) -> int:
        return self._ledger.capacity_tokens

    @property
    def free_tokens(self) -> int:
        return self._ledger.free_tokens - self._landed_tokens

    @property
    def used_tokens(self) -> int:
        return self._ledger.used_tokens + self._landed_tokens

    @property
    def listening(self) -> bool:
        return self._ledger.listening

    def match(self, keys: Sequence[Hashable], tokens: int) -> int:
        return self._ledger.match(keys, tokens)

    def open(
        self,
        request_id: str,
        *,
        tokens: int,
        room_tokens: int,
        keys: Sequence[Hashable] = (),
        headroom_tokens: int = 0,
    ) -> int | None:
        own = self._landed.get(request_id, 0)
        while True:
            cached = self._ledger.open(
                request_id,
                tokens=tokens,
                room_tokens=room_tokens,
                keys=keys,
                headroom_tokens=headroom_tokens + self._landed_tokens - own,
            )
            if cached is not None:
                break
            latest = next((other for other in reversed(self._landed) if other != request_id), None)
            if latest is None or self._ledger.used_tokens:
                return None
            self._drop(latest)
        self.forget(request_id)
        if own:
            self._claimed.add(request_id)
        self._note()
        return cached

    def grow(self, request_id: str, room_tokens: int) -> bool:
        if not self._ledger.grow(request_id, room_tokens):
            return False
        while self.free_tokens < 0:  # who runs goes before who has landed
            self._drop(next(reversed(self._landed)))
        self._note()
        return True

    def add_keys(self, request_id: str, keys: Sequence[Hashable]) -> None:
        self._ledger.add_keys(request_id, keys)

    def commit(self, request_id: str, tokens: int) -> None:
        self._ledger.commit(request_id, tokens)

    def close(self, request_id: str) -> None:
        self._ledger.close(request_id)

    def block_ids(self, request_id: str) -> Sequence[int]:
        return self._ledger.block_ids(request_id)

    def clear_cache(self) -> None:
        self._ledger.clear_cache()
