"""What every tokenizer of the product offers, whatever vocabulary is behind it."""

from collections.abc import Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Turns a stream of token ids into text, piece by piece.

    What it returned so far is never taken back, and a character whose bytes are spread over several tokens comes out
    whole once its last byte is there.
    """

    def push(self, token: int) -> str:
        """Text that became certain with this token ('' while a character is incomplete)."""

    def flush(self) -> str:
        """The rest at the end of the stream; bytes that never became a character are replaced by U+FFFD."""


class Tokenizer(Protocol):
    """Text to token ids and back.

    Two parties may exchange token ids, block hashes and KV only if their tokenizers have equal `digest`.
    """

    @property
    def name(self) -> str:
        """For people: which tokenizer this is."""

    @property
    def digest(self) -> str:
        """Hex digest over everything that decides token ids."""

    @property
    def vocabulary_size(self) -> int:
        """Ids are in 0..vocabulary_size-1."""

    @property
    def eos_id(self) -> int:
        """The token that ends an answer or a turn."""

    @property
    def output_vocabulary(self) -> Sequence[int]:
        """Ids of whole words with a leading space; any sequence of them survives decoding and encoding unchanged."""

    @property
    def longest_token_characters(self) -> int:
        """No token stands for more characters of a text than this; 0 where that is not known.

        It bounds the tokens of a text from below without encoding it.
        """

    def special_id(self, name: str) -> int | None:
        """Id of a special token such as ``<|user|>``, or None if this vocabulary has no such token."""

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; special tokens spelled in the text are text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids; special tokens are left out. Raises ValueError for an id outside the vocabulary."""

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental decoder."""
