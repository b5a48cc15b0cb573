"""The roofline time model of the reference.

An iteration takes as long as the slower of two things: the arithmetic (2 FLOP a parameter and token, and attention over
the context) at an efficiency that grows with the tokens in the batch, and the memory traffic (weights once, KV history
read, new KV written) at a fixed share of peak bandwidth. Tensor parallelism divides both with falling returns; a fixed
overhead comes once an iteration. With pipeline stages a request's latency stays and each stage is busy for its share.

    compute = (2 · params · n + Σ 4 · h · layers · (l·k + l²/2)) / (peak · 0.7 · n / (n + 100))
    memory  = (weights + Σ k · kv + n · kv) / (bandwidth · 0.8)
    seconds = max(compute, memory) / (tp / (1 + 0.15 (tp − 1))) + 1 ms

with n new tokens in all, and l new tokens after k cached ones for each chunk (a decode is l = 1).
"""

from __future__ import annotations

import math

from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.shapes import BatchShape, IterationCost


class Roofline:
    """Roofline time of an instance. Immutable."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        model, gpu, constants = instance.model, instance.gpu, instance.constants
        self._flop_per_token = 2.0 * model.active_parameters
        self._attention = 4.0 * model.hidden * model.layers
        self._flops = gpu.flops * constants.compute_efficiency
        self._half = constants.half_efficiency_tokens
        self._kv_bytes = model.kv_bytes_per_token
        self._bandwidth = gpu.memory_bandwidth * constants.memory_efficiency
        self._fixed = constants.fixed_seconds
        self._model = model
        tensor = instance.tensor
        self.tensor_speedup = tensor / (1.0 + constants.tensor_penalty * (tensor - 1))

    def efficiency(self, new_tokens: int) -> float:
        """Share of peak FLOP/s that an iteration of that many new tokens reaches."""
        return self.instance.constants.compute_efficiency * new_tokens / (new_tokens + self._half)

    def flop(self, batch: BatchShape) -> float:
        """Floating-point operations of an iteration."""
        pairs = batch.decode_context_tokens + 0.5 * batch.decode_sequences
        for chunk in batch.chunks:
            pairs += chunk.new_tokens * (chunk.cached_tokens + 0.5 * chunk.new_tokens)
        return self._flop_per_token * batch.new_tokens + self._attention * pairs

    def traffic_bytes(self, batch: BatchShape) -> float:
        """Bytes an iteration reads and writes."""
        new = batch.new_tokens
        return self._model.read_bytes(new) + self._kv_bytes * (batch.reread_tokens + new)

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """See TimeModel. Raises SettingError for an empty batch or negative counts."""
        new = batch.new_tokens
        if new < 1 or batch.decode_context_tokens < 0:
            raise SettingError(field="batch", value=batch, wanted="at least one new token and no negative counts")
        compute = self.flop(batch) * (new + self._half) / (self._flops * new) / self.tensor_speedup
        memory = self.traffic_bytes(batch) / self._bandwidth / self.tensor_speedup
        seconds = max(compute, memory) + self._fixed
        return IterationCost(
            seconds=seconds,
            compute_seconds=compute,
            memory_seconds=memory,
            stage_seconds=seconds / self.instance.pipeline,
            bound="compute" if compute > memory else "memory",
        )

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        """See TimeModel. Both terms grow by a constant a step, so their maximum changes sides at most once.

        None with pipeline stages, where micro-batches overlap.
        """
        if self.instance.pipeline > 1:
            return None
        if steps < 1:
            return 0.0
        first = self.iteration_seconds(BatchShape(decode_sequences=sequences, decode_context_tokens=context_tokens))
        scale = (sequences + self._half) / (self._flops * sequences) / self.tensor_speedup
        compute_slope = self._attention * sequences * scale
        memory_slope = self._kv_bytes * sequences / self._bandwidth / self.tensor_speedup
        gap, gap_slope = first.compute_seconds - first.memory_seconds, compute_slope - memory_slope
        crossing = steps  # steps before it have the first step's bound
        if gap_slope != 0.0 and (gap > 0.0) != (gap_slope > 0.0):
            crossing = min(steps, max(1, math.floor(-gap / gap_slope) + 1))
        compute_first = first.bound == "compute"
        early = (first.compute_seconds, compute_slope) if compute_first else (first.memory_seconds, memory_slope)
        late = (first.memory_seconds, memory_slope) if compute_first else (first.compute_seconds, compute_slope)
        return (
            steps * self._fixed + _series(*early, start=0, stop=crossing) + _series(*late, start=crossing, stop=steps)
        )


def _series(value: float, slope: float, *, start: int, stop: int) -> float:
    """Σ value + slope · i for start <= i < stop."""
    count = stop - start
    return count * value + slope * (count * (start + stop - 1) / 2.0)
