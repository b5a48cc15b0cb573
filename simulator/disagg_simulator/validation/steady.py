"""TPOT of a closed loop in closed form.

With C requests of i input and o output tokens always under way, each running sequence ends on average every o
iterations, and a new prompt takes its place. A request's own prompt is part of its TTFT, so between its tokens it sees
the prompts of the C − 1 others (the arrival theorem of closed queueing networks): an iteration carries C decodes and,
on average, λ = (C − 1) / o prompts. How a serving program mixes the two decides what a running request sees of them:

- mixed (chunked prefill, in-flight batching): prompts join the decodes. Ends are spread out, so the number of prompts
  in an iteration is Poisson distributed with mean λ; a request sees the mean over iterations.
- prefill first: a prompt runs alone while the decodes wait. Requests of one length that start together end together,
  so all C prompts come as a burst and run one after the other; a request that starts in the middle waits for those
  behind it, half of the burst on average (those before it are part of its TTFT).

C is cut to what the KV room holds at the mean context i + o/2. The mean context stands for all contexts, since the time
of an iteration is nearly linear in it. `loops.closed_loop` runs the engine's batching loop on the same load; the report
shows how far the two are apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from disagg_engine.catalogue import Catalogue, Precision
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, TimeModel
from disagg_engine.timemodel.calibrated import sizes_of
from disagg_engine.timemodel.calibration import EngineKey

from .silicon import Measurement

BURST_SHARE = 0.5
"""Share of a burst of prompts that a running request waits for, prefill first."""
PROMPT_TOKENS = 8192
"""Prompt tokens that a prefill-first program computes at once (SGLang's chunked prefill size on these GPUs)."""
_TAIL = 1e-9
"""Probability that the sum over prompts leaves out."""
_MANY = 100.0
"""From so many prompts an iteration on their number hardly varies, and the mean stands for all."""


class Mixing(StrEnum):
    """How a serving program lets prompts in."""

    MIXED = "mixed"
    PREFILL_FIRST = "prefill-first"


def mixing_of(backend: str) -> Mixing:
    """The default scheduler of a serving program: SGLang runs prompts first, vLLM and TensorRT-LLM mix."""
    return Mixing.PREFILL_FIRST if backend == "sglang" else Mixing.MIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop on one instance; `sequences` is the concurrency, cut to the KV room."""

    instance: Instance
    mixing: Mixing
    input_tokens: int
    output_tokens: int
    sequences: int

    @property
    def context_tokens(self) -> int:
        """Mean context of all decodes together."""
        return self.sequences * self.input_tokens + self.sequences * self.output_tokens // 2


class Share(NamedTuple):
    """`weight` iterations, for each output token, of `prompts` whole prompts and `sequences` decodes."""

    weight: float
    prompts: int
    sequences: int


def instance_of(engine: EngineKey, *, tensor: int, catalogue: Catalogue) -> Instance:
    """An instance of a measured engine. Programs that narrow the weights keep 8-bit KV, by assumption."""
    return Instance(
        model=catalogue.model(engine.model),
        gpu=catalogue.gpu(engine.gpu),
        tensor=tensor,
        weight_precision=engine.precision,
        kv_precision=Precision.FP16 if engine.precision is Precision.FP16 else Precision.FP8,
    )


def load_of(row: Measurement, catalogue: Catalogue) -> Load:
    """The closed loop that a measured row comes from."""
    instance = instance_of(row.engine, tensor=row.tensor, catalogue=catalogue)
    room = max(0.0, instance.kv_bytes / instance.kept_bytes_per_token) / (row.input_tokens + row.output_tokens / 2)
    return Load(
        instance=instance,
        mixing=mixing_of(row.engine.backend),
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        sequences=max(1, min(row.concurrency, int(room))),
    )


def shares(load: Load) -> Iterator[Share]:
    """The iterations that an output token waits for, on average."""
    sequences = load.sequences
    rate = (sequences - 1) / load.output_tokens
    if load.mixing is Mixing.PREFILL_FIRST:
        together = max(1, PROMPT_TOKENS // load.input_tokens)
        yield Share(1.0, 0, sequences)
        yield Share(BURST_SHARE * rate / together, together, 0)
        return
    if rate > _MANY:
        yield Share(1.0, round(rate), sequences)
        return
    weight, total, prompts = math.exp(-rate), 0.0, 0
    while total < 1.0 - _TAIL:
        yield Share(weight, prompts, sequences)
        total += weight
        prompts += 1
        weight *= rate / prompts


def shape(load: Load, share: Share) -> BatchShape:
    """One of the iterations of a share."""
    return BatchShape(
        chunks=(Chunk(0, load.input_tokens),) * share.prompts,
        decode_sequences=share.sequences,
        decode_context_tokens=load.context_tokens if share.sequences else 0,
    )


def steady_tpot_seconds(time_model: TimeModel, load: Load) -> float:
    """Mean time per output token of the closed loop under `time_model`."""
    return sum(share.weight * time_model.iteration_seconds(shape(load, share)).seconds for share in shares(load))


def peak_share(row: Measurement, catalogue: Catalogue) -> float:
    """Share of the data sheet's FLOP/s that the measured throughput needs if every token is computed.

    The throughput is concurrency over end to end time (Little's law). Above 0.8 or so a row can't be what it says: part
    of its prompts came from a cache, or the concurrency was not that of one instance.
    """
    sizes = sizes_of(instance_of(row.engine, tensor=row.tensor, catalogue=catalogue))
    tokens = row.input_tokens + row.output_tokens
    flop = sizes.flop_per_token * tokens + sizes.pair_flop * 0.5 * tokens * tokens
    seconds = row.ttft_seconds + (row.output_tokens - 1) * row.tpot_seconds
    share: float = row.concurrency / seconds * flop / (sizes.flops * sizes.tensor)
    return share
