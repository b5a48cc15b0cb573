"""The default vocabulary, put together by rule: nothing is downloaded and nothing is read from disk.

Order (and with it every id) is fixed: special tokens, the 256 bytes, common words in four spellings (leading space or
not, capitalised or not), endings and beginnings, numbers up to three digits, punctuation, then syllables from
consonants and vowels. A word outside the list costs a token for each syllable or so, any other character one token for
each of its UTF-8 bytes.
"""

from collections.abc import Iterator
from typing import Final

from disagg_contract.tokenizer.words import PREFIXES, SUFFIXES, WORDS

SPECIALS: Final = (
    "<|end|>",
    "<|begin|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|pad|>",
    *(f"<|reserved-{number}|>" for number in range(9)),
)
"""Special tokens; the first one ends a turn or an answer."""

BYTE_BASE: Final = len(SPECIALS)
"""Id of byte 0; byte b has id BYTE_BASE + b."""

PIECE_BASE: Final = BYTE_BASE + 256
"""Id of the first piece of text."""

_CONSONANTS = ("b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "q", "r", "s", "t", "v", "w", "x", "y", "z")
_ONSETS = (*_CONSONANTS, "bl", "br", "ch", "cl", "cr", "dr", "fl", "fr", "gl", "gr", "ph", "pl", "pr", "qu", "sc", "sh",
           "sk", "sl", "sm", "sn", "sp", "st", "str", "sw", "th", "tr", "wh", "wr")  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ai", "au", "ea", "ee", "ie", "oa", "oo", "ou")
_CODAS = ("b", "ck", "d", "g", "l", "ll", "m", "n", "nd", "ng", "nt", "p", "r", "rd", "rm", "rt", "s", "sh", "ss", "st",
          "t", "th", "x")  # fmt: skip
_PUNCTUATION = ("...", "--", "==", "!=", "<=", ">=", "->", "=>", "::", "//", "/*", "*/", "**", "++", "&&", "||", "()",
                "[]", "{}", "();", "':", '":', '",', "',", ").", "),", ".)", "?)", "!)", '."', '?"', '!"', '("', "('",
                "://", "https", "http", "www", ".com", ".org", ".py", "```", "###", "##", "__", "<|", "|>")  # fmt: skip


def _capitalised(word: str) -> str:
    return word[0].upper() + word[1:]


def _pieces() -> Iterator[str]:
    for word in WORDS:
        yield " " + word
    for word in WORDS:
        yield " " + _capitalised(word)
    for word in WORDS:
        yield word
        yield _capitalised(word)
    yield from SUFFIXES
    for prefix in PREFIXES:
        yield " " + prefix
        yield " " + _capitalised(prefix)
        yield prefix
    for number in range(1000):
        for digits in {f"{number}": None, f"{number:02}": None, f"{number:03}": None}:
            yield digits
            yield " " + digits
    for mark in _PUNCTUATION:
        yield mark
        yield " " + mark
    for code in range(0x21, 0x7F):
        yield " " + chr(code)
    for vowel in _VOWELS:
        yield vowel
        for onset in _ONSETS:
            yield onset + vowel
            yield " " + onset + vowel
        for coda in _CODAS:
            yield vowel + coda
    for vowel in _VOWELS[:5]:
        for onset in _CONSONANTS:
            for coda in _CODAS:
                yield onset + vowel + coda


def build_pieces() -> tuple[str, ...]:
    """All multi-byte pieces in the order of their ids, each once; single ASCII characters are bytes already."""
    return tuple(dict.fromkeys(piece for piece in _pieces() if len(piece) > 1))
