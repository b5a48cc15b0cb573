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

from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.lines import DecodeLine, upper_envelope, window_seconds
from disagg_engine.timemodel.shapes import BatchShape, IterationCost


class Roofline:
    """Roofline time of an instance."""

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
        self._lines: dict[int, tuple[DecodeLine, ...]] = {}
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

    def counted_seconds(
        self, prefill_tokens: int, prefill_pairs: float, prefill_cached: int, sequences: int, context_tokens: int, /
    ) -> float:
        """See CountedTimeModel."""
        new = prefill_tokens + sequences
        flop = self._flop_per_token * new + self._attention * (prefill_pairs + context_tokens + 0.5 * sequences)
        compute = flop * (new + self._half) / (self._flops * new)
        memory = (self._model.read_bytes(new) + self._kv_bytes * (prefill_cached + context_tokens + new)) / (
            self._bandwidth
        )
        return max(compute, memory) / self.tensor_speedup + self._fixed

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        """See TimeModel."""
        if self.instance.pipeline > 1:
            return None
        return window_seconds(
            self.decode_lines(sequences), sequences=sequences, context_tokens=context_tokens, steps=steps
        )

    def decode_lines(self, sequences: int, /) -> tuple[DecodeLine, ...]:
        """See TimeModel. Arithmetic and memory both grow with the context, so there is at most one bend."""
        lines = self._lines.get(sequences)
        if lines is None:
            if sequences < 1:
                raise SettingError(field="sequences", value=sequences, wanted="at least 1")
            scale = (sequences + self._half) / (self._flops * sequences) / self.tensor_speedup
            compute = self._flop_per_token * sequences + self._attention * 0.5 * sequences
            memory = self._model.read_bytes(sequences) + self._kv_bytes * sequences
            byte_seconds = 1.0 / (self._bandwidth * self.tensor_speedup)
            lines = self._lines[sequences] = upper_envelope(
                (compute * scale, self._attention * scale),
                (memory * byte_seconds, self._kv_bytes * byte_seconds),
                fixed_seconds=self._fixed,
            )
        return lines
