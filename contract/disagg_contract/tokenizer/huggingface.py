"""A given ``tokenizer.json`` behind the same interface, through the optional ``tokenizers`` package.

The caller reads the file; this module gets its text, so that nothing here touches a disk. The package is imported when
the first such tokenizer is made: everyone else runs without it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

_OUTPUT_LIMIT: Final = 2048
_EOS_CANDIDATES: Final = ("<|end|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>")


class TokenizerUnavailableError(ValueError):
    """The given tokenizer can't be used; the message says why and what would help."""


class HuggingFaceDetokenizer:
    """Incremental decoding that holds text back while it ends in an incomplete character."""

    __slots__ = ("_decode", "_emitted", "_start", "_tokens")

    def __init__(self, tokenizer: Any) -> None:
        self._decode = tokenizer.decode
        self._tokens: list[int] = []
        self._start = 0
        self._emitted = ""

    def push(self, token: int) -> str:
        """Text that became certain with this token."""
        self._tokens.append(token)
        window: str = self._decode(self._tokens[self._start :], skip_special_tokens=True)
        if window.endswith("\ufffd") or not window.startswith(self._emitted):
            return ""
        fresh = window[len(self._emitted) :]
        if fresh and len(self._tokens) - self._start > 8:
            # One token of overlap keeps decoders right that treat the first token of a text apart.
            self._start = len(self._tokens) - 1
            self._emitted = self._decode(self._tokens[self._start :], skip_special_tokens=True)
        else:
            self._emitted = window
        return fresh

    def flush(self) -> str:
        """What is still held back, incomplete characters as U+FFFD."""
        window: str = self._decode(self._tokens[self._start :], skip_special_tokens=True)
        return window[len(self._emitted) :] if window.startswith(self._emitted) else ""


class HuggingFaceTokenizer:
    """`Tokenizer` over the text of a ``tokenizer.json``.

    Raises TokenizerUnavailableError if the package is missing, the text is no tokenizer, it has no end-of-sequence
    token, or no words with a leading space that survive a round trip.
    """

    def __init__(self, text: str, *, name: str) -> None:
        try:
            from tokenizers import Tokenizer as Inner
        except ImportError as error:
            raise TokenizerUnavailableError(
                f"tokenizer {name}: the package 'tokenizers' is not installed; install disagg[tokenizers] or leave the "
                "tokenizer out to use the built-in one"
            ) from error
        try:
            inner: Any = Inner.from_str(text)
        # The package raises bare Exception for malformed input; there is no narrower class to name.
        except Exception as error:
            raise TokenizerUnavailableError(f"tokenizer {name}: not a tokenizer.json ({error})") from error
        self._inner: Final = inner
        self._name: Final = name
        self._digest: Final = blake2b(b"huggingface/1" + text.encode(), digest_size=16).hexdigest()
        self._size: Final[int] = inner.get_vocab_size(with_added_tokens=True)
        eos = next((found for found in map(inner.token_to_id, _EOS_CANDIDATES) if found is not None), None)
        if eos is None:
            raise TokenizerUnavailableError(
                f"tokenizer {name}: no end-of-sequence token; one of {', '.join(_EOS_CANDIDATES)} must be in it"
            )
        self._eos: Final[int] = eos
        self._output: Final = self._find_words()
        if not self._output:
            raise TokenizerUnavailableError(f"tokenizer {name}: no words with a leading space survive a round trip")

    def _find_words(self) -> tuple[int, ...]:
        words: list[int] = []
        for token in range(self._size):
            text = self._inner.decode([self._eos, token, token], skip_special_tokens=True)
            half = text[: len(text) // 2]
            word = half[1:]
            if (
                len(word) > 1
                and half + half == text
                and half[0] == " "
                and word.isascii()
                and word.isalpha()
                and self.encode(text) == [token, token]
            ):
                words.append(token)
                if len(words) == _OUTPUT_LIMIT:
                    break
        return tuple(words)

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    @property
    def digest(self) -> str:
        """Hex digest over the file's text."""
        return self._digest

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._size

    @property
    def eos_id(self) -> int:
        """The first known end-of-sequence token of the vocabulary."""
        return self._eos

    @property
    def longest_token_characters(self) -> int:
        """0, not known: normalisation may leave characters out."""
        return 0

    @property
    def output_vocabulary(self) -> Sequence[int]:
        """Words with a leading space, at most 2,048."""
        return self._output

    def special_id(self, name: str) -> int | None:
        """Id of an added token of that name, or None."""
        found: int | None = self._inner.token_to_id(name)
        return found

    def encode(self, text: str) -> list[int]:
        """Token ids without the special tokens that a post-processor would add."""
        tokens: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens`` without special tokens. Raises ValueError for an unknown id."""
        for token in tokens:
            if not 0 <= token < self._size:
                raise ValueError(f"token id {token} is outside the vocabulary (0..{self._size - 1})")
        text: str = self._inner.decode(list(tokens), skip_special_tokens=True)
        return text

    def detokenizer(self) -> HuggingFaceDetokenizer:
        """A fresh incremental decoder."""
        return HuggingFaceDetokenizer(self._inner)
