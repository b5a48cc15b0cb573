"""The planner's profile, computed from the time model.

What flows in: a prefill and a decode instance and how they batch. What flows out: the contract's `Profile`, two tables
that a planner interpolates in. Prefill points give one prompt's time on an idle instance and the token rate of an
instance that is never idle; decode points give a step's time and token rate for batches up to what KV room and the
sequence limit carry. With pipeline stages an instance takes a new prefill batch every stage time, and decodes in
micro-batches, one a stage (REFERENCE, "The time model").
"""

from __future__ import annotations

from collections.abc import Sequence

from disagg_contract.choices import BatchPolicy
from disagg_contract.profile import DecodePoint, PrefillPoint, Profile
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, TimeModel, time_model

SHORTEST_TOKENS = 16
"""Where the grids of lengths start."""


def compute_profile(
    *,
    prefill: Instance,
    decode: Instance,
    prefill_batching: BatchingConfig,
    decode_batching: BatchingConfig,
    input_tokens: Sequence[int] = (),
    context_tokens: Sequence[int] = (),
    kind: str = "roofline",
) -> Profile:
    """Profile of one deployment's instances; a few milliseconds of work.

    input_tokens and context_tokens are the grids, in tokens; empty: four points an octave from 16 tokens up to what the
    model's context and the instance's KV room allow. kind: the time model, `roofline` or `fitted`. Raises
    ModelDoesNotFitError if either instance has no KV room, SettingError if the time model does not suit them.
    """
    if prefill.model != decode.model:
        raise SettingError(
            field="decode.model",
            value=decode.model.name,
            wanted=f"prefill's, {prefill.model.name}",
        )
    prefill_room, decode_room = prefill.kv_capacity_tokens(), decode.kv_capacity_tokens()
    longest = prefill.model.max_context_tokens
    inputs = input_tokens or grid(SHORTEST_TOKENS, min(longest, prefill_room))
    contexts = context_tokens or grid(SHORTEST_TOKENS, min(longest, decode_room))
    prefill_time, decode_time = time_model(kind, prefill), time_model(kind, decode)
    return Profile(
        model=prefill.model.name,
        prefill_gpu=prefill.gpu.name,
        decode_gpu=decode.gpu.name,
        prefill_tensor=prefill.tensor,
        prefill_pipeline=prefill.pipeline,
        decode_tensor=decode.tensor,
        decode_pipeline=decode.pipeline,
        kv_capacity_tokens=decode_room,
        kv_bytes_per_token=decode.kv_bytes_per_token,
        prefill=tuple(prefill_point(prefill_time, tokens, prefill_batching) for tokens in inputs),
        decode=tuple(
            decode_point(decode_time, context, batch, pipeline=decode.pipeline)
            for context in contexts
            for batch in batches(min(decode_batching.max_sequences * decode_batching.ranks, decode_room // context))
        ),
        source=kind,
    )


def grid(first: int, last: int) -> tuple[int, ...]:
    """Whole numbers from `first` to `last`, both included, four to an octave."""
    if last <= first:
        return (last,)
    steps = [round(first * 2 ** (step / 4)) for step in range(4 * (last // first).bit_length() + 1)]
    return (*(value for value in dict.fromkeys(steps) if value < last), last)


def batches(most: int) -> tuple[int, ...]:
    """Batch sizes 1 … `most`, the last included; none if not one sequence fits."""
    return grid(1, most) if most >= 1 else ()


def prefill_point(model: TimeModel, tokens: int, batching: BatchingConfig) -> PrefillPoint:
    """One prompt alone, and prompts of that length back to back in batches as full as the limit allows."""
    if batching.policy is BatchPolicy.CHUNKED:
        return _chunked_point(model, tokens, batching.chunk_tokens)
    alone = model.iteration_seconds(BatchShape(chunks=(Chunk(0, tokens),)))
    together = batching.ranks * max(1, min(batching.prefill_limit_tokens // tokens, batching.max_sequences))
    full = model.iteration_seconds(BatchShape(chunks=(Chunk(0, tokens),) * together))
    return PrefillPoint(
        input_tokens=tokens,
        ttft_seconds=alone.seconds,
        tokens_per_second=together * tokens / full.stage_seconds,
    )


def _chunked_point(model: TimeModel, tokens: int, budget: int) -> PrefillPoint:
    """The same in chunks; back to back, a short prompt shares its iteration with others of its length."""
    costs = [
        model.iteration_seconds(BatchShape(chunks=(Chunk(start, min(budget, tokens - start)),)))
        for start in range(0, tokens, budget)
    ]
    together = max(1, budget // tokens)
    if together > 1:
        full = model.iteration_seconds(BatchShape(chunks=(Chunk(0, tokens),) * together)).stage_seconds
    else:
        full = sum(cost.stage_seconds for cost in costs)
    return PrefillPoint(
        input_tokens=tokens,
        ttft_seconds=sum(cost.seconds for cost in costs),
        tokens_per_second=together * tokens / full,
    )


def decode_point(model: TimeModel, context: int, batch: int, *, pipeline: int) -> DecodePoint:
    """One step of `batch` sequences of `context` tokens each; with pipeline stages in as many micro-batches."""
    micro = -(-batch // pipeline)
    step = model.iteration_seconds(BatchShape(decode_sequences=micro, decode_context_tokens=micro * context))
    return DecodePoint(
        context_tokens=context,
        batch=batch,
        tpot_seconds=step.seconds,
        tokens_per_second=batch / step.seconds,
    )
