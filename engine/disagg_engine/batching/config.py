"""Settings of the batching loop, with the reason for each default.

The defaults are those of the reference rows; pods differ in `admission` alone (`preempt`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from numbers import Integral

from disagg_contract.choices import Admission, BatchPolicy, QueueOrder
from disagg_contract.labels import Role
from disagg_engine.batching.speculation import Speculation
from disagg_engine.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """How one instance batches.

    policy: PREFILL_FIRST composes an iteration of whole prompts, if any wait and fit, else of all decodes; CHUNKED of
        all decodes and of prompt chunks that fill up a token budget; ITERATION of all decodes and of all prompts that
        get room, whole (ORCA's iteration-level scheduling); STATIC forms a batch only when the one before it is done
        to the last request, and computes ended ones along until then (request-level scheduling, the baseline).
    admission: how much KV room a request needs before it may start. RESERVE: prompt and max_tokens, so that it can
        never run out; PREEMPT: the tokens known so far, and when room runs out the last admitted of the lowest priority
        is thrown out and computed again later.
    max_batched_tokens: most prompt tokens in a prefill-first iteration; a longer prompt runs alone.
    fill_tokens: L_m, the prompt tokens at which a prefill instance is efficient: role `prefill` batches short prompts
        up to it instead of up to max_batched_tokens, since more only delays the first of them.
    chunk_tokens: token budget of a chunked iteration, decodes included.
    max_sequences: most sequences that run (or are pulled) at once.
    prefill_burst: most prefill iterations in a row while a decode waits (case WB9). None, the default of the reference
        rows, is unbounded: then endless arrivals can starve running decodes. Has no effect on the policies that never
        leave a decode out.
    watermark: share of the pool that `preempt` admission leaves free, so that a request just admitted does not throw
        another out at its next token.
    queue_order: who of the waiting is next (`queue`).
    ageing_seconds_per_token: how long a request has to wait for each prompt token it is longer than another, until it
        goes before it, where the order is not FCFS. A millisecond is some ten times what computing a token takes.
    scheduling_overhead_seconds: from a request's arrival until it can take part (tokenising, scheduling); once a
        request, on the instance that computes its prompt (case SM12). Part of TTFT, and 0 in all reference rows.
    speculation: draft tokens are verified several at a time; None: one token a step.
    pipeline: pipeline stages, which is how many iterations may be in flight.
    ranks: data-parallel ranks that the room is divided among; a request lies on one of them, so it may need no more
        than that one's, and the limits above are those of each. Which rank has room is not looked at: requests count as
        spread evenly.
    """

    role: Role = Role.WORKER
    policy: BatchPolicy = BatchPolicy.PREFILL_FIRST
    admission: Admission = Admission.RESERVE
    max_batched_tokens: int = 2048
    fill_tokens: int = 512
    chunk_tokens: int = 512
    max_sequences: int = 256
    prefill_burst: int | None = None
    watermark: float = 0.01
    queue_order: QueueOrder = QueueOrder.FCFS
    ageing_seconds_per_token: float = 0.001
    scheduling_overhead_seconds: float = 0.0
    speculation: Speculation | None = None
    pipeline: int = 1
    ranks: int = 1

    def __post_init__(self) -> None:
        for field in ("max_batched_tokens", "fill_tokens", "chunk_tokens", "max_sequences", "pipeline", "ranks"):
            value = getattr(self, field)
            if not isinstance(value, Integral) or int(value) < 1:
                raise SettingError(field=field, value=value, wanted="a whole number, at least 1")
        if self.prefill_burst is not None and not self.prefill_burst >= 1:
            raise SettingError(field="prefill_burst", value=self.prefill_burst, wanted="at least 1, or None")
        if not 0.0 <= self.watermark < 1.0:
            raise SettingError(field="watermark", value=self.watermark, wanted="at least 0 and below 1")
        for field in ("ageing_seconds_per_token", "scheduling_overhead_seconds"):
            seconds = getattr(self, field)
            if not (isfinite(seconds) and seconds >= 0.0):
                raise SettingError(field=field, value=seconds, wanted="a finite number of seconds, 0 or more")

    @property
    def prefill_limit_tokens(self) -> int:
        """Most prompt tokens of a prefill-first iteration of this role."""
        if self.role is Role.PREFILL:
            return min(self.fill_tokens, self.max_batched_tokens)
        return self.max_batched_tokens

    @property
    def in_lockstep(self) -> bool:
        """Whether all that decode gain one token in every decode iteration (`lockstep`)."""
        return self.pipeline == 1 and self.speculation is None
