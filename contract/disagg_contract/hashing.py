"""Prefix-chained hashes over token ids: one chain for block identity and for KV content.

A block of KV is only usable behind the very prefix it was computed with, so its identity must name that whole
prefix. Here the digest of block ``k`` is ``H(digest of block k-1, tokens of block k)``, and the chain starts at a
*root* that names everything else the contents depend on: the model, a LoRA adapter, a tenant's salt. Equal digests
therefore mean equal prefixes in equal namespaces, and the same tokens after a different prefix get another digest.

The same function extends inside a block: the digest of a partly filled block is the hash of its parent and of the
tokens so far, and becomes the block's digest when the last token arrives. The simulated KV cache stores exactly these
digests, which is why a stale or foreign block changes the text that the simulated model writes.

H is BLAKE2b with 16 bytes of output over little-endian 32-bit token ids: stable over processes, machines and
``PYTHONHASHSEED``, unlike Python's own ``hash``. A frozen vector in the golden files keeps it so.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16
"""Length of every digest of this module in bytes."""

_SCHEME: Final = b"disagg/kv/1"


def scheme() -> str:
    """Name of the hash scheme; two parties whose schemes differ can't compare digests."""
    return f"{_SCHEME.decode()}:blake2b-{DIGEST_BYTES * 8}:u32le"


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as little-endian unsigned 32-bit integers, 4 bytes a token.

    Raises OverflowError for an id outside 0..2**32-1.
    """
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """Inverse of `pack_tokens`. Raises ValueError if the length isn't a multiple of 4."""
    packed = array("I")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def root_digest(*, model: str, lora: str | None = None, salt: str | None = None) -> bytes:
    """The start of every chain in one namespace: equal model, LoRA adapter and tenant salt give equal roots.

    Each part is length-prefixed, so that no two different namespaces spell the same bytes; an absent part differs from
    an empty one.
    """
    hasher = blake2b(_SCHEME, digest_size=DIGEST_BYTES)
    for part in (model, lora, salt):
        if part is None:
            hasher.update(b"\xff" * 4)
        else:
            data = part.encode("utf-8", "surrogatepass")
            hasher.update(len(data).to_bytes(4, "little"))
            hasher.update(data)
    return hasher.digest()


def extend_digest(digest: bytes, tokens: Iterable[int]) -> bytes:
    """The digest of ``tokens`` written behind a prefix whose digest is ``digest`` (16 bytes in, 16 bytes out).

    Chains by blocks, not by tokens: ``extend(extend(d, a), b)`` differs from ``extend(d, a + b)``. Use it with whole
    blocks, or with the filled part of the last block on top of the digest of the last full one.
    """
    return blake2b(digest + pack_tokens(tokens), digest_size=DIGEST_BYTES).digest()


def extend_packed(digest: bytes, packed: bytes) -> bytes:
    """`extend_digest` for tokens that are already packed."""
    return blake2b(digest + packed, digest_size=DIGEST_BYTES).digest()


def block_hashes(tokens: Sequence[int], *, block_tokens: int, root: bytes) -> list[bytes]:
    """Digests of the full blocks of ``tokens``, first block first; a partly filled last block has none.

    ``block_tokens`` is the tokens of one block (>= 1). Raises ValueError otherwise.
    """
    if block_tokens < 1:
        raise ValueError(f"block_tokens is {block_tokens}; a block holds at least 1 token")
    packed = pack_tokens(tokens)
    step = 4 * block_tokens
    digest = root
    hashes = []
    for start in range(0, len(packed) - step + 1, step):
        digest = blake2b(digest + packed[start : start + step], digest_size=DIGEST_BYTES).digest()
        hashes.append(digest)
    return hashes


class BlockChain:
    """Grows a chain one token at a time: full blocks' digests in `hashes`, the digest up to now in `digest`.

    Invariant: after appending the tokens ``t``, ``hashes == block_hashes(t)`` and ``digest`` is that of the last full
    block extended by the tokens behind it (just the last full block's, or the root, if there are none).
    """

    __slots__ = ("_block_tokens", "_filled", "_hasher", "hashes", "root")

    def __init__(self, *, block_tokens: int, root: bytes) -> None:
        if block_tokens < 1:
            raise ValueError(f"block_tokens is {block_tokens}; a block holds at least 1 token")
        self._block_tokens = block_tokens
        self._filled = 0
        self._hasher = blake2b(root, digest_size=DIGEST_BYTES)
        self.hashes: list[bytes] = []
        self.root = root

    @property
    def tokens(self) -> int:
        """Tokens appended so far."""
        return len(self.hashes) * self._block_tokens + self._filled

    @property
    def digest(self) -> bytes:
        """Digest of everything appended so far (16 bytes)."""
        if self._filled:
            return self._hasher.digest()
        return self.hashes[-1] if self.hashes else self.root

    def append(self, token: int) -> bytes | None:
        """Add one token. Returns the digest of the block that it completes, or None."""
        self._hasher.update(token.to_bytes(4, "little"))
        self._filled += 1
        if self._filled < self._block_tokens:
            return None
        digest = self._hasher.digest()
        self.hashes.append(digest)
        self._filled = 0
        self._hasher = blake2b(digest, digest_size=DIGEST_BYTES)
        return digest

    def extend(self, tokens: Sequence[int]) -> None:
        """Add many tokens; whole blocks at a time where the chain stands between two blocks."""
        start = 0
        if not self._filled:
            fresh = block_hashes(tokens, block_tokens=self._block_tokens, root=self.digest)
            if fresh:
                self.hashes += fresh
                self._hasher = blake2b(fresh[-1], digest_size=DIGEST_BYTES)
                start = len(fresh) * self._block_tokens
        for token in tokens[start:]:
            self.append(token)
