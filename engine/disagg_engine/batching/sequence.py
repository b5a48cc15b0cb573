"""The loop's own record of a live request."""

from __future__ import annotations

from collections.abc import Hashable

from disagg_engine.batching.types import Request


class Sequence:
    """Mutable state of one request inside the loop; nobody outside the package touches it.

    `computed` tokens of KV are held; `known` tokens (prompt and emitted output) could be. A sequence decodes when just
    one known token is left to compute, otherwise it prefills; after a preemption it prefills prompt and output again.
    """

    __slots__ = (
        "admitted_seconds",
        "arrival_seconds",
        "cached",
        "computed",
        "ended",
        "first_token_seconds",
        "flying",
        "generated",
        "keys",
        "preemptions",
        "ready_seconds",
        "remote",
        "request",
        "request_id",
        "served",
    )

    def __init__(self, request: Request, *, arrival_seconds: float) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival_seconds = arrival_seconds
        self.ready_seconds = arrival_seconds
        """May take part in iterations that start at this time or later."""
        self.admitted_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.keys: list[Hashable] = list(request.block_keys)
        self.remote = request.remote_kv
        """Still to be pulled; a failed or preempted pull is computed here instead."""
        self.computed = 0
        self.generated = 0
        self.cached = 0
        self.preemptions = 0
        self.served = 0
        """Number of the last iteration it took part in: pipeline micro-batches go round by it."""
        self.flying = False
        """Part of an iteration in flight."""
        self.ended = False
        """Has emitted its last token; its room is taken back at the next plan."""

    @property
    def known(self) -> int:
        """Tokens whose KV could be computed now."""
        return self.request.prompt_tokens + self.generated

    @property
    def missing(self) -> int:
        """Known tokens whose KV is not held."""
        return self.request.prompt_tokens + self.generated - self.computed

    @property
    def decodes(self) -> bool:
        """One token after a context is left, be it an output token or the end of a prompt."""
        return self.computed > 0 and self.missing == 1
