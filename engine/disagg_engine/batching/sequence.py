"""The loop's own record of a live request."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import msgspec

from disagg_engine.batching.types import Request

if TYPE_CHECKING:
    from disagg_engine.batching.lockstep import Lockstep


class Sequence(msgspec.Struct, eq=False):
    """Mutable state of one request inside the loop; nobody outside the package touches it.

    `computed` tokens of KV are held; `known` tokens (prompt and emitted output) could be. A sequence decodes when just
    one known token is left to compute, otherwise it prefills; after a preemption it prefills prompt and output again.

    Sequences that decode in lockstep all gain one token a step, so their progress is kept once, in the lockstep's step
    counter: `held` and `made` are then offsets against it, and the numbers themselves otherwise.

    ready_seconds: it may take part in iterations that start at this time or later. last_token_seconds: when its last
    token came; stale while it is in lockstep. remote: still to be pulled; a failed or preempted pull is computed here
    instead. joined_step: the lockstep's step at which it came in. fill_step: the one at which it fills its next block
    that has a key. order: grows with each admission; a preempted sequence gets a new one. room: tokens of room in the
    ledger, whole blocks. served: number of the last iteration it took part in; pipeline micro-batches go round by it.
    verified: decode steps it took with speculation. queued: it waits, in that place. recalled: it waits again, having
    lost its room. flying: its chunk, or with pipeline stages its decode, is part of an iteration in flight. ended: it
    has emitted its last token, and its room is taken back at the next plan.
    """

    request: Request
    request_id: str
    prompt_tokens: int
    max_tokens: int
    keys: list[Hashable]
    remote: bool
    arrival_seconds: float
    ready_seconds: float
    admitted_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    held: int = 0
    made: int = 0
    lockstep: Lockstep | None = None
    joined_step: int = 0
    fill_step: int = -1
    order: int = 0
    room: int = 0
    cached: int = 0
    preemptions: int = 0
    served: int = 0
    verified: int = 0
    queued: bool = False
    place: int = 0
    recalled: bool = False
    flying: bool = False
    ended: bool = False

    @classmethod
    def of(cls, request: Request, *, arrival_seconds: float) -> Sequence:
        """A request that has just arrived."""
        return cls(
            request,
            request.request_id,
            request.prompt_tokens,
            request.max_tokens,
            list(request.block_keys),
            request.remote_kv,
            arrival_seconds,
            arrival_seconds,
        )

    @property
    def computed(self) -> int:
        """Tokens whose KV is held."""
        return self.held if self.lockstep is None else self.held + self.lockstep.steps

    @property
    def generated(self) -> int:
        """Output tokens emitted so far."""
        return self.made if self.lockstep is None else self.made + self.lockstep.steps

    @property
    def known(self) -> int:
        """Tokens whose KV could be computed now."""
        return self.prompt_tokens + self.generated

    @property
    def missing(self) -> int:
        """Known tokens whose KV is not held: offsets cancel out."""
        return self.prompt_tokens + self.made - self.held

    @property
    def decodes(self) -> bool:
        """One token after a context is left, be it an output token or the end of a prompt."""
        return self.lockstep is not None or (self.held > 0 and self.prompt_tokens + self.made - self.held == 1)
