"""Two fits in place of physics, both of DistServe (Zhong et al., OSDI 2024).

`Fitted` is what its simulator uses: an iteration of prompts costs A + B · Σ l + C · Σ l², one of decodes A + B · Σ
context + C · sequences, with coefficients for each model, tensor size and engine, and others for large decode batches.
A pipeline stage takes 1/pp of it; a prefill's stage pp · 1 ms more; the first stage 2 ms and 0.1 µs a token of context.

`Analytic` is the form of the paper's appendix A, with coefficients that the caller has measured or fitted:

    prefill T = C1 · (4th² + 2thm) + C2 · 3ht₂ / b + C3        t = Σ l, t₂ = Σ l², b FlashAttention's block
    decode  T = C4 · (4h² + 2hm) + C5 · 3ht                     t = Σ context

with width h and feed-forward width m; tensor parallelism divides the work of both. The layers are in the coefficients.

Where the sources leave it open: a chunk of l tokens after k cached ones costs (k + l)² − k² in place of l²; in an
iteration of prompts and decodes both parts add up, the constant of the larger once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from disagg_engine.catalogue import load
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.lines import DecodeLine
from disagg_engine.timemodel.shapes import BatchShape, IterationCost
from disagg_engine.timemodel.windows import Windowed, checked_sums

Triple = tuple[float, float, float]

MILLISECOND = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCoefficients:
    """[A, B, C] of each kind of iteration in seconds, and what pipelines add; see `data/fitted.yaml`."""

    prefill: Triple
    decode: Triple
    decode_large: Triple
    large_batch: int
    stage_seconds: float
    first_stage_seconds: float
    first_stage_token_seconds: float


def published(instance: Instance, *, backend: str = "distserve") -> FittedCoefficients:
    """DistServe's coefficients for the model, tensor size and GPU of the instance, in the engine `backend`.

    Raises SettingError, naming what has been published, where there are none.
    """
    data = load.packaged("fitted")
    if backend not in data["backends"]:
        raise SettingError(field="backend", value=backend, wanted=f"one of {', '.join(data['backends'])}")
    models: Mapping[str, Mapping[int, Any]] = data["backends"][backend]
    if instance.gpu.name != data["gpu"]:
        raise SettingError(field="gpu", value=instance.gpu.name, wanted=f"{data['gpu']}, which the fit was made on")
    if instance.model.name not in models:
        raise SettingError(field="model", value=instance.model.name, wanted=f"one of those fitted: {', '.join(models)}")
    sizes = models[instance.model.name]
    if instance.tensor not in sizes:
        known = ", ".join(str(size) for size in sizes)
        raise SettingError(field="tensor", value=instance.tensor, wanted=f"one of those fitted: {known}")
    for field in ("weight_precision", "kv_precision"):
        if getattr(instance, field) != "fp16":
            raise SettingError(field=field, value=str(getattr(instance, field)), wanted="fp16, as the fit was made")
    row = sizes[instance.tensor]

    def triple(name: str) -> Triple:
        a, b, c = (float(value) * MILLISECOND for value in row[name])
        return a, b, c

    return FittedCoefficients(
        prefill=triple("prefill"),
        decode=triple("decode"),
        decode_large=triple("decode_large"),
        large_batch=data["large_batch"],
        stage_seconds=data["stage_ms"] * MILLISECOND,
        first_stage_seconds=data["first_stage_ms"] * MILLISECOND,
        first_stage_token_seconds=data["first_stage_token_ms"] * MILLISECOND,
    )


class Fitted(Windowed):
    """DistServe's fit. Without coefficients: those published for the instance in the engine `backend`."""

    def __init__(
        self, instance: Instance, *, coefficients: FittedCoefficients | None = None, backend: str = "distserve"
    ) -> None:
        super().__init__(instance)
        self.coefficients = coefficients or published(instance, backend=backend)

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """See TimeModel. The latency is all stages', the first with its overhead; that one is the busiest."""
        prefill, decode, overhead = self._parts(
            *checked_sums(batch), batch.decode_sequences, batch.decode_context_tokens
        )
        return _cost(prefill, decode, overhead, stage=(prefill + decode) / self.instance.pipeline + overhead)

    def counted_seconds(
        self, prefill_tokens: int, prefill_pairs: float, prefill_cached: int, sequences: int, context_tokens: int, /
    ) -> float:
        """See CountedTimeModel."""
        return sum(self._parts(prefill_tokens, prefill_pairs, prefill_cached, sequences, context_tokens))

    def _parts(
        self, tokens: int, pairs: float, cached: int, sequences: int, context: int
    ) -> tuple[float, float, float]:
        """Seconds of prompts, of decodes, and of the first stage's overhead."""
        fit, stages = self.coefficients, self.instance.pipeline
        constant, per_context, per_sequence = self._decode(sequences) if sequences else (0.0, 0.0, 0.0)
        decode = per_context * context + per_sequence * sequences
        prefill = 0.0
        if tokens:
            own, per_token, per_square = fit.prefill
            prefill = max(own, constant) + per_token * tokens + per_square * 2.0 * pairs + fit.stage_seconds * stages**2
        else:
            decode += constant
        overhead = fit.first_stage_seconds + fit.first_stage_token_seconds * (tokens + cached + context)
        return prefill, decode, overhead

    def _decode(self, sequences: int) -> Triple:
        fit = self.coefficients
        return fit.decode if sequences < fit.large_batch else fit.decode_large

    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        constant, per_context, per_sequence = self._decode(sequences)
        fit = self.coefficients
        return (
            DecodeLine(
                math.inf,
                constant + per_sequence * sequences + fit.first_stage_seconds,
                per_context + fit.first_stage_token_seconds,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticCoefficients:
    """C1 … C5 of appendix A in seconds, and the block size b of FlashAttention. None may be negative; b is above 0."""

    c1: float
    c2: float
    c3: float
    c4: float
    c5: float
    attention_block_tokens: int = 32

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not 0 <= value < math.inf:
                raise SettingError(field=field.name, value=value, wanted="a finite number, 0 or more")
        if self.attention_block_tokens < 1:
            raise SettingError(field="attention_block_tokens", value=self.attention_block_tokens, wanted="at least 1")


class Analytic(Windowed):
    """The latency form of DistServe's appendix A for an instance."""

    def __init__(self, instance: Instance, *, coefficients: AnalyticCoefficients) -> None:
        super().__init__(instance)
        self.coefficients = c = coefficients
        model = instance.model
        width = float(model.hidden)
        inner = float(model.feed_forward.intermediate) if model.feed_forward else 4.0 * width
        layer = (4.0 * width * width + 2.0 * width * inner) / instance.tensor
        attention = 3.0 * width / instance.tensor
        self._token, self._square = c.c1 * layer, c.c2 * attention / c.attention_block_tokens
        self._step, self._context = c.c4 * layer, c.c5 * attention

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """See TimeModel."""
        tokens, pairs, _ = checked_sums(batch)
        prefill, decode = self._parts(tokens, pairs, batch.decode_sequences, batch.decode_context_tokens)
        return _cost(prefill, decode, 0.0, stage=(prefill + decode) / self.instance.pipeline)

    def counted_seconds(
        self, prefill_tokens: int, prefill_pairs: float, prefill_cached: int, sequences: int, context_tokens: int, /
    ) -> float:
        """See CountedTimeModel."""
        return sum(self._parts(prefill_tokens, prefill_pairs, sequences, context_tokens))

    def _parts(self, tokens: int, pairs: float, sequences: int, context: int) -> tuple[float, float]:
        prefill, decode = 0.0, self._context * context
        if tokens:
            constant = max(self.coefficients.c3, self._step) if sequences else self.coefficients.c3
            prefill = constant + self._token * tokens + self._square * 2.0 * pairs
        else:
            decode += self._step
        return prefill, decode

    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        return (DecodeLine(math.inf, self._step, self._context),)


def _cost(prefill: float, decode: float, overhead: float, *, stage: float) -> IterationCost:
    return IterationCost(
        seconds=prefill + decode + overhead,
        compute_seconds=prefill,
        memory_seconds=decode,
        stage_seconds=stage,
        bound="compute" if prefill > decode else "memory",
    )
