"""The roofline with constants that were measured on a real engine.

The two terms are the reference's (`timemodel.roofline`). What a measured engine adds is where its overheads fall: they
grow with the layers (kernels are launched and partial results exchanged layer by layer) and with the sequences that
decode (sampling, bookkeeping), and its KV may be read less well, or twice, than its size says.

    compute = (flop + wide · attention) / (peak · compute_efficiency · n / (n + half)) / tp_speedup
    memory  = (weights read + kv_factor · KV read and written) / (bandwidth · memory_efficiency) / tp_speedup
    seconds = max(compute, memory) + layers · layer_seconds + decodes · sequence_seconds

with n new tokens in all, tp_speedup = tp / (1 + tensor_penalty · (tp − 1)), peak and bytes those of the instance's
precision, and wide what an FP16 operation of the attention costs at that peak. Every constant enters monotonically: a
larger efficiency never slows an iteration, a larger overhead never speeds it up.

`terms` is the formula itself. It takes numbers or arrays of them, so that a fit over hundreds of measurements and the
model that is loaded afterwards cannot drift apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.lines import DecodeLine, upper_envelope
from disagg_engine.timemodel.shapes import BatchShape, IterationCost
from disagg_engine.timemodel.windows import Windowed, checked_sums

_MAY_BE_ZERO = frozenset({"layer_seconds", "sequence_seconds", "tensor_penalty", "half_efficiency_tokens"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedConstants:
    """The constants of the formula above.

    compute_efficiency, memory_efficiency: shares of the data sheet's peaks. kv_factor: KV traffic as a multiple of its
    size. layer_seconds: overhead of an iteration, for each layer. sequence_seconds: overhead for each decode.
    tensor_penalty, half_efficiency_tokens: as in `RooflineConstants`.
    """

    compute_efficiency: float
    memory_efficiency: float
    kv_factor: float
    layer_seconds: float
    sequence_seconds: float
    tensor_penalty: float
    half_efficiency_tokens: float = 100.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            zero = field.name in _MAY_BE_ZERO
            if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
                wanted = "a finite number, 0 or more" if zero else "a finite number above 0"
                raise SettingError(field=field.name, value=value, wanted=wanted)


class Sizes(NamedTuple):
    """What the formula needs of a model on its GPUs; numbers, or arrays with an entry for each measurement.

    flop_per_token, pair_flop (attention for a query and a key, widened), weight_bytes (read by an iteration), kv_bytes
    (a token), flops and bandwidth (of one GPU, at peak), layers, tensor.
    """

    flop_per_token: Any
    pair_flop: Any
    weight_bytes: Any
    kv_bytes: Any
    flops: Any
    bandwidth: Any
    layers: Any
    tensor: Any


def terms(
    constants: CalibratedConstants,
    sizes: Sizes,
    *,
    prefill_tokens: Any,
    prefill_pairs: Any,
    prefill_cached: Any,
    sequences: Any,
    context_tokens: Any,
) -> tuple[Any, Any, Any]:
    """Compute, memory and overhead seconds of an iteration; see `CountedTimeModel.counted_seconds` for the sums."""
    new = prefill_tokens + sequences
    slowdown = (1.0 + constants.tensor_penalty * (sizes.tensor - 1)) / sizes.tensor
    flop = sizes.flop_per_token * new + sizes.pair_flop * (prefill_pairs + context_tokens + 0.5 * sequences)
    rate = sizes.flops * constants.compute_efficiency * new / (new + constants.half_efficiency_tokens)
    kv_bytes = constants.kv_factor * sizes.kv_bytes * (prefill_cached + context_tokens + new)
    return (
        flop / rate * slowdown,
        (sizes.weight_bytes + kv_bytes) / (sizes.bandwidth * constants.memory_efficiency) * slowdown,
        constants.layer_seconds * sizes.layers + constants.sequence_seconds * sequences,
    )


def sizes_of(instance: Instance, *, new_tokens: int = 1) -> Sizes:
    """Sizes of `instance` for an iteration of that many new tokens (which matters to a mixture of experts only)."""
    model, peak = instance.model, instance.gpu.peak_flops(instance.weight_precision)
    parameters = model.dense_parameters
    if model.experts is not None:
        parameters += model.experts.expected_read(new_tokens)
    return Sizes(
        flop_per_token=2.0 * model.active_parameters,
        pair_flop=4.0 * model.hidden * model.layers * (peak / instance.gpu.flops),
        weight_bytes=parameters * instance.weight_precision.bytes,
        kv_bytes=instance.kept_bytes_per_token,
        flops=peak,
        bandwidth=instance.gpu.memory_bandwidth,
        layers=model.layers,
        tensor=instance.tensor,
    )


class Calibrated(Windowed):
    """Time of an instance by the formula above; without data or expert parallelism, which nobody measured for it."""

    def __init__(self, instance: Instance, constants: CalibratedConstants) -> None:
        super().__init__(instance)
        if instance.data_parallel > 1 or instance.expert_parallel > 1:
            raise SettingError(field="instance", value=instance.layout(), wanted="without data or expert parallelism")
        self.constants = constants
        self._sizes = sizes_of(instance)
        self._moe = instance.model.experts is not None

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """See TimeModel. Raises SettingError for an empty batch or negative counts."""
        compute, memory, overhead = self._terms(
            *checked_sums(batch), batch.decode_sequences, batch.decode_context_tokens
        )
        seconds = max(compute, memory) + overhead
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
        compute, memory, overhead = self._terms(
            prefill_tokens, prefill_pairs, prefill_cached, sequences, context_tokens
        )
        return max(compute, memory) + overhead

    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        """Both terms are straight over the context: their values at none, and their rise over so many tokens."""
        compute, memory, overhead = self._terms(0, 0.0, 0, sequences, 0)
        far = 1 << 20
        compute_far, memory_far, _ = self._terms(0, 0.0, 0, sequences, far)
        return upper_envelope(
            (compute, (compute_far - compute) / far), (memory, (memory_far - memory) / far), fixed_seconds=overhead
        )

    def _terms(
        self, prefill_tokens: int, prefill_pairs: float, prefill_cached: int, sequences: int, context_tokens: int
    ) -> tuple[float, float, float]:
        sizes = self._sizes
        if self._moe:
            sizes = sizes_of(self.instance, new_tokens=prefill_tokens + sequences)
        return terms(
            self.constants,
            sizes,
            prefill_tokens=prefill_tokens,
            prefill_pairs=prefill_pairs,
            prefill_cached=prefill_cached,
            sequences=sequences,
            context_tokens=context_tokens,
        )
