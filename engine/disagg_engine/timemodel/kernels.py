"""A time model put together from measured kernels: matrix products, attention, and sums over tensor groups.

A dense transformer layer is four products (gate and up are one), of the model's shapes divided among the tensor group,
attention, and two sums over the group; the last layer is followed by the product with the vocabulary for
every sequence that gets a token. Each is looked up in a table of one GPU's kernels:

- a product of m rows: curves over m at the shapes measured; between shapes linear in both widths;
- attention of prompts: curves over the squared length (which the work grows with) at the batches measured. Several
  chunks count as as many prompts of one length with the same work in all: l² + 2·l·k for l tokens after k cached ones;
- attention of decodes: curves over the batch at the contexts measured, straight between contexts;
- a sum: a curve over the numbers summed.

Outside of the tables `timemodel.curves` goes on. Norms, activations and rotary embeddings are not in the tables and not
in the sum; the fixed overhead of the roofline's constants comes once an iteration. Experts and latent attention are
refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from disagg_engine.catalogue import Attention, FeedForward
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.curves import Curve, Point, pieces
from disagg_engine.timemodel.lines import DecodeLine
from disagg_engine.timemodel.shapes import BatchShape, IterationCost
from disagg_engine.timemodel.windows import Windowed, check, chunk_pairs

T = TypeVar("T")

Shape = tuple[int, int]
"""Output and inner width of a matrix product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShapes:
    """What one GPU of an instance computes: products of a layer and of the vocabulary, and its attention heads."""

    layer: tuple[Shape, ...]
    vocabulary: Shape
    heads: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTables:
    """Seconds of kernels on one GPU, for the precisions and heads of one instance.

    products: (rows, seconds) at each shape. prompts: (length, seconds) at each batch, attention of one layer. decodes:
    (batch, seconds) at each context, the same. sums: (numbers, seconds) over the tensor group; empty for one GPU.
    """

    products: Mapping[Shape, Sequence[Point]]
    prompts: Mapping[int, Sequence[Point]]
    decodes: Mapping[int, Sequence[Point]]
    sums: Sequence[Point] = ()


