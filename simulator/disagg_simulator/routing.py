"""The router's own choice, for instances on a virtual clock.

A policy of `disagg_router.core` looks at candidates and a prompt, whoever they are. Here a candidate is a `Seat`: one
start of a simulated instance with the load that was put on it; a prompt is its length and the names of its full blocks.
What is charged, and when it is given back, is what the router does: a leg is charged when it is sent, its prompt tokens
leave the queue with the first token, the rest is given back when the leg ends. A decode leg has nothing to prefill.

Blocks are named as the ledgers name them (`prompts`). A group whose ledger only counts finds nothing again, so
its prompts come without names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from disagg_contract.labels import Role
from disagg_router.core.candidates import Charge
from disagg_router.core.policies import Policy, make_policy
from disagg_simulator.deployment import Deployment, Group
from disagg_simulator.prompts import Prompts

MAX_POOLS: Final = 64
"""Pools remembered at a time; a fleet has one or two until it changes."""


class Routing(Protocol):
    """Chooses among instances of one role; instances are numbered over the whole run, requests by index.

    A pool is the tuple of the numbers that may be chosen, in ascending order; it is the same object until the fleet
    changes. Whoever drives it asks at the moment a leg starts and tells what became of it, as a router knows its own
    dispatches and their ends.
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

    def prefilled(self, number: int, request: int, /) -> None:
        """That leg, which goes on, has its first token: its prompt waits no longer."""
        ...

    def ended(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """That leg is over, however it ended; `prompt_tokens` is what was dispatched."""
        ...


class Seat:
    """One start of an instance, as the router sees it: identity, room in blocks, and load."""

    __slots__ = ("block_tokens", "blocks", "capacity_blocks", "key", "model", "number", "requests", "role", "tokens")

    def __init__(self, number: int, key: int, group: Group) -> None:
        self.number = number
        self.key = key
        self.role = group.role
        self.model = group.instance.model.name
        self.block_tokens = group.block_tokens
        self.capacity_blocks = group.capacity_tokens // group.block_tokens
        self.requests = 0
        self.tokens = 0
        self.blocks = 0


class Prompt:
    """What a policy sees of a prompt."""

    __slots__ = ("blocks", "hashes", "tokens")

    def __init__(self, tokens: int, blocks: int, hashes: Sequence[int]) -> None:
        self.tokens = tokens
        self.blocks = blocks
        self.hashes = hashes


class RouterChoice:
    """A policy of the router as the simulator's `Routing`; `prompts` names blocks for a policy that looks at them."""

    def __init__(self, policy: Policy, prompts: Prompts) -> None:
        self.policy = policy
        self._prompts = prompts
        self._seats: dict[int, Seat] = {}
        self._groups: dict[int, Group] = {}
        self._starts = 0
        self._pools: dict[int, tuple[Sequence[int], list[Seat]]] = {}
        self._charges: dict[int, Charge[Seat]] = {}
        """By request, which has one leg out at a time."""
        self._request = -1
        self._viewed: Group | None = None
        self._prompt = Prompt(0, 0, ())

    def joined(self, number: int, group: Group, /) -> None:
        """See Routing."""
        self._starts += 1
        seat = Seat(number, self._starts, group)
        self._seats[number] = seat
        self._groups[number] = group
        self._pools.clear()

    def left(self, number: int, /) -> None:
        """See Routing. Nothing outlives the start that it belongs to."""
        self.policy.forget(self._seats[number])

    def choose(self, pool: Sequence[int], request: int, prompt_tokens: int, /) -> int:
        """See Routing."""
        known = self._pools.get(id(pool))
        if known is None or known[0] is not pool:
            if len(self._pools) >= MAX_POOLS:
                self._pools.clear()
            # The pool is kept, so its id stays its own.
            known = self._pools[id(pool)] = pool, [self._seats[number] for number in pool]
        return self.policy.choose(known[1], self._view(pool[0], request, prompt_tokens)).number

    def dispatched(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """See Routing."""
        seat, prompt = self._seats[number], self._view(number, request, prompt_tokens)
        tokens = self.policy.dispatched(seat, prompt) if seat.role is not Role.DECODE else 0
        self._charges[request] = Charge(seat, tokens=tokens, blocks=prompt.blocks)

    def prefilled(self, number: int, request: int, /) -> None:
        """See Routing."""
        self._charges[request].prefilled()

    def ended(self, number: int, request: int, prompt_tokens: int, /) -> None:
        """See Routing."""
        self._charges.pop(request).release()

    def _view(self, number: int, request: int, tokens: int) -> Prompt:
        """The prompt, made once for the choice and the dispatch that follows it."""
        prompt, group = self._prompt, self._groups[number]
        if request != self._request or tokens != prompt.tokens or group is not self._viewed:
            names = self._prompts.keys(request, group) if self.policy.needs_hashes else ()
            prompt = self._prompt = Prompt(tokens, -(-tokens // group.block_tokens), names)
            self._request, self._viewed = request, group
        return prompt


def routing_for(
    deployment: Deployment, prompts: Prompts, *, seed: int, prefill_seconds: Callable[[int], float] | None = None
) -> RouterChoice:
    """The deployment's policy, made as the router makes it; ties are settled by `Random(seed)`.

    With `prefill_seconds` (of that many tokens in one go) the cost of the policy `kv` is in seconds.
    """
    policy = make_policy(
        deployment.routing,
        rng=Random(seed),
        overlap_weight=deployment.overlap_weight,
        prefill_seconds=prefill_seconds,
    )
    return RouterChoice(policy, prompts)
