"""The roofline time model of the reference.

An iteration takes as long as the slower of two things: the arithmetic (2 FLOP a parameter and token, and attention over
the context) at an efficiency that grows with the tokens in the batch, and the memory traffic (weights once, KV history
read, new KV written) at a fixed share of peak bandwidth. Tensor parallelism divides both with falling returns; a fixed
overhead comes once an iteration. With pipeline stages a request's latency stays and each stage is busy for its share.

    compute = (2 · params · n + Σ 4 · h · layers · (l·k + l²/2)) / (peak · 0.7 · n / (n + 100))
    memory  = (weights + Σ k · kv + n · kv) / (bandwidth · 0.8)
    seconds = max(compute, memory) / (tp / (1 + 0.15 (tp − 1))) + 1 ms

with n new tokens in all, and l new tokens after k cached ones for each chunk (a decode is l = 1). Of a model with
experts a token passes through the active parameters, and an iteration reads the distinct experts expected to be hit.

FP8 weights halve the traffic and use the GPU's FP8 peak where it has one; attention computes in FP16 all the same.
"""

from __future__ import annotations

from disagg_engine.catalogue import Precision
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.lines import DecodeLine, upper_envelope
from disagg_engine.timemodel.shapes import BatchShape, IterationCost
from disagg_engine.timemodel.windows import Windowed, checked_sums, chunk_pairs


class Roofline(Windowed):
    """Roofline time of an instance without data or expert parallelism (`SpreadRoofline` has those)."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        if instance.data_parallel > 1 or instance.expert_parallel > 1:
            raise SettingError(field="instance", value=instance.layout(), wanted="without data or expert parallelism")
        model, gpu, constants = instance.model, instance.gpu, instance.constants
        peak = gpu.peak_flops(instance.weight_precision)
        self._flop_per_token = 2.0 * model.active_parameters
        self._attention = 4.0 * model.hidden * model.layers
        self._wide = peak / gpu.flops  # what an FP16 operation costs in operations at the peak
        self._flops = peak * constants.compute_efficiency
        self._half = constants.half_efficiency_tokens
        self._kv_bytes = instance.kept_bytes_per_token
        self._bandwidth = gpu.memory_bandwidth * constants.memory_efficiency
        self._fixed = constants.fixed_seconds
        self._model = model
        self._narrow = instance.weight_precision.bytes / Precision.FP16.bytes
        self.tensor_speedup = tensor_speedup(instance, instance.tensor)

    def efficiency(self, new_tokens: int) -> float:
        """Share of peak FLOP/s that an iteration of that many new tokens reaches."""
        return self.instance.constants.compute_efficiency * new_tokens / (new_tokens + self._half)

    def flop(self, batch: BatchShape) -> float:
        """Floating-point operations of an iteration."""
        pairs = chunk_pairs(batch) + batch.decode_context_tokens + 0.5 * batch.decode_sequences
        return self._flop_per_token * batch.new_tokens + self._attention * pairs

    def traffic_bytes(self, batch: BatchShape) -> float:
        """Bytes an iteration reads and writes."""
        return self._traffic(batch.new_tokens, batch.reread_tokens)

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """See TimeModel. Raises SettingError for an empty batch or negative counts."""
        tokens, pairs, cached = checked_sums(batch)
        sequences, context = batch.decode_sequences, batch.decode_context_tokens
        new = tokens + sequences
        compute = self._compute(new, pairs + context + 0.5 * sequences) / self.tensor_speedup
        memory = self._traffic(new, cached + context) / self._bandwidth / self.tensor_speedup
        seconds = max(compute, memory) + self._fixed
        return IterationCost(
            seconds=seconds,
            compute_seconds=compute,
            memory_seconds=memory,
            stage_seconds=seconds / self.instance.pipeline,
            bound="compute" if compute > memory else "memory",
        )

    def counted_seconds(
        self, prefill_tokens: int, prefill_pairs: float, prefill_cached: int, sequences: int, context_tokens: int, /
    ) -> float:
        """See CountedTimeModel."""
        new = prefill_tokens + sequences
        compute = self._compute(new, prefill_pairs + context_tokens + 0.5 * sequences)
        memory = self._traffic(new, prefill_cached + context_tokens) / self._bandwidth
        return max(compute, memory) / self.tensor_speedup + self._fixed

    def _compute(self, new: int, pairs: float) -> float:
        flop = self._flop_per_token * new + self._attention * self._wide * pairs
        return flop * (new + self._half) / (self._flops * new)

    def _traffic(self, new: int, reread: int) -> float:
        return self._model.read_bytes(new) * self._narrow + self._kv_bytes * (reread + new)

    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        """Arithmetic and memory both grow with the context, so there is at most one bend."""
        scale = (sequences + self._half) / (self._flops * sequences) / self.tensor_speedup
        byte_seconds = 1.0 / (self._bandwidth * self.tensor_speedup)
        return upper_envelope(
            (self._compute(sequences, 0.5 * sequences) / self.tensor_speedup, self._attention * self._wide * scale),
            (self._traffic(sequences, 0) * byte_seconds, self._kv_bytes * byte_seconds),
            fixed_seconds=self._fixed,
        )


def tensor_speedup(instance: Instance, gpus: int) -> float:
    """What dividing the work among that many GPUs gains: tp / (1 + penalty · (tp − 1))."""
    return gpus / (1.0 + instance.constants.tensor_penalty * (gpus - 1))
