"""What the KV blocks hold, and what a sequence reads from them.

A real model reads every block of a sequence's table. Here a block's content is the digest of the prefix it was computed
behind and the tokens computed into it; reading a table folds its blocks into one digest, the *view*, from which the
next token is drawn. As long as every block was computed behind the blocks before it, the view equals the prefix-chained
hash of the tokens. A block that is stale, foreign, missing or damaged has another prefix or other tokens: the view, and
with it the text, becomes another one. Nothing repairs it, which is the point.

Contents live under the ledger's block ids and outlive the sequence that wrote them, as cached KV does. Nothing is ever
deleted: an id that is given out anew is overwritten before it is read.
"""

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from disagg_contract.hashing import DIGEST_BYTES, extend_packed, pack_tokens

_ABSENT = b"\0" * DIGEST_BYTES


class BlockContent(msgspec.Struct, frozen=True, gc=False):
    """One block: digest of everything before it, and its tokens as packed 32-bit ids."""

    prefix: bytes
    packed: bytes

    @property
    def tokens(self) -> int:
        """How many tokens were computed into it."""
        return len(self.packed) // 4

    def first(self, tokens: int) -> "BlockContent":
        """The block as it was when it held ``tokens`` tokens."""
        return self if tokens >= self.tokens else BlockContent(self.prefix, self.packed[: 4 * tokens])

    def digest(self) -> bytes:
        """Digest of the prefix and the tokens: the next block's prefix."""
        return extend_packed(self.prefix, self.packed)


class ContentStore:
    """Contents of all blocks of an instance by block id."""

    def __init__(self, *, block_tokens: int, root: bytes) -> None:
        self.block_tokens = block_tokens
        self.root = root
        self._blocks: dict[int, BlockContent] = {}

    def get(self, block_id: int) -> BlockContent | None:
        """What the block holds; None if nothing was ever written there."""
        return self._blocks.get(block_id)

    def put(self, block_id: int, content: BlockContent) -> None:
        """Overwrite a block."""
        self._blocks[block_id] = content

    def fold(self, view: bytes, content: BlockContent | None, tokens: int) -> bytes:
        """The view behind a block of which ``tokens`` tokens are read, from the view before it."""
        if content is None:
            return _mix(view, _ABSENT)
        packed = content.packed if content.tokens == tokens else content.packed[: 4 * tokens]
        digest = extend_packed(content.prefix, packed)
        if content.prefix == view and len(packed) == 4 * tokens:
            return digest
        return _mix(view, digest)


def _mix(view: bytes, digest: bytes) -> bytes:
    """A view that no prefix has: something in the table does not belong there."""
    return blake2b(b"foreign" + view + digest, digest_size=DIGEST_BYTES).digest()


class SequenceView:
    """One sequence's reading of its block table.

    ``tokens`` have been read or written so far; ``digest`` is the view behind them.
    """

    __slots__ = ("_start", "_store", "digest", "tokens")

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        """Forget everything read: the table was taken away."""
        self.tokens = 0
        self._start = self._store.root
        self.digest = self._store.root

    def read(self, block_ids: Sequence[int], tokens: int) -> None:
        """Read a table of ``tokens`` tokens from its beginning: cached or pulled blocks."""
        store, block = self._store, self._store.block_tokens
        self.reset()
        for start in range(0, tokens, block):
            filled = min(block, tokens - start)
            self._start = self.digest
            self.digest = store.fold(self.digest, store.get(block_ids[start // block]), filled)
        self.tokens = tokens

    def write(self, block_ids: Sequence[int], tokens: Sequence[int]) -> None:
        """Compute ``tokens`` behind what was read or written so far: fills blocks and moves the view on."""
        store, block = self._store, self._store.block_tokens
        done = 0
        while done < len(tokens):
            offset = self.tokens % block
            block_id = block_ids[self.tokens // block]
            part = tokens[done : done + block - offset]
            if offset == 0:
                self._start = self.digest
                content = BlockContent(self._start, pack_tokens(part))
            else:
                held = store.get(block_id) or BlockContent(_ABSENT, b"")
                content = BlockContent(held.prefix, held.packed[: 4 * offset] + pack_tokens(part))
            store.put(block_id, content)
            self.tokens += len(part)
            self.digest = store.fold(self._start, content, offset + len(part))
            done += len(part)

    def digest_at(self, block_ids: Sequence[int], tokens: int) -> bytes:
        """The view behind the first ``tokens`` tokens, read anew."""
        earlier = SequenceView(self._store)
        earlier.read(block_ids, tokens)
        return earlier.digest
