"""Which instance takes a request: the seam, and the two choices that need no prefixes.

The cluster asks at the moment a leg starts and tells what it did with the answer, as a router knows its own dispatches
and their ends. Load is therefore what was sent and has not ended, never a report. A prefill (or colocated) leg weighs
its prompt tokens, every leg the KV blocks of its prompt. The decode instance is chosen when the prefill is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_simulator.deployment import Deployment, Group


class Routing(Protocol):
    """Chooses among instances of one role; instances are numbered over the whole run, requests by index.

    A pool is the tuple of the numbers that may be chosen, in ascending order; it is the same object until the fleet
    changes.
    """

    def joined(self, number: int, group: Group, /) -> None:
        """An instance exists from now on (again, with nothing on it, where it was lost before)."""
        ...

    def left(self, number: int, /) -> None:
        """An instance was lost or stopped; what was dispatched to it has been told as ended."""
        ...

    def choose(self, pool: Sequence[int], request: int, prompt_tokens: int, /) -> int:
        """A number of `pool`, which is not empty."""
        ...

    def dispatched(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """The request's leg went to the instance."""
        ...

    def ended(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """That leg is over, however it ended; `prompt_tokens` is what was dispatched."""
        ...


class RoundRobin:
    """One after the other, a turn for each role."""

    def __init__(self) -> None:
        self._roles: list[Role] = []
        self._turns = dict.fromkeys(Role, 0)

    def joined(self, number: int, group: Group, /) -> None:
        """See Routing."""
        if number == len(self._roles):
            self._roles.append(group.role)

    def left(self, number: int, /) -> None:
        """Nothing to forget."""

    def choose(self, pool: Sequence[int], request: int, prompt_tokens: int, /) -> int:
        """See Routing."""
        role = self._roles[pool[0]]
        turn = self._turns[role]
        self._turns[role] = turn + 1
        return pool[turn % len(pool)]

    def dispatched(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """Nothing to remember."""

    def ended(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """Nothing to forget."""


class LeastLoaded:
    """Prefill: fewest prompt tokens on it; others: fewest KV blocks; then fewest requests; then by lot."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._by_tokens: list[bool] = []
        self._block: list[int] = []
        self._tokens: list[int] = []
        self._blocks: list[int] = []
        self._requests: list[int] = []

    def joined(self, number: int, group: Group, /) -> None:
        """See Routing."""
        if number == len(self._block):
            self._by_tokens.append(group.role is Role.PREFILL)
            self._block.append(group.block_tokens)
            self._tokens.append(0)
            self._blocks.append(0)
            self._requests.append(0)

    def left(self, number: int, /) -> None:
        """Nothing to forget: its load has been told as ended."""

    def choose(self, pool: Sequence[int], request: int, prompt_tokens: int, /) -> int:
        """See Routing."""
        if len(pool) == 1:
            return pool[0]
        load = self._tokens if self._by_tokens[pool[0]] else self._blocks
        requests = self._requests
        best = min((load[number], requests[number]) for number in pool)
        ties = [number for number in pool if (load[number], requests[number]) == best]
        return ties[0] if len(ties) == 1 else ties[int(self._rng.random() * len(ties))]

    def dispatched(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """See Routing."""
        self._tokens[number] += prompt_tokens
        self._blocks[number] += -(-prompt_tokens // self._block[number])
        self._requests[number] += 1

    def ended(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """See Routing."""
        self._tokens[number] -= prompt_tokens
        self._blocks[number] -= -(-prompt_tokens // self._block[number])
        self._requests[number] -= 1


def routing_for(deployment: Deployment, *, seed: int) -> Routing:
    """The deployment's routing; ties are settled by `Random(seed)`."""
    if deployment.routing is RoutingPolicy.ROUND_ROBIN:
        return RoundRobin()
    return LeastLoaded(Random(seed))
