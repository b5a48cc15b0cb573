"""How an iteration is composed.

A composer looks at the running sequences and the head of the queue and returns who computes how many tokens. It asks
the loop to admit the head or to make room for a decode; it owns no state but what fairness needs.
"""

from __future__ import annotations

from typing import Protocol

from disagg_contract.config import BatchPolicy
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.sequence import Sequence

Take = tuple[Sequence, int]
"""A sequence and how many tokens of it the iteration computes."""


class View(Protocol):
    """What the loop shows a composer, and lets it do."""

    now: float
    preempted: list[str]
    """Sequences thrown out so far while this iteration is composed."""

    def candidates(self) -> list[Sequence]:
        """Running sequences that may take part now, in the order they were admitted."""
        ...

    def decoding(self) -> int:
        """Running sequences that decode, those in flight included."""
        ...

    def head(self) -> Sequence | None:
        """The first of the queue, if it has arrived. Requests to be pulled before it are given room on the way."""
        ...

    def head_tokens(self, head: Sequence) -> int:
        """Tokens the head has to compute, what is cached now left out."""
        ...

    def admit(self) -> bool:
        """Move the head to the running set; False if there is no room for it."""
        ...

    def make_room(self, sequence: Sequence) -> bool:
        """Room for the sequence's next token, if need be by throwing out the last admitted. False: it was the last."""
        ...


class Composer(Protocol):
    """Composes iterations."""

    def compose(self, view: View, /) -> list[Take]:
        """The next iteration's work; empty if nothing can run now."""
        ...


def composer_for(config: BatchingConfig) -> Composer:
    """The composer of the configured policy."""
    if config.policy is BatchPolicy.CHUNKED:
        return Chunked(config)
    return PrefillFirst(config)


def _decodes(view: View, candidates: list[Sequence], *, pipeline: int) -> list[Take]:
    """One token for each decoding sequence; with pipeline stages for one micro-batch of them.

    A micro-batch has its share of all that decode, those in flight included, and takes whoever waited longest.
    """
    ready = [s for s in candidates if s.decodes]
    if pipeline > 1 and ready:
        share = -(-view.decoding() // pipeline)
        ready = sorted(ready, key=lambda s: s.served)[:share]
    taken = [s for s in ready if s.computed > 0 and view.make_room(s)]
    # With pipeline stages the order is not that of admission, so a later one may have thrown out one taken before it.
    return [(s, 1) for s in taken if s.computed > 0]


class PrefillFirst:
    """Whole prompts before any decode, either the one or the other in an iteration.

    Prompts are taken in order up to the role's token limit; a longer one runs alone. After `prefill_burst` prefill
    iterations in a row, if set, waiting decodes get one iteration (case WB9).
    """

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        self._burst = 0

    def compose(self, view: View, /) -> list[Take]:
        candidates = view.candidates()
        decodable = any(s.decodes for s in candidates)
        limit = self._config.prefill_burst
        if limit is None or self._burst < limit or not decodable:
            takes = self._prefills(view, candidates)
            if takes:
                self._burst = self._burst + 1 if decodable else 0
                return takes
        self._burst = 0
        return _decodes(view, candidates, pipeline=self._config.pipeline)

    def _prefills(self, view: View, candidates: list[Sequence]) -> list[Take]:
        takes = [(s, s.missing) for s in candidates if not s.decodes]
        left = self._config.prefill_limit_tokens - sum(tokens for _, tokens in takes)
        while (left > 0 or not takes) and (head := view.head()) is not None:
            tokens = view.head_tokens(head)
            if (takes and tokens > left) or not view.admit():
                break
            takes.append((head, tokens))
            left -= tokens
        return takes


class Chunked:
    """All decodes, then prompt chunks with what is left of the token budget.

    Decodes count against the budget but are never left out for it. Prompts under way go before new ones, and after a
    preemption nothing is admitted in the same iteration.
    """

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config

    def compose(self, view: View, /) -> list[Take]:
        takes = _decodes(view, view.candidates(), pipeline=self._config.pipeline)
        left = self._config.chunk_tokens - len(takes)
        for sequence in view.candidates():
            if left <= 0:
                return takes
            if not sequence.decodes:
                tokens = min(sequence.missing, left)
                takes.append((sequence, tokens))
                left -= tokens
        while left > 0 and not view.preempted and (head := view.head()) is not None and view.admit():
            tokens = min(head.missing, left)
            takes.append((head, tokens))
            left -= tokens
        return takes
