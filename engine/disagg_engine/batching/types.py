"""Values that pass between the batching loop and whoever drives it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from disagg_engine.errors import SettingError
from disagg_engine.timemodel.shapes import BatchShape, IterationCost


class FirstToken(StrEnum):
    """Who gives a pulled request its first output token."""

    PREFILL = "prefill"
    """The prefill leg has emitted it already (DistServe's way of counting): the next token here is the second."""
    LOGITS = "logits"
    """The prefill leg sent its last logits along: the token is sampled here when the KV arrives, at no cost."""
    STEP = "step"
    """Only KV came (a foreign prefill leg): the last prompt token is computed again, which costs one decode step."""


class EndReason(StrEnum):
    """Why a request left the loop."""

    LENGTH = "length"
    STOP = "stop"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the loop sees it: lengths and keys, no text.

    `block_keys` are the chained keys of the prompt's full blocks (any hashable; `()` switches reuse off for it).
    `remote_kv`: the prompt's KV is to be pulled from elsewhere instead of computed here.
    `keep_kv`: when the request ends by length or `finish`, its KV stays pinned until `release` (a prefill leg).
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    block_keys: tuple[Hashable, ...] = ()
    remote_kv: bool = False
    keep_kv: bool = False

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1:
            raise SettingError(field="prompt_tokens", value=self.prompt_tokens, wanted="at least 1")
        if self.max_tokens < 1:
            raise SettingError(field="max_tokens", value=self.max_tokens, wanted="at least 1")


class Work(NamedTuple):
    """One sequence's share of an iteration: compute tokens `start … start + new_tokens` of it.

    `emits`: the last of them yields the sequence's next output token.
    """

    request_id: str
    start_tokens: int
    new_tokens: int
    emits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One pass of the model, stamped with the engine's clock.

    `free_seconds` is when the first pipeline stage can take the next batch (= `end_seconds` without pipeline stages).
    """

    number: int
    start_seconds: float
    end_seconds: float
    free_seconds: float
    shape: BatchShape
    cost: IterationCost
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Emission:
    """The `index`-th output token (from 1) of a request exists at `seconds`. `last`: it has reached `max_tokens`."""

    request_id: str
    index: int
    seconds: float
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A finished iteration. `works` leaves out sequences that were cancelled or ended meanwhile."""

    iteration: Iteration
    works: tuple[Work, ...]
    emissions: tuple[Emission, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Room is reserved: pull KV of tokens `cached_tokens … prompt_tokens` of this request now."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int

    @property
    def pull_tokens(self) -> int:
        """Tokens whose KV has to travel."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now. `iteration` is None when nothing can run before the next event."""

    iteration: Iteration | None
    transfers: tuple[Transfer, ...]
    preempted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """How a live request got in: for metrics. Times are the engine's; `cached_tokens` counts the last admission."""

    arrival_seconds: float
    admitted_seconds: float | None
    first_token_seconds: float | None
    cached_tokens: int
    generated_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Where the requests are. At every step submitted = waiting + pulling + running + ended by some reason (case WB3).

    `holding` are ended requests whose KV is still pinned (they count as finished too). Prefix tokens count each
    admission's prompt (`queried`) and what of it was cached (`hit`).
    """

    submitted: int
    refused: int
    waiting: int
    pulling: int
    running: int
    finished: int
    cancelled: int
    failed: int
    holding: int
    preemptions: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
