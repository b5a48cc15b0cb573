"""From plain documents (mappings of strings and numbers) to catalogue values, refusing by field name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from disagg_engine.catalogue.types import (
    BYTES_PER_PARAMETER,
    Attention,
    Experts,
    FeedForward,
    Gpu,
    Link,
    Model,
    RooflineConstants,
)
from disagg_engine.errors import CatalogueError


def normalise(name: str) -> str:
    """The one spelling of a name: lower case, `-` for blanks and underscores."""
    return "-".join(name.strip().lower().replace("_", "-").split())


class Entry:
    """One entry of a document, read field by field; `done` refuses what nobody asked for."""

    def __init__(self, where: str, raw: object) -> None:
        if not isinstance(raw, Mapping):
            raise CatalogueError(f"{where} is {raw!r}; it must be a mapping of fields")
        self.where = where
        self._raw: dict[str, Any] = {str(key): value for key, value in raw.items()}

    def has(self, field: str) -> bool:
        return self._raw.get(field) is not None

    def take(self, field: str, default: Any = None) -> Any:
        return self._raw.pop(field, default)

    def text(self, field: str, default: str) -> str:
        value = self._raw.pop(field, default)
        if not isinstance(value, str):
            raise CatalogueError(f"{self.where}.{field} is {value!r}; it must be a text")
        return value

    def number(self, field: str, *, default: float | None = None, positive: bool = True) -> float:
        value = self._raw.pop(field, default)
        if value is None:
            raise CatalogueError(f"{self.where}.{field} is missing; it must be a number")
        # YAML 1.1 reads 312e12 (no sign in the exponent) as text, so numeric text counts as a number.
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or number < 0 or (positive and number == 0):
            wanted = "a finite number above 0" if positive else "a finite number, 0 or more"
            raise CatalogueError(f"{self.where}.{field} is {value!r}; it must be {wanted}")
        return number

    def optional(self, field: str) -> float | None:
        if not self.has(field):
            self._raw.pop(field, None)
            return None
        return self.number(field)

    def truth(self, field: str, default: bool) -> bool:
        value = self._raw.pop(field, default)
        if not isinstance(value, bool):
            raise CatalogueError(f"{self.where}.{field} is {value!r}; it must be true or false")
        return value

    def inner(self, field: str) -> Entry | None:
        """A nested mapping, if there is one."""
        return Entry(f"{self.where}.{field}", self.take(field)) if self.has(field) else None

    def whole(self, field: str, *, default: int | None = None, positive: bool = True) -> int:
        number = self.number(field, default=default, positive=positive)
        if number != int(number):
            raise CatalogueError(f"{self.where}.{field} is {number!r}; it must be a whole number")
        return int(number)

    def names(self, field: str) -> tuple[str, ...]:
        value = self._raw.pop(field, None) or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise CatalogueError(f"{self.where}.{field} is {value!r}; it must be a list of names")
        return tuple(value)

    def done(self) -> None:
        if self._raw:
            raise CatalogueError(f"{self.where} has unknown fields: {', '.join(sorted(self._raw))}")


def gpu(name: str, entry: Entry) -> Gpu:
    nvlink_bandwidth = entry.number("nvlink_bandwidth", default=0.0, positive=False)
    idle_share = entry.number("idle_share", default=0.0, positive=False)
    if idle_share > 1:
        raise CatalogueError(f"{entry.where}.idle_share is {idle_share!r}; it must be a share of watts, 0 to 1")
    return Gpu(
        name=name,
        title=entry.text("title", name),
        flops=entry.number("flops"),
        flops_fp8=entry.optional("flops_fp8"),
        flops_fp4=entry.optional("flops_fp4"),
        memory_bytes=entry.number("memory_bytes"),
        memory_bandwidth=entry.number("memory_bandwidth"),
        nvlink_bandwidth=nvlink_bandwidth,
        nvlink_gpus=entry.whole("nvlink_gpus", default=8 if nvlink_bandwidth else 1),
        pcie_bandwidth=entry.number("pcie_bandwidth"),
        network_bandwidth=entry.number("network_bandwidth", default=50e9),
        load_bandwidth=entry.number("load_bandwidth"),
        watts=entry.optional("watts"),
        idle_share=idle_share,
        dollars_per_hour=entry.optional("dollars_per_hour"),
        source=entry.text("source", ""),
    )


def _experts(inner: Entry) -> Experts:
    experts = Experts(
        routed=inner.whole("routed"),
        taken=inner.whole("taken"),
        layers=inner.whole("layers"),
        parameters_each=inner.number("parameters_each"),
    )
    inner.done()
    if experts.taken > experts.routed:
        raise CatalogueError(f"{inner.where}.taken is {experts.taken}; it must be at most routed, {experts.routed}")
    return experts


def _attention(inner: Entry) -> Attention:
    heads = inner.whole("heads")
    attention = Attention(
        heads=heads,
        kv_heads=inner.whole("kv_heads", default=heads),
        head_size=inner.whole("head_size"),
        latent=inner.whole("latent", default=0, positive=False),
        rotary=inner.whole("rotary", default=0, positive=False),
    )
    inner.done()
    if attention.kv_heads > heads:
        raise CatalogueError(f"{inner.where}.kv_heads is {attention.kv_heads}; it must be at most heads, {heads}")
    return attention


def _feed_forward(inner: Entry) -> FeedForward:
    feed_forward = FeedForward(
        intermediate=inner.whole("intermediate"),
        vocabulary=inner.whole("vocabulary"),
        gated=inner.truth("gated", True),
    )
    inner.done()
    return feed_forward


def model(name: str, entry: Entry) -> Model:
    inner = entry.inner("experts")
    experts = _experts(inner) if inner else None
    inner = entry.inner("attention")
    attention = _attention(inner) if inner else None
    inner = entry.inner("feed_forward")
    feed_forward = _feed_forward(inner) if inner else None
    parameters = entry.number("parameters")
    active = entry.number("active_parameters", default=parameters)
    if active > parameters:
        raise CatalogueError(f"{entry.where}.active_parameters is {active!r}; it must be at most parameters")
    if experts is not None and experts.parameters > parameters:
        raise CatalogueError(
            f"{entry.where}.experts have {experts.parameters:g} parameters; the model has {parameters:g}"
        )
    if experts is not None and experts.active_parameters > active:
        raise CatalogueError(
            f"{entry.where}.experts: a token passes through {experts.active_parameters:g} parameters of them; "
            f"active_parameters is {active:g}"
        )
    layers = entry.whole("layers")
    derived = attention.kv_numbers * layers * BYTES_PER_PARAMETER if attention else None
    kv_bytes = entry.number("kv_bytes_per_token", default=derived)
    if derived is not None and kv_bytes != derived:
        raise CatalogueError(
            f"{entry.where}.kv_bytes_per_token is {kv_bytes:g}; attention says {derived:g}: leave one of them out"
        )
    return Model(
        name=name,
        title=entry.text("title", name),
        parameters=parameters,
        active_parameters=active,
        layers=layers,
        hidden=entry.whole("hidden"),
        kv_bytes_per_token=kv_bytes,
        max_context_tokens=entry.whole("max_context_tokens"),
        source=entry.text("source", ""),
        experts=experts,
        attention=attention,
        feed_forward=feed_forward,
    )


def link(name: str, entry: Entry) -> Link:
    own = not entry.has("bandwidth")
    if own:
        entry.take("bandwidth")
    return Link(
        name=name,
        title=entry.text("title", name),
        bandwidth=None if own else entry.number("bandwidth"),
        latency_seconds=entry.number("latency_seconds", default=0.0, positive=False),
        source=entry.text("source", ""),
    )


def constants(entry: Entry) -> RooflineConstants:
    values = {field.name: entry.number(field.name, positive=False) for field in fields(RooflineConstants)}
    entry.done()
    return RooflineConstants(**values)
