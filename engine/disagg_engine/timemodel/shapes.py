"""What a time model is asked, and what it answers.

An iteration computes new tokens for a batch of sequences. Two kinds of work are told apart because they load the GPU
differently: a *chunk* computes `new_tokens` of a sequence that already holds `cached_tokens` of KV (a whole prompt is a
chunk after nothing), and a *decode* computes one token of a sequence after its whole context. Only counts matter for
time; the size of a KV block never does (case WB8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from disagg_engine.timemodel.lines import DecodeLine

Bound = Literal["compute", "memory"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """`new_tokens` of a prompt computed after `cached_tokens` whose KV is already held."""

    cached_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """One iteration's work.

    `decode_context_tokens` is the sum over the decoding sequences of the KV tokens each holds before the iteration.
    """

    chunks: tuple[Chunk, ...] = ()
    decode_sequences: int = 0
    decode_context_tokens: int = 0

    @property
    def new_tokens(self) -> int:
        """Tokens the iteration computes."""
        return sum(chunk.new_tokens for chunk in self.chunks) + self.decode_sequences

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens among them."""
        return sum(chunk.new_tokens for chunk in self.chunks)

    @property
    def reread_tokens(self) -> int:
        """KV tokens read back from earlier iterations (REFERENCE row 9 counts those of chunks)."""
        return sum(chunk.cached_tokens for chunk in self.chunks) + self.decode_context_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCost:
    """How long an iteration takes, and why.

    `seconds` is the latency through all pipeline stages, the fixed overhead included; `compute_seconds` and
    `memory_seconds` are the two terms of the roofline after the tensor-parallel speed-up; `stage_seconds` is how long
    one pipeline stage is busy, so that the instance can take its next batch after it (equal to `seconds` without
    pipeline stages). `communication_seconds` is what exchanging tokens between data-parallel ranks adds to the slower
    of the two terms. A model that measures instead of explaining puts the time of prompts under compute and that of
    decodes under memory.
    """

    seconds: float
    compute_seconds: float
    memory_seconds: float
    stage_seconds: float
    bound: Bound
    communication_seconds: float = 0.0


class TimeModel(Protocol):
    """Seconds of an iteration. Implementations are deterministic and never change what they answer."""

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """Cost of one iteration over all stages. An empty batch is a `SettingError`."""
        ...

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        """Seconds of `steps` successive decode iterations of the same `sequences`, starting at `context_tokens` in all.

        Closed form, equal to stepping within 1e-9 s. None with pipeline stages, where micro-batches overlap and the
        caller must step.
        """
        ...

    def decode_lines(self, sequences: int, /) -> tuple[DecodeLine, ...]:
        """The latency of a decode iteration of `sequences` as pieces over their context in all (`timemodel.lines`).

        At least one piece, in order, the last without end; the same object for the same argument. With pipeline stages
        a stage is busy for 1/pp of it.
        """
        ...


@runtime_checkable
class CountedTimeModel(TimeModel, Protocol):
    """A time model to which only sums matter, so that a caller in a hurry need not build a `BatchShape`."""

    def counted_seconds(
        self, prefill_tokens: int, prefill_pairs: float, prefill_cached: int, sequences: int, context_tokens: int, /
    ) -> float:
        """`iteration_seconds(batch).seconds` from five sums, unchecked.

        Over the chunks (l new tokens after k): prefill_tokens Σ l, prefill_pairs Σ l·k + l²/2, prefill_cached Σ k.
        Over the decodes: their number and the context of all.
        """
        ...