def kernel_shapes(instance: Instance) -> KernelShapes:
    """Shapes of an instance. Raises SettingError for models whose kernels are not modelled."""
    attention, feed = _parts(instance)
    hidden, tensor = instance.model.hidden, instance.tensor
    heads = -(-attention.heads // tensor)
    kv_heads = -(-attention.kv_heads // tensor)
    inner = -(-feed.intermediate // tensor)
    return KernelShapes(
        layer=(
            ((heads + 2 * kv_heads) * attention.head_size, hidden),
            (hidden, heads * attention.head_size),
            (inner * (2 if feed.gated else 1), hidden),
            (hidden, inner),
        ),
        vocabulary=(-(-feed.vocabulary // tensor), hidden),
        heads=heads,
        kv_heads=kv_heads,
        head_size=attention.head_size,
    )


def _parts(instance: Instance) -> tuple[Attention, FeedForward]:
    model = instance.model
    if model.attention is None or model.feed_forward is None:
        raise SettingError(
            field="model", value=model.name, wanted="one with attention and feed_forward in the catalogue"
        )
    if model.experts is not None or model.attention.latent:
        raise SettingError(
            field="model", value=model.name, wanted="a dense one without latent attention; use the roofline for it"
        )
    return model.attention, model.feed_forward


class Kernels(Windowed):
    """Time of an instance from `tables` for it. Raises SettingError where a table lacks what the instance needs."""

    def __init__(self, instance: Instance, *, tables: KernelTables) -> None:
        super().__init__(instance)
        shapes = kernel_shapes(instance)
        if instance.tensor > 1 and not tables.sums:
            raise SettingError(field="tensor", value=instance.tensor, wanted="1: no sums over so many GPUs are known")
        for name, table in (("products", tables.products), ("prompts", tables.prompts), ("decodes", tables.decodes)):
            if not table:
                raise SettingError(field=name, value="empty", wanted=f"measured for {shapes}")
        measured = {shape: Curve(points, field="products") for shape, points in tables.products.items()}
        self._layer = _added([_product(measured, shape) for shape in shapes.layer])
        self._vocabulary = _product(measured, shapes.vocabulary)
        self._prompts = {
            batch: Curve(((length * length, seconds) for length, seconds in points), field="prompts")
            for batch, points in tables.prompts.items()
        }
        self._decodes = {context: Curve(points, field="decodes") for context, points in tables.decodes.items()}
        self._sums = Curve(tables.sums, field="sums") if instance.tensor > 1 else None
        self._layers, self._hidden = instance.model.layers, instance.model.hidden
        self._fixed = instance.constants.fixed_seconds

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """See TimeModel."""
        check(batch)
        shared = self._shared(batch.new_tokens, len(batch.chunks) + batch.decode_sequences)
        exchange = self._exchange(batch.new_tokens)
        prompts = decodes = 0.0
        if batch.chunks:
            count = len(batch.chunks)
            across = Curve(
                ((size, curve(2.0 * chunk_pairs(batch) / count)) for size, curve in self._prompts.items()),
                field="prompts",
            )
            prompts = self._layers * across(count)
        if batch.decode_sequences:
            context = batch.decode_context_tokens / batch.decode_sequences
            decodes = self._layers * self._steps(batch.decode_sequences)(context)
        if batch.chunks:
            prompts += shared
        else:
            decodes += shared
        seconds = prompts + decodes + exchange + self._fixed
        return IterationCost(
            seconds=seconds,
            compute_seconds=prompts,
            memory_seconds=decodes,
            communication_seconds=exchange,
            stage_seconds=seconds / self.instance.pipeline,
            bound="compute" if prompts > decodes else "memory",
        )

    def _shared(self, rows: int, answers: int) -> float:
        """Products of all layers and of the vocabulary."""
        return self._layers * self._layer(rows) + self._vocabulary(answers)

    def _exchange(self, rows: int) -> float:
        return 2.0 * self._layers * self._sums(rows * self._hidden) if self._sums else 0.0

    def _steps(self, sequences: int) -> Curve:
        """Attention of one layer over the mean context."""
        return Curve(((context, curve(sequences)) for context, curve in self._decodes.items()), field="decodes")

    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        constant = self._shared(sequences, sequences) + self._exchange(sequences) + self._fixed
        return tuple(
            DecodeLine(end * sequences, constant + self._layers * value, self._layers * slope / sequences)
            for end, value, slope in pieces(self._steps(sequences))
        )


def _product(measured: Mapping[Shape, Curve], shape: Shape) -> Curve:
    """The curve of a shape: linear in both widths between those measured."""
    if shape in measured:
        return measured[shape]
    width, inner = shape
    by_inner: dict[int, dict[int, Curve]] = {}
    for (output, depth), curve in measured.items():
        by_inner.setdefault(depth, {})[output] = curve
    near = {depth: _around(by_inner[depth], width) for depth in _around(by_inner, inner)}
    rows = sorted({x for curves in near.values() for curve in curves.values() for x in curve.xs})

    def seconds(at: float) -> float:
        across = [
            (depth, Curve(((output, curve(at)) for output, curve in curves.items()), field="products")(width))
            for depth, curves in near.items()
        ]
        return Curve(across, field="products")(inner)

    return Curve(((at, seconds(at)) for at in rows), field="products")


def _around(found: Mapping[int, T], value: int) -> dict[int, T]:
    """The entries next below and above a value, or the two at the end that it lies beyond."""
    keys = sorted(found)
    above = next((index for index, key in enumerate(keys) if key >= value), len(keys) - 1)
    start = max(0, above - 1)
    return {key: found[key] for key in keys[start : start + 2]}


def _added(curves: Iterable[Curve]) -> Curve:
    parts = list(curves)
    rows = sorted({x for part in parts for x in part.xs})
    return Curve(((x, math.fsum(part(x) for part in parts)) for x in rows), field="products")
