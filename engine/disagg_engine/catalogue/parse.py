"""From plain documents (mappings of strings and numbers) to catalogue values, refusing by field name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from disagg_engine.catalogue.types import Experts, Gpu, Link, Model, RooflineConstants
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

    def whole(self, field: str) -> int:
        number = self.number(field)
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
    return Gpu(
        name=name,
        title=entry.text("title", name),
        flops=entry.number("flops"),
        memory_bytes=entry.number("memory_bytes"),
        memory_bandwidth=entry.number("memory_bandwidth"),
        nvlink_bandwidth=entry.number("nvlink_bandwidth", default=0.0, positive=False),
        pcie_bandwidth=entry.number("pcie_bandwidth"),
        load_bandwidth=entry.number("load_bandwidth"),
        source=entry.text("source", ""),
    )


def model(name: str, entry: Entry) -> Model:
    experts = None
    if entry.has("experts"):
        inner = Entry(f"{entry.where}.experts", entry.take("experts"))
        experts = Experts(
            routed=inner.whole("routed"),
            taken=inner.whole("taken"),
            layers=inner.whole("layers"),
            parameters_each=inner.number("parameters_each"),
        )
        inner.done()
        if experts.taken > experts.routed:
            raise CatalogueError(f"{inner.where}.taken is {experts.taken}; it must be at most routed, {experts.routed}")
    parameters = entry.number("parameters")
    active = entry.number("active_parameters", default=parameters)
    if active > parameters:
        raise CatalogueError(f"{entry.where}.active_parameters is {active!r}; it must be at most parameters")
    if experts is not None and experts.parameters > parameters:
        raise CatalogueError(
            f"{entry.where}.experts have {experts.parameters:g} parameters; the model has {parameters:g}"
        )
    return Model(
        name=name,
        title=entry.text("title", name),
        parameters=parameters,
        active_parameters=active,
        layers=entry.whole("layers"),
        hidden=entry.whole("hidden"),
        kv_bytes_per_token=entry.number("kv_bytes_per_token"),
        max_context_tokens=entry.whole("max_context_tokens"),
        source=entry.text("source", ""),
        experts=experts,
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
