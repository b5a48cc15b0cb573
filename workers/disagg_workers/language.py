"""The simulated model: which token comes next, and where an answer ends.

Both are functions of the view of the KV (`disagg_workers.contents`) and of the request's seed, nothing else. So a
colocated, a disaggregated, a migrated and a retried run of the same request give the same tokens, and any fault in the
KV shows as other text. Temperature 0 is greedy: the seed then plays no part. A missing seed is the worker's own (0 by
default), because a simulation that can be repeated is worth more than a surprise.

An answer's natural length is drawn once, from the view at the end of the prompt, out of the configured lognormal
distribution (set by its mean), and includes the end token, as vLLM counts it.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from statistics import NormalDist
from typing import Final

from disagg_contract.openai import TokenLogprob
from disagg_contract.tokenizer import Tokenizer

_NORMAL: Final = NormalDist()
_MASK: Final = 2**64 - 1


def choice_seed(seed: int | None, index: int, *, temperature: float, default: int = 0) -> int:
    """Seed of the ``index``-th of n choices: 0 when greedy, the request's own for the first, derived for the others."""
    if temperature == 0:
        return 0
    base = (default if seed is None else seed) & _MASK
    return base if index == 0 else _hash(b"choice", base.to_bytes(8, "little"), index)


def _hash(kind: bytes, data: bytes, number: int) -> int:
    return int.from_bytes(blake2b(kind + data + number.to_bytes(8, "little"), digest_size=8).digest(), "little")


class Language:
    """Draws tokens from ``tokenizer.output_vocabulary`` and lengths with mean ``mean_tokens`` and ``sigma``."""

    def __init__(self, tokenizer: Tokenizer, *, mean_tokens: float, sigma: float) -> None:
        self._tokenizer = tokenizer
        self._words: Final[Sequence[int]] = tokenizer.output_vocabulary
        self.eos_id: Final = tokenizer.eos_id
        self._mean = mean_tokens
        self._sigma = sigma

    def next_token(self, view: bytes, *, seed: int, position: int) -> int:
        """The token at ``position`` (0-based, counted over prompt and answer)."""
        data = view + seed.to_bytes(8, "little") + position.to_bytes(8, "little")
        return self._words[int.from_bytes(blake2b(data, digest_size=8).digest(), "little") % len(self._words)]

    def answer_tokens(self, view: bytes, *, seed: int) -> int:
        """Natural length of the answer in tokens, its end token included; at least 1."""
        if self._sigma == 0:
            return max(1, round(self._mean))
        share = (_hash(b"length" + view, seed.to_bytes(8, "little"), 0) + 0.5) / 2**64
        center = math.log(self._mean) - self._sigma**2 / 2
        return max(1, round(math.exp(center + self._sigma * _NORMAL.inv_cdf(share))))

    def logprob(self, view: bytes, token: int, text: str, *, position: int, alternatives: int) -> TokenLogprob:
        """Log probability of a drawn token and of ``alternatives`` tokens, itself among them, likeliest first."""
        share = 0.35 + 0.6 * (_hash(b"logprob", view + token.to_bytes(8, "little"), position) / 2**64)
        logprob = math.log(share)
        rest = 1.0 - share
        top = [(text, logprob)] if alternatives else []
        for number in range(1, alternatives):
            other = self._words[_hash(b"other%d" % number, view, position) % len(self._words)]
            rest /= 2
            if other != token:
                top.append((self._tokenizer.decode([other]), math.log(min(rest, share))))
        return TokenLogprob(text=text, logprob=logprob, top=tuple(sorted(top, key=lambda item: -item[1])))
