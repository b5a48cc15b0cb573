"""Token ids and block hashes of prompts, from memory where a part was seen before.

Prompts repeat: system prompts, documents, the turns of a conversation so far. Two memories make use of it, both exact
and both bounded (a full one is emptied, which costs time and nothing else).

- :class:`WordMemo` maps a word to its packed token ids. The default tokenizer is local at white space, so the ids of a
  text are those of its words one after the other, and joining them is done in C. For the same reason a long stretch of
  text has the same ids wherever it stands.
- :class:`ChainMemo` maps a run of blocks behind a known prefix to their hashes. A chain is walked in runs; only what
  comes behind the first run nobody has sent before is hashed.
"""

from typing import Final

from disagg_contract.hashing import extend_packed, pack_tokens, unpack_tokens
from disagg_contract.tokenizer import DefaultTokenizer, Tokenizer

TOKEN_BYTES: Final = 4
RUN_BLOCKS: Final = 16
"""Blocks of one entry of a ChainMemo: 256 tokens at 16 a block, 1 KB."""
MAX_RUNS: Final = 1 << 13
"""Some 20 MB."""
MAX_WORDS: Final = 1 << 16
MAX_WORD_CHARACTERS: Final = 48
CHUNK_CHARACTERS: Final = 2048
MAX_CHUNKS: Final = 1 << 12
"""Some 20 MB."""


class WordMemo(dict[str, bytes]):
    """Packed ids of a word with the space before it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> bytes:
        packed = pack_tokens(self._tokenizer.encode(" " + word))
        if len(word) <= MAX_WORD_CHARACTERS:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = packed
        return packed


class TextPacker:
    """Text to packed token ids. Long texts are cut into chunks before a space and remembered chunk by chunk, too."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words = WordMemo(tokenizer) if isinstance(tokenizer, DefaultTokenizer) else None
        self._chunks: dict[str, bytes] = {}

    def pack(self, text: str) -> bytes:
        """Ids of ``text`` in 4 bytes each."""
        if self._words is None:
            return pack_tokens(self._tokenizer.encode(text))
        parts = []
        start = 0
        while (end := text.find(" ", start + CHUNK_CHARACTERS)) > 0:
            chunk = text[start:end]
            packed = self._chunks.get(chunk)
            if packed is None:
                packed = self._pack_words(chunk, self._words)
                if len(chunk) <= 2 * CHUNK_CHARACTERS:
                    if len(self._chunks) >= MAX_CHUNKS:
                        self._chunks.clear()
                    self._chunks[chunk] = packed
            parts.append(packed)
            start = end
        parts.append(self._pack_words(text[start:], self._words))
        return b"".join(parts)

    def _pack_words(self, text: str, memo: WordMemo) -> bytes:
        first, *words = text.split(" ")
        return pack_tokens(self._tokenizer.encode(first)) + b"".join(map(memo.__getitem__, words))


class RememberingTokenizer:
    """What the chat template needs of a tokenizer, with texts packed from memory."""

    def __init__(self, tokenizer: Tokenizer, packer: TextPacker) -> None:
        self._packer = packer
        self.eos_id: Final = tokenizer.eos_id
        self.special_id: Final = tokenizer.special_id

    def encode(self, text: str) -> list[int]:
        return unpack_tokens(self._packer.pack(text))


class ChainMemo:
    """Hashes of the full blocks of packed tokens; equal to ``disagg_contract.hashing.block_hashes``."""

    def __init__(self) -> None:
        self._runs: dict[tuple[bytes, bytes], tuple[bytes, ...]] = {}

    def hashes(self, packed: bytes, *, block_tokens: int, root: bytes) -> list[bytes]:
        """Digests, first block first."""
        block = TOKEN_BYTES * block_tokens
        run = RUN_BLOCKS * block
        digest = root
        found: list[bytes] = []
        for start in range(0, len(packed) - block + 1, run):
            piece = packed[start : start + run]
            if len(piece) < run:
                found += _chain(digest, piece, block)
                break
            hashes = self._runs.get((digest, piece))
            if hashes is None:
                if len(self._runs) >= MAX_RUNS:
                    self._runs.clear()
                hashes = self._runs[digest, piece] = tuple(_chain(digest, piece, block))
            found += hashes
            digest = hashes[-1]
        return found


def _chain(digest: bytes, packed: bytes, block: int) -> list[bytes]:
    hashes = []
    for start in range(0, len(packed) - block + 1, block):
        digest = extend_packed(digest, packed[start : start + block])
        hashes.append(digest)
    return hashes
