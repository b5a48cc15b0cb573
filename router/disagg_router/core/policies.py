"""Which worker takes a leg. A policy is pure given its random generator.

``round-robin``   one after the other.
``least-loaded``  prefill: fewest prompt tokens in the queue, then fewest requests; decode and colocated: fewest active
                  KV blocks, then fewest sequences.
``kv``            cost = overlap weight · blocks this prompt still needs prefilled there + active blocks there, in
                  blocks (REFERENCE.md, "Router costs"). Weight 0 looks at load only, a huge one at hits only. Decode
                  pulls its KV whatever it holds, so for decode the cost is the active blocks alone.

Load is what the router itself has dispatched and not seen ending, so no report can be stale. Equal costs are settled
at random: a fixed order would send every quiet moment's request to the same worker.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_router.core.fleet import Worker
from disagg_router.core.index import PrefixIndex
from disagg_router.core.prompt import PromptView


class Policy(Protocol):
    """Chooses among eligible workers of one role."""

    needs_hashes: bool
    """Whether prompts must come with block hashes."""

    def choose(self, pool: Sequence[Worker], prompt: PromptView) -> Worker:
        """A worker of ``pool``, which is not empty and of one role."""
        ...

    def dispatched(self, worker: Worker, prompt: PromptView) -> None:
        """The prompt goes to ``worker`` to be prefilled."""
        ...

    def forget(self, worker: Worker) -> None:
        """The worker left or may be gone."""
        ...


class RoundRobin:
    """One after the other, a turn for each model and role."""

    needs_hashes = False

    def __init__(self) -> None:
        self._turns: dict[tuple[str, Role], int] = {}

    def choose(self, pool: Sequence[Worker], prompt: PromptView) -> Worker:
        key = (pool[0].model, pool[0].role)
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        return pool[turn % len(pool)]

    def dispatched(self, worker: Worker, prompt: PromptView) -> None:
        """Nothing to remember."""

    def forget(self, worker: Worker) -> None:
        """Nothing to forget."""


class LeastLoaded:
    """Shortest queue for prefill, fewest active blocks for decode."""

    needs_hashes = False

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, pool: Sequence[Worker], prompt: PromptView) -> Worker:
        return cheapest(pool, queue if pool[0].role is Role.PREFILL else activity, self._rng)

    def dispatched(self, worker: Worker, prompt: PromptView) -> None:
        """Nothing to remember."""

    def forget(self, worker: Worker) -> None:
        """Nothing to forget."""


class KvAware:
    """Blocks still to prefill against active blocks."""

    needs_hashes = True

    def __init__(self, rng: random.Random, index: PrefixIndex, *, overlap_weight: float) -> None:
        self._rng = rng
        self._index = index
        self._weight = overlap_weight

    def choose(self, pool: Sequence[Worker], prompt: PromptView) -> Worker:
        if pool[0].role is Role.DECODE:
            return cheapest(pool, activity, self._rng)
        weight, index, hashes = self._weight, self._index, prompt.hashes

        def cost(worker: Worker) -> tuple[float, int]:
            missing = prompt.blocks - index.overlap(worker.key, hashes)
            return weight * missing + worker.blocks, worker.requests

        return cheapest(pool, cost, self._rng)

    def dispatched(self, worker: Worker, prompt: PromptView) -> None:
        capacity = worker.info.kv_capacity_tokens // worker.info.block_tokens
        self._index.record(worker.key, prompt.hashes, capacity_blocks=capacity)

    def forget(self, worker: Worker) -> None:
        self._index.forget(worker.key)


def queue(worker: Worker) -> tuple[int, int]:
    """Prompt tokens, then requests, that this router has waiting at a prefill worker."""
    return worker.tokens, worker.requests


def activity(worker: Worker) -> tuple[int, int]:
    """KV blocks, then sequences, that this router has running at a worker."""
    return worker.blocks, worker.requests


def cheapest(pool: Sequence[Worker], cost: Callable[[Worker], Any], rng: random.Random) -> Worker:
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


def make_policy(name: RoutingPolicy, *, rng: random.Random, overlap_weight: float) -> Policy:
    if name == RoutingPolicy.KV:
        return KvAware(rng, PrefixIndex(), overlap_weight=overlap_weight)
    if name == RoutingPolicy.LEAST_LOADED:
        return LeastLoaded(rng)
    return RoundRobin()
