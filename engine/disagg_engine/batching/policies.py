"""How an iteration is composed.

A composer looks at the running sequences and the head of the queue and says who computes how many tokens. It asks the
view to admit the head or to let everybody decode; it owns no state but what fairness needs.
"""

from __future__ import annotations

from typing import Protocol

from disagg_contract.config import BatchPolicy
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.view import View


class Composer(Protocol):
    """Composes iterations."""

    def compose(self, view: View, /) -> None:
        """Fill the view with the next iteration's work; nothing if nothing can run now."""
        ...

    def admits(self, decoding: int, /) -> bool:
        """Whether a new prompt could join while that many sequences decode and nobody else prefills."""
        ...


def composer_for(config: BatchingConfig) -> Composer:
    """The composer of the configured policy."""
    if config.policy is BatchPolicy.CHUNKED:
        return Chunked(config)
    return PrefillFirst(config)


class PrefillFirst:
    """Whole prompts before any decode, either the one or the other in an iteration.

    Prompts are taken in order up to the role's token limit; a longer one runs alone. After `prefill_burst` prefill
    iterations in a row, if set, waiting decodes get one iteration (case WB9).
    """

    def __init__(self, config: BatchingConfig) -> None:
        self._limit = config.prefill_limit_tokens
        self._most = config.prefill_burst
        self._burst = 0

    def compose(self, view: View, /) -> None:
        most = self._most
        decodable = most is not None and view.can_decode()
        if most is None or self._burst < most or not decodable:
            self._prefill(view)
            if view.takes:
                self._burst = self._burst + 1 if decodable else 0
                return
        else:
            view.steady = False
        self._burst = 0
        view.decode()

    def admits(self, decoding: int, /) -> bool:
        return True

    def _prefill(self, view: View) -> None:
        left = self._limit
        for sequence in view.prefilling():
            view.take(sequence, sequence.missing)
            left -= sequence.missing
        while (left > 0 or not view.takes) and (head := view.head()) is not None:
            tokens = view.head_tokens(head)
            if (view.takes and tokens > left) or not view.admit():
                break
            view.take(head, tokens)
            left -= tokens


class Chunked:
    """All decodes, then prompt chunks with what is left of the token budget.

    Decodes count against the budget but are never left out for it. Prompts under way go before new ones, and after a
    preemption nothing is admitted in the same iteration.
    """

    def __init__(self, config: BatchingConfig) -> None:
        self._budget = config.chunk_tokens

    def compose(self, view: View, /) -> None:
        left = self._budget - view.decode()
        for sequence in view.prefilling():
            if left <= 0:
                return
            tokens = min(sequence.missing, left)
            view.take(sequence, tokens)
            left -= tokens
        while left > 0 and not view.preempted and (head := view.head()) is not None and view.admit():
            tokens = min(head.missing, left)
            view.take(head, tokens)
            left -= tokens

    def admits(self, decoding: int, /) -> bool:
        return decoding < self._budget
