"""Which worker takes a leg. A policy is pure given its random generator.

``round-robin``   one after the other.
``least-loaded``  prefill: fewest prompt tokens in the queue, then fewest requests; decode and colocated: fewest active
                  KV blocks, then fewest sequences.
``kv``            cost = overlap weight · blocks this prompt still needs prefilled there + active blocks there, in
                  blocks (REFERENCE.md, "Router costs"). Weight 0 looks at load only, a huge one at hits only. Decode
                  pulls its KV whatever it holds, so for decode the cost is the active blocks alone.

Whoever knows how long a prefill takes can have the cost of ``kv`` in seconds instead: queueing there + overlap weight ·
prefill there. The sum is the expected TTFT, so weight 1 minimises it.

Load is what the router itself has dispatched and not seen ending, so no report can be stale. Equal costs are settled
at random: a fixed order would send every quiet moment's request to the same worker.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_router.core.candidates import Candidate, CandidateT, Prompt
from disagg_router.core.index import PrefixIndex

PrefillSeconds = Callable[[int], float]
"""Expected seconds to prefill that many tokens in one go; 0 for none."""


class Policy(Protocol):
    """Chooses among eligible workers of one role."""

    needs_hashes: bool
    """Whether prompts must come with block hashes."""

    def choose(self, pool: Sequence[CandidateT], prompt: Prompt) -> CandidateT:
        """A worker of ``pool``, which is not empty and of one role."""
        ...

    def dispatched(self, worker: Candidate, prompt: Prompt) -> int:
        """The prompt goes to ``worker`` to be prefilled; how many of its tokens that will be, as far as is known."""
        ...

    def forget(self, worker: Candidate) -> None:
        """The worker left or may be gone."""
        ...


class RoundRobin:
    """One after the other, a turn for each model and role."""

    needs_hashes = False

    def __init__(self) -> None:
        self._turns: dict[tuple[str, Role], int] = {}

    def choose(self, pool: Sequence[CandidateT], prompt: Prompt) -> CandidateT:
        key = (pool[0].model, pool[0].role)
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        return pool[turn % len(pool)]

    def dispatched(self, worker: Candidate, prompt: Prompt) -> int:
        return prompt.tokens

    def forget(self, worker: Candidate) -> None:
        """Nothing to forget."""


class LeastLoaded:
    """Shortest queue for prefill, fewest active blocks for decode."""

    needs_hashes = False

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, pool: Sequence[CandidateT], prompt: Prompt) -> CandidateT:
        return cheapest(pool, queue if pool[0].role is Role.PREFILL else activity, self._rng)

    def dispatched(self, worker: Candidate, prompt: Prompt) -> int:
        return prompt.tokens

    def forget(self, worker: Candidate) -> None:
        """Nothing to forget."""


class KvAware:
    """What this prompt still needs prefilled against what is there already: blocks, or seconds if they are known."""

    needs_hashes = True

    def __init__(
        self,
        rng: random.Random,
        index: PrefixIndex,
        *,
        overlap_weight: float,
        prefill_seconds: PrefillSeconds | None = None,
    ) -> None:
        self._rng = rng
        self._index = index
        self._weight = overlap_weight
        self._seconds = prefill_seconds

    def choose(self, pool: Sequence[CandidateT], prompt: Prompt) -> CandidateT:
        if pool[0].role is Role.DECODE:
            return cheapest(pool, activity, self._rng)
        if self._seconds is not None:
            return self._soonest(pool, prompt, self._seconds)
        weight, overlap, hashes, blocks = self._weight, self._index.overlap, prompt.hashes, prompt.blocks

        def cost(worker: Candidate) -> tuple[float, int]:
            return weight * (blocks - overlap(worker.key, hashes)) + worker.blocks, worker.requests

        return cheapest(pool, cost, self._rng)

    def dispatched(self, worker: Candidate, prompt: Prompt) -> int:
        missing = self._missing(worker, prompt)
        self._index.record(worker.key, prompt.hashes, capacity_blocks=worker.capacity_blocks)
        return missing

    def forget(self, worker: Candidate) -> None:
        self._index.forget(worker.key)

    def _soonest(self, pool: Sequence[CandidateT], prompt: Prompt, seconds: PrefillSeconds) -> CandidateT:
        weight, missing = self._weight, self._missing

        def cost(worker: Candidate) -> tuple[float, int]:
            return seconds(worker.tokens) + weight * seconds(missing(worker, prompt)), worker.requests

        return cheapest(pool, cost, self._rng)

    def _missing(self, worker: Candidate, prompt: Prompt) -> int:
        """Tokens still to prefill there; a prompt held in full still has its last token computed."""
        held = self._index.overlap(worker.key, prompt.hashes)
        return max(1, prompt.tokens - held * worker.block_tokens)


def queue(worker: Candidate) -> tuple[int, int]:
    """Prompt tokens, then requests, that this router has waiting at a prefill worker."""
    return worker.tokens, worker.requests


def activity(worker: Candidate) -> tuple[int, int]:
    """KV blocks, then sequences, that this router has running at a worker."""
    return worker.blocks, worker.requests


def cheapest(pool: Sequence[CandidateT], cost: Callable[[CandidateT], Any], rng: random.Random) -> CandidateT:
    """The worker of least cost; among equals one at random."""
    if len(pool) == 1:
        return pool[0]
    best = cost(pool[0])
    ties = [pool[0]]
    for worker in pool[1:]:
        price = cost(worker)
        if price < best:
            best = price
            ties = [worker]
        elif price == best:
            ties.append(worker)
    return ties[0] if len(ties) == 1 else ties[int(rng.random() * len(ties))]


def make_policy(
    name: RoutingPolicy, *, rng: random.Random, overlap_weight: float, prefill_seconds: PrefillSeconds | None = None
) -> Policy:
    """``prefill_seconds``: for the policy ``kv``, whose cost is in seconds then."""
    if name == RoutingPolicy.KV:
        return KvAware(rng, PrefixIndex(), overlap_weight=overlap_weight, prefill_seconds=prefill_seconds)
    if name == RoutingPolicy.LEAST_LOADED:
        return LeastLoaded(rng)
    return RoundRobin()
