"""Prompts of exactly the asked number of tokens, the same for the same request and seed.

Tokens are words of the default tokenizer that are one token each, wherever they stand: decoding a prompt gives text
that encodes to the same ids, so a request can be sent either way. Requests that share hash ids share the tokens of
those blocks (for every seed: a hash id names its contents); all other tokens depend on the seed and on the request's
place in the workload, so that no two requests have a prefix in common by chance.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import shake_128

from disagg_contract.tokenizer import Tokenizer

from .requests import TraceRequest


class PromptMaker:
    """Makes the prompts of one workload.

    `seed` tells runs apart: a second run with the same seed finds the first one's prompts in the caches of the
    servers. `block_tokens` is the workload's, the tokens that one hash id stands for.
    """

    def __init__(self, *, tokenizer: Tokenizer, seed: int, block_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._block_tokens = block_tokens
        self._words = tuple(tokenizer.output_vocabulary)

    def token_ids(self, request: TraceRequest, *, index: int) -> Sequence[int]:
        """The prompt of the `index`-th request as token ids.

        Exactly `request.input_tokens` of them, except for a literal text prompt, which is as long as it is.
        """
        if isinstance(request.prompt, str):
            return self._tokenizer.encode(request.prompt)
        if request.prompt is not None:
            return request.prompt
        if not request.hash_ids:
            return self._tokens(f"request/{self._seed}/{index}", request.input_tokens)
        tokens: list[int] = []
        for hash_id in request.hash_ids:
            tokens += self._tokens(f"block/{hash_id}", min(self._block_tokens, request.input_tokens - len(tokens)))
        return tokens

    def text(self, request: TraceRequest, *, index: int) -> str:
        """The same prompt as text."""
        if isinstance(request.prompt, str):
            return request.prompt
        return self._tokenizer.decode(self.token_ids(request, index=index))

    def _tokens(self, key: str, count: int) -> list[int]:
        drawn = array("I", shake_128(f"disagg/prompt/{key}".encode()).digest(4 * count))
        if sys.byteorder == "big":
            drawn.byteswap()
        words = self._words
        return [words[number % len(words)] for number in drawn]
