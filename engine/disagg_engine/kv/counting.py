"""A ledger that only counts: the fast path where no KV is reused."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from disagg_engine.errors import DuplicateRequestError, SettingError, UnknownRequestError


class CountingLedger:
    """Room as whole blocks, without identities. Never reuses anything; keys are ignored."""

    def __init__(self, *, capacity_tokens: int, block_tokens: int = 1) -> None:
        if not block_tokens >= 1:
            raise SettingError(field="block_tokens", value=block_tokens, wanted="at least 1")
        if not capacity_tokens >= block_tokens:
            raise SettingError(
                field="capacity_tokens", value=capacity_tokens, wanted=f"a block or more ({block_tokens})"
            )
        self._block = block_tokens
        self._total = capacity_tokens // block_tokens
        self._free = self._total
        self._held: dict[str, int] = {}

    @property
    def block_tokens(self) -> int:
        return self._block

    @property
    def capacity_tokens(self) -> int:
        return self._total * self._block

    @property
    def free_tokens(self) -> int:
        return self._free * self._block

    @property
    def used_tokens(self) -> int:
        return (self._total - self._free) * self._block

    @property
    def listening(self) -> bool:
        return False

    def match(self, keys: Sequence[Hashable], tokens: int) -> int:
        return 0

    def open(
        self,
        request_id: str,
        *,
        tokens: int,
        room_tokens: int,
        keys: Sequence[Hashable] = (),
        headroom_tokens: int = 0,
    ) -> int | None:
        if request_id in self._held:
            raise DuplicateRequestError(request_id)
        blocks = -(-room_tokens // self._block)
        if blocks > self._free - (-(-headroom_tokens // self._block)):
            return None
        self._free -= blocks
        self._held[request_id] = blocks
        return 0

    def grow(self, request_id: str, room_tokens: int) -> bool:
        try:
            held = self._held[request_id]
        except KeyError:
            raise UnknownRequestError(request_id) from None
        more = -(-room_tokens // self._block) - held
        if more <= 0:
            return True
        if more > self._free:
            return False
        self._free -= more
        self._held[request_id] = held + more
        return True

    def add_keys(self, request_id: str, keys: Sequence[Hashable]) -> None:
        return

    def commit(self, request_id: str, tokens: int) -> None:
        return

    def close(self, request_id: str) -> None:
        try:
            self._free += self._held.pop(request_id)
        except KeyError:
            raise UnknownRequestError(request_id) from None

    def block_ids(self, request_id: str) -> Sequence[int]:
        return ()

    def clear_cache(self) -> None:
        return
