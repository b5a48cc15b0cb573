"""The roofline of a model whose attention is data-parallel and whose experts are spread over all GPUs.

As large mixtures of experts are served (DeepSeek-V3 technical report, section 3.4): each data-parallel rank computes
attention and the dense layers for requests of its own, with its own copy of those weights; the experts of a layer are
shared by all GPUs of the stage, so every iteration waits for the rank with the most work.

- Decodes are spread evenly over the ranks, prompts go whole to one rank each: the longest first to the rank with the
  fewest tokens.
- A rank's dense part is the roofline of its own tokens on `tensor` GPUs.
- The experts see the tokens of all ranks, and each GPU computes and reads those it keeps. Choices count as even, so the
  busiest GPU is the one that keeps most experts (⌈routed / expert-parallel⌉; with more GPUs than experts the copies
  share an expert's tokens). GPUs that divide an expert among them gain what tensor parallelism gains.
- Every token's hidden state goes out to the experts (at the weights' precision) and comes back (FP16), once to each
  other node where it has one: the expected number of distinct ones. Among the GPUs that NVLink joins it travels at that
  bandwidth, beyond them at that of the host's network; each GPU of a tensor group sends its share. This comes on top:
  overlapping it with arithmetic is not modelled, nor is the latency of a message. Within one rank the exchange is the
  sum that tensor parallelism pays for anyway.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from disagg_engine.catalogue import Experts
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.lines import DecodeLine, upper_envelope
from disagg_engine.timemodel.roofline import tensor_speedup
from disagg_engine.timemodel.shapes import BatchShape, IterationCost
from disagg_engine.timemodel.windows import Windowed, check

COMBINE_BYTES = 2.0
"""Bytes a number on its way back from the experts."""


@dataclass(slots=True)
class _Load:
    """Work of one rank: new tokens, pairs that attention computes, KV tokens read back."""

    new: float = 0.0
    pairs: float = 0.0
    reread: float = 0.0


class SpreadRoofline(Windowed):
    """Roofline time of an instance with data-parallel attention, expert parallelism, or both."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        experts = instance.model.experts
        if experts is None:
            raise SettingError(field="model", value=instance.model.name, wanted="a mixture of experts")
        self._experts: Experts = experts
        model, gpu, constants = instance.model, instance.gpu, instance.constants
        peak = gpu.peak_flops(instance.weight_precision)
        self._flops = peak * constants.compute_efficiency
        self._half = constants.half_efficiency_tokens
        self._bandwidth = gpu.memory_bandwidth * constants.memory_efficiency
        self._fixed = constants.fixed_seconds
        self._weight_bytes = instance.weight_precision.bytes
        self._rank_speedup = tensor_speedup(instance, instance.tensor)
        self._dense_flop = 2.0 * (model.active_parameters - experts.active_parameters)
        self._attention = 4.0 * model.hidden * model.layers * (peak / gpu.flops)
        self._dense_bytes = model.dense_parameters * self._weight_bytes
        self._kv_bytes = instance.kept_bytes_per_token
        ranks = instance.expert_parallel
        gain = tensor_speedup(instance, instance.stage_gpus // ranks)
        kept = instance.experts_per_gpu if ranks > 1 else experts.routed
        self._expert_flop = 2.0 * experts.active_parameters * max(kept / experts.routed, 1.0 / ranks) / gain
        self._expert_bytes = kept * experts.layers * experts.parameters_each * self._weight_bytes / gain
        self._copies = max(1.0, ranks / experts.routed)
        self._exchange = _exchange_seconds(instance, experts)

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """See TimeModel. The cost of the slowest rank."""
        check(batch)
        total = batch.new_tokens
        costs = [(*self._terms(load, total), self._exchange * load.new) for load in self._loads(batch)]
        compute, memory, exchange = max(costs, key=lambda cost: max(cost[0], cost[1]) + cost[2])
        seconds = max(compute, memory) + exchange + self._fixed
        return IterationCost(
            seconds=seconds,
            compute_seconds=compute,
            memory_seconds=memory,
            communication_seconds=exchange,
            stage_seconds=seconds / self.instance.pipeline,
            bound="compute" if compute > memory else "memory",
        )

    def _terms(self, load: _Load, total: int) -> tuple[float, float]:
        """Arithmetic and memory seconds of a rank while all ranks together compute `total` tokens."""
        compute = self._expert_flop * (total + self._half) / self._flops
        if load.new:
            dense = self._dense_flop * load.new + self._attention * load.pairs
            compute += dense * (load.new + self._half) / (self._flops * load.new) / self._rank_speedup
        traffic = (self._dense_bytes + self._kv_bytes * (load.reread + load.new)) / self._rank_speedup
        traffic += self._expert_bytes * self._experts.hit_share(total / self._copies)
        return compute, traffic / self._bandwidth

    def _loads(self, batch: BatchShape) -> list[_Load]:
        """The work of every rank that may be the slowest."""
        ranks, sequences, context = self.instance.data_parallel, batch.decode_sequences, batch.decode_context_tokens
        even, more = divmod(sequences, ranks)
        loads = [_decodes(even + (rank < more), sequences, context) for rank in range(ranks)]
        if not batch.chunks:
            return loads[:1]
        heap = [(load.new, rank) for rank, load in enumerate(loads)]
        heapq.heapify(heap)
        for chunk in sorted(batch.chunks, key=lambda chunk: (-chunk.new_tokens, -chunk.cached_tokens)):
            load = loads[heap[0][1]]
            load.new += chunk.new_tokens
            load.pairs += chunk.new_tokens * (chunk.cached_tokens + 0.5 * chunk.new_tokens)
            load.reread += chunk.cached_tokens
            heapq.heapreplace(heap, (load.new, heap[0][1]))
        return loads

    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        """As for the roofline: the context of the fullest rank grows with that of all."""
        fullest = -(-sequences // self.instance.data_parallel)
        compute, memory = self._terms(_decodes(fullest, sequences, 0), sequences)
        share = fullest / sequences / self._rank_speedup
        return upper_envelope(
            (compute, self._attention * share * (fullest + self._half) / (self._flops * fullest)),
            (memory, self._kv_bytes * share / self._bandwidth),
            fixed_seconds=self._fixed + self._exchange * fullest,
        )


def _decodes(share: int, sequences: int, context_tokens: int) -> _Load:
    """`share` of the sequences, with their part of the context."""
    context = context_tokens * (share / sequences) if sequences else 0.0
    return _Load(new=share, pairs=context + 0.5 * share, reread=context)


def _exchange_seconds(instance: Instance, experts: Experts) -> float:
    """Seconds of sending one token of a rank to its experts and back, over all layers."""
    if instance.data_parallel == 1:
        return 0.0
    gpu, places, bandwidth = (
        instance.gpu,
        instance.stage_gpus,
        instance.gpu.nvlink_bandwidth or instance.gpu.pcie_bandwidth,
    )
    if places > gpu.nvlink_gpus > 1:
        places, bandwidth = -(-places // gpu.nvlink_gpus), gpu.network_bandwidth
    elsewhere = (places - 1) * (1.0 - (1.0 - 1.0 / places) ** experts.taken)
    moved = elsewhere * instance.model.hidden * (instance.weight_precision.bytes + COMBINE_BYTES)
    return experts.layers * moved / instance.tensor / bandwidth
