"""Values that pass between the batching loop and whoever drives it.

Those made once an iteration or token are structs of msgspec, whose construction costs a fraction of a dataclass's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from disagg_engine.errors import SettingError
from disagg_engine.timemodel.shapes import BatchShape, Chunk


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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the loop sees it: lengths and keys, no text.

    `block_keys` are the chained keys of its full blocks (any hashable; `()` switches reuse off for it): the prompt's,
    and the output's too where they are known beforehand.
    `remote_kv`: the prompt's KV is to be pulled from elsewhere instead of computed here.
    `keep_kv`: when the request ends by length or `finish`, its KV stays pinned until `release` (a prefill leg).
    `priority`: requests of a higher one get room first, and lose it last.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    block_keys: tuple[Hashable, ...] = ()
    remote_kv: bool = False
    keep_kv: bool = False
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.prompt_tokens >= 1:
            raise SettingError(field="prompt_tokens", value=self.prompt_tokens, wanted="at least 1")
        if not self.max_tokens >= 1:
            raise SettingError(field="max_tokens", value=self.max_tokens, wanted="at least 1")


class Work(msgspec.Struct, frozen=True):
    """One sequence's share of an iteration: compute tokens `start … start + new_tokens` of it.

    `emits`: the last of them yields the sequence's next output token.
    """

    request_id: str
    start_tokens: int
    new_tokens: int
    emits: bool


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """One pass of the model, or with event skipping a window of `steps` successive decode passes of the same batch.

    Stamped with the engine's clock. `number` counts passes, the window's first one. `decode_sequences` and
    `decode_context_tokens` are those of the first pass; the context grows by `decode_sequences` a pass. The first pass
    takes `step_seconds`, each later one `step_growth_seconds` more than the one before. `free_seconds` is when the
    first pipeline stage can take the next batch (= `end_seconds` without pipeline stages).
    """

    number: int
    start_seconds: float
    end_seconds: float
    free_seconds: float
    chunks: tuple[Chunk, ...] = ()
    decode_sequences: int = 0
    decode_context_tokens: int = 0
    steps: int = 1
    step_seconds: float = 0.0
    step_growth_seconds: float = 0.0

    @property
    def shape(self) -> BatchShape:
        """The work of the first pass."""
        return BatchShape(
            chunks=self.chunks,
            decode_sequences=self.decode_sequences,
            decode_context_tokens=self.decode_context_tokens,
        )

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens it computes."""
        return sum(chunk.new_tokens for chunk in self.chunks)

    def step_ends(self) -> Iterator[float]:
        """When each of its passes ends, in closed form."""
        for step in range(1, self.steps):
            yield self.start_seconds + step * (self.step_seconds + 0.5 * self.step_growth_seconds * (step - 1))
        yield self.end_seconds


class Emission(msgspec.Struct, frozen=True):
    """The `index`-th output token (from 1) of a request exists at `seconds`. `last`: it has reached `max_tokens`."""

    request_id: str
    index: int
    seconds: float
    last: bool


class Gap(NamedTuple):
    """That many sequences got a token `seconds` after the one before it."""

    seconds: float
    sequences: int


class Completed(msgspec.Struct, frozen=True):
    """A finished iteration.

    `works` leaves out sequences that were cancelled or ended meanwhile. With event skipping it lists prompts alone, and
    `emissions` first and last tokens alone; `tokens` always counts all output tokens that came into being. `gaps` are
    the times between tokens that ended in it, where the loop was asked for them.
    """

    iteration: Iteration
    works: tuple[Work, ...] = ()
    emissions: tuple[Emission, ...] = ()
    tokens: int = 0
    gaps: tuple[Gap, ...] = ()


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


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now. `iteration` is None when nothing can run before the next event.

    With event skipping an input may still cut the iteration short: what was done is what `Completed` says.
    """

    iteration: Iteration | None = None
    transfers: tuple[Transfer, ...] = ()
    preempted: tuple[str, ...] = ()


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
