"""The loop's own record of a live request."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from disagg_engine.batching.types import Request

if TYPE_CHECKING:
    from disagg_engine.batching.lockstep import Lockstep


class Sequence:
    """Mutable state of one request inside the loop; nobody outside the package touches it.

    `computed` tokens of KV are held; `known` tokens (prompt and emitted output) could be. A sequence decodes when just
    one known token is left to compute, otherwise it prefills; after a preemption it prefills prompt and output again.

    Sequences that decode in lockstep all gain one token a step, so their progress is kept once, in the lockstep's step
    counter: `held` and `made` are then offsets against it, and the numbers themselves otherwise.
    """

    __slots__ = (
        "admitted_seconds",
        "arrival_seconds",
        "cached",
        "ended",
        "fill_step",
        "first_token_seconds",
        "flying",
        "held",
        "joined_step",
        "keys",
        "last_token_seconds",
        "lockstep",
        "made",
        "max_tokens",
        "order",
        "preemptions",
        "prompt_tokens",
        "ready_seconds",
        "remote",
        "request",
        "request_id",
        "room",
        "served",
    )

    def __init__(self, request: Request, *, arrival_seconds: float) -> None:
        self.request = request
        self.request_id = request.request_id
        self.prompt_tokens = request.prompt_tokens
        self.max_tokens = request.max_tokens
        self.arrival_seconds = arrival_seconds
        self.ready_seconds = arrival_seconds
        """May take part in iterations that start at this time or later."""
        self.admitted_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.last_token_seconds: float | None = None
        """When its last token came; stale while it is in lockstep."""
        self.keys: list[Hashable] = list(request.block_keys)
        self.remote = request.remote_kv
        """Still to be pulled; a failed or preempted pull is computed here instead."""
        self.held = 0
        self.made = 0
        self.lockstep: Lockstep | None = None
        self.joined_step = 0
        self.fill_step = -1
        """Lockstep's step at which it fills its next block that has a key."""
        self.order = 0
        """Grows with each admission; a preempted sequence gets a new one."""
        self.room = 0
        """Tokens of room in the ledger, whole blocks."""
        self.cached = 0
        self.preemptions = 0
        self.served = 0
        """Number of the last iteration it took part in: pipeline micro-batches go round by it."""
        self.flying = False
        """Its chunk, or with pipeline stages its decode, is part of an iteration in flight."""
        self.ended = False
        """Has emitted its last token; its room is taken back at the next plan."""

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
