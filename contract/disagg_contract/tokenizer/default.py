"""The default tokenizer: no download, about one token a word, lossless for any text, local at white space.

Text is first cut into pieces: a run of non-spaces with the single space before it, or one white-space character. A
piece is then covered greedily by the longest entries of the vocabulary, and by bytes where none fits. Every
white-space character begins a piece, so cutting a text before one never changes ids: the ids of a prefix that ends
there are a prefix of the ids of the whole. This is what lets a router memoise prefixes of text.

Pieces repeat, so their ids are memoised. The memo is bounded: it is emptied when full, which costs speed, never
correctness.
"""

import codecs
import re
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from itertools import chain
from typing import Final

from disagg_contract.tokenizer.vocabulary import BYTE_BASE, PIECE_BASE, SPECIALS, build_pieces
from disagg_contract.tokenizer.words import WORDS

_PIECE = re.compile(r" ?\S+|\s")
_MEMO_ENTRIES: Final = 65_536
_MEMO_PIECE_CHARACTERS: Final = 48


class _Bytes(dict[str, tuple[int, ...]]):
    """Ids of the bytes of a character; those of ASCII are kept."""

    def __missing__(self, character: str) -> tuple[int, ...]:
        ids = tuple(BYTE_BASE + byte for byte in character.encode("utf-8", "surrogatepass"))
        if len(ids) == 1:
            self[character] = ids
        return ids


_BYTES: Final = _Bytes()


class DefaultDetokenizer:
    """Joins token bytes and decodes them incrementally."""

    __slots__ = ("_bytes_of", "_decoder")

    def __init__(self, bytes_of: Sequence[bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Text that became certain with this token; raises ValueError for an id outside the vocabulary."""
        return self._decoder.decode(_lookup(self._bytes_of, token))

    def flush(self) -> str:
        """The incomplete rest as U+FFFD, or ''."""
        return self._decoder.decode(b"", final=True)


class DefaultTokenizer:
    """See the module's text. One instance may be shared by everything in a process."""

    def __init__(self) -> None:
        pieces = build_pieces()
        self._ids: Final = {piece: PIECE_BASE + offset for offset, piece in enumerate(pieces)}
        self._longest: Final = max(map(len, pieces))
        self._longest_from: Final[dict[str, int]] = {}
        for piece in pieces:
            self._longest_from[piece[:2]] = max(len(piece), self._longest_from.get(piece[:2], 0))
        self._bytes_of: Final = (
            *(b"" for _ in SPECIALS),
            *(bytes([byte]) for byte in range(256)),
            *(piece.encode() for piece in pieces),
        )
        self._special_ids: Final = {name: number for number, name in enumerate(SPECIALS)}
        self._memo: dict[str, tuple[int, ...]] = {}
        self._output: Final = tuple(self._ids[" " + word] for word in WORDS if word.isalpha() and word.islower())
        hasher = blake2b(b"disagg/tokenizer/1", digest_size=16)
        hasher.update("\0".join(chain(SPECIALS, pieces)).encode())
        hasher.update(_PIECE.pattern.encode())
        self._digest: Final = hasher.hexdigest()

    @property
    def name(self) -> str:
        """``disagg-words``"""
        return "disagg-words"

    @property
    def digest(self) -> str:
        """Hex digest over special tokens, pieces in order and the way text is cut."""
        return self._digest

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(self._bytes_of)

    @property
    def eos_id(self) -> int:
        """Id of ``<|end|>``."""
        return 0

    @property
    def output_vocabulary(self) -> Sequence[int]:
        """Lower-case words with a leading space, about 1,200 ids."""
        return self._output

    @property
    def longest_token_characters(self) -> int:
        """14"""
        return self._longest

    def special_id(self, name: str) -> int | None:
        """Id of a special token, or None."""
        return self._special_ids.get(name)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``. Never fails; a lone surrogate is kept as its three bytes."""
        memo = self._memo
        tokens: list[int] = []
        for piece in _PIECE.findall(text):
            found = memo.get(piece)
            if found is None:
                found = self._encode_piece(piece)
                if len(piece) <= _MEMO_PIECE_CHARACTERS:
                    if len(memo) >= _MEMO_ENTRIES:
                        memo.clear()
                    memo[piece] = found
            tokens += found
        return tokens

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        ids, longest_from, bytes_of = self._ids, self._longest_from, _BYTES
        tokens: list[int] = []
        start, end = 0, len(piece)
        while start < end:
            # No entry is longer than the longest one that begins with these two characters; most pairs begin none.
            longest = longest_from.get(piece[start : start + 2], 0)
            for stop in range(min(end, start + longest), start + 1, -1) if longest else ():
                found = ids.get(piece[start:stop])
                if found is not None:
                    tokens.append(found)
                    start = stop
                    break
            else:
                tokens += bytes_of[piece[start]]
                start += 1
        return tuple(tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``; bytes that are no UTF-8 are replaced by U+FFFD. Raises ValueError for an unknown id."""
        data = b"".join([_lookup(self._bytes_of, token) for token in tokens])
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return data.decode("utf-8", "replace")

    def detokenizer(self) -> DefaultDetokenizer:
        """A fresh incremental decoder."""
        return DefaultDetokenizer(self._bytes_of)


def _lookup(bytes_of: Sequence[bytes], token: int) -> bytes:
    if not 0 <= token < len(bytes_of):
        raise ValueError(f"token id {token} is outside the vocabulary (0..{len(bytes_of) - 1})")
    return bytes_of[token]


@cache
def default_tokenizer() -> DefaultTokenizer:
    """The process's shared default tokenizer (building it takes some tens of milliseconds)."""
    return DefaultTokenizer()
