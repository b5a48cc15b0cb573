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
from typing import Protocol

from disagg_contract.choices import RoutingPolicy
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
        return cheapest(pool, queues(pool) if pool[0].role is Role.PREFILL else activities(pool), self._rng)

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
        if len(pool) == 1:
            return pool[0]
        if pool[0].role is Role.DECODE:
            return cheapest(pool, activities(pool), self._rng)
        weight, seconds = self._weight, self._seconds
        held = self._index.overlaps([worker.key for worker in pool], prompt.hashes)
        if seconds is None:
            blocks = prompt.blocks
            costs = [weight * (blocks - there) + worker.blocks for worker, there in zip(pool, held, strict=True)]
        else:
            costs = [
                seconds(worker.tokens) + weight * seconds(_missing(worker, prompt, there))
                for worker, there in zip(pool, held, strict=True)
            ]
        return cheapest(pool, costs, self._rng)

    def dispatched(self, worker: Candidate, prompt: Prompt) -> int:
        held = self._index.record(worker.key, prompt.hashes, capacity_blocks=worker.capacity_blocks)
        return _missing(worker, prompt, held)

    def forget(self, worker: Candidate) -> None:
        self._index.forget(worker.key)


def _missing(worker: Candidate, prompt: Prompt, held_blocks: int) -> int:
    """Tokens still to prefill there; a prompt held in full still has its last token computed."""
    return max(1, prompt.tokens - held_blocks * worker.block_tokens)


def queues(pool: Sequence[Candidate]) -> list[float]:
    """Prompt tokens that this router has waiting at prefill workers."""
    return [worker.tokens for worker in pool]


def activities(pool: Sequence[Candidate]) -> list[float]:
    """KV blocks that this router has running at workers."""
    return [worker.blocks for worker in pool]


def cheapest(pool: Sequence[CandidateT], costs: list[float], rng: random.Random) -> CandidateT:
    """The worker of least cost; among equals one of those with the fewest requests, at random."""
    best = min(costs)
    if costs.count(best) == 1:
        return pool[costs.index(best)]
    equal = [worker for worker, cost in zip(pool, costs, strict=True) if cost == best]
    fewest = min(worker.requests for worker in equal)
    equal = [worker for worker in equal if worker.requests == fewest]
    return equal[0] if len(equal) == 1 else equal[int(rng.random() * len(equal))]


def make_policy(
    name: RoutingPolicy, *, rng: random.Random, overlap_weight: float, prefill_seconds: PrefillSeconds | None = None
) -> Policy:
    """``prefill_seconds``: for the policy ``kv``, whose cost is in seconds then."""
    if name == RoutingPolicy.KV:
        return KvAware(rng, PrefixIndex(), overlap_weight=overlap_weight, prefill_seconds=prefill_seconds)
    if name == RoutingPolicy.LEAST_LOADED:
        return LeastLoaded(rng)
    return RoundRobin()
