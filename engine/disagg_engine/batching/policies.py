"""How an iteration is composed.

A composer looks at the running sequences and the head of the queue and says who computes how many tokens. It asks the
view to admit the head or to let everybody decode; it owns no state but what fairness needs.
"""

from __future__ import annotations

from typing import Protocol

from disagg_contract.choices import BatchPolicy, QueueOrder
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.sequence import Sequence
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
    if config.policy is BatchPolicy.ITERATION:
        return IterationLevel()
    if config.policy is BatchPolicy.STATIC:
        return Static()
    return PrefillFirst(config)


class PrefillFirst:
    """Whole prompts before any decode, either the one or the other in an iteration.

    Prompts are taken in order up to the role's token limit, a longer one alone; with data-parallel ranks that holds on
    each, and a prompt goes to the one with the fewest tokens. After `prefill_burst` prefill iterations in a row, if
    set, waiting decodes get one iteration (case WB9).
    """

    def __init__(self, config: BatchingConfig) -> None:
        self._limit = config.prefill_limit_tokens
        self._ranks = config.ranks
        self._most = config.prefill_burst
        self._burst = 0

    def compose(self, view: View, /) -> None:
        if view.no_prompts():
            self._burst = 0
            view.decode()
            return
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
        left = [self._limit] * self._ranks
        for sequence in view.prefilling():
            view.take(sequence, sequence.missing)
            left[left.index(max(left))] -= sequence.missing
        while ((most := max(left)) > 0) and (head := view.head()) is not None:
            tokens = view.head_tokens(head)
            if (tokens > most < self._limit) or not view.admit():
                break
            view.take(head, tokens)
            left[left.index(most)] -= tokens


class Chunked:
    """All decodes, then prompt chunks with what is left of the token budget.

    Decodes count against the budget but are never left out for it. Prompts under way go before new ones, unless the
    queue's order is preemptive: then a waiting one that ranks before a prompt under way is admitted and goes first, and
    the other one keeps what it has. After a preemption (of room) nothing is admitted in the same iteration.
    """

    def __init__(self, config: BatchingConfig) -> None:
        self._longest = config.chunk_tokens
        self._budget = config.chunk_tokens * config.ranks
        self._preemptive = config.queue_order is QueueOrder.PREEMPTIVE

    def compose(self, view: View, /) -> None:
        left = self._budget - view.decode()
        under_way = view.prefilling()
        if self._preemptive:
            under_way.sort(key=view.rank)
        for sequence in under_way:
            if self._preemptive:
                left = self._admit(view, left, before=sequence)
            if left <= 0:
                return
            tokens = min(sequence.missing, left, self._longest)
            view.take(sequence, tokens)
            left -= tokens
        self._admit(view, left, before=None)

    def admits(self, decoding: int, /) -> bool:
        return decoding < self._budget

    def _admit(self, view: View, left: int, *, before: Sequence | None) -> int:
        """Fill the budget from the queue, with those alone that rank before a sequence; what is left of it."""
        while left > 0 and not view.preempted and (head := view.head()) is not None:
            if (before is not None and view.rank(head) >= view.rank(before)) or not view.admit():
                break
            tokens = min(head.missing, left, self._longest)
            view.take(head, tokens)
            left -= tokens
        return left


class IterationLevel:
    """All decodes and all prompts that get room, whole, in the same iteration (Yu et al., OSDI 2022).

    Requests join and leave between any two iterations, and nothing bounds how long a prompt makes the decodes wait.
    """

    def compose(self, view: View, /) -> None:
        view.decode()
        for sequence in view.prefilling():
            view.take(sequence, sequence.missing)
        while not view.preempted and (head := view.head()) is not None and view.admit():
            view.take(head, head.missing)

    def admits(self, decoding: int, /) -> bool:
        return True


class Static:
    """A batch of all that wait and fit; the next one is formed when all of it are done.

    Those who end early are computed along, as padding, until then (not with pipeline stages or speculation). Tokens
    reach their clients as they come, which flatters it: early request-level servers answered with the whole batch.
    """

    def compose(self, view: View, /) -> None:
        if view.busy():
            for sequence in view.prefilling():
                view.take(sequence, sequence.missing)
        else:
            view.new_batch()
            while (head := view.head()) is not None and view.admit():
                view.take(head, head.missing)
        if not view.takes:
            view.decode()

    def admits(self, decoding: int, /) -> bool:
        return decoding == 0
