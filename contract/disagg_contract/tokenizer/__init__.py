"""Tokenizers: the default one, built from rules, and an adapter for a given ``tokenizer.json``."""

from disagg_contract.tokenizer.default import DefaultDetokenizer, DefaultTokenizer, default_tokenizer
from disagg_contract.tokenizer.huggingface import HuggingFaceTokenizer, TokenizerUnavailableError
from disagg_contract.tokenizer.protocol import Detokenizer, Tokenizer

__all__ = [
    "DefaultDetokenizer",
    "DefaultTokenizer",
    "Detokenizer",
    "HuggingFaceTokenizer",
    "Tokenizer",
    "TokenizerUnavailableError",
    "default_tokenizer",
]
