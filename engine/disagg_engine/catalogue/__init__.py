"""Catalogues of GPUs, models and links: data that a user can extend, and nothing else.

`default()` holds what ships in `disagg_engine/data/`. `extended(document)` adds or replaces entries from a YAML or JSON
document of the same shape (`gpus:`, `models:`, `links:`), given as text or as plain values: this package reads no file
of the user's. Names are case-blind, blanks and underscores count as `-`, and common aliases work.

This package imports no other part of the engine but its errors, so that the operator can use it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from disagg_engine.catalogue import load
from disagg_engine.catalogue import parse as parsers
from disagg_engine.catalogue.parse import Entry, normalise
from disagg_engine.catalogue.types import (
    BYTES_PER_PARAMETER,
    Attention,
    Experts,
    FeedForward,
    Gpu,
    Link,
    Model,
    Precision,
    RooflineConstants,
)
from disagg_engine.errors import CatalogueError, UnknownNameError

__all__ = [
    "BYTES_PER_PARAMETER",
    "Attention",
    "Catalogue",
    "Experts",
    "FeedForward",
    "Gpu",
    "Link",
    "Model",
    "Precision",
    "RooflineConstants",
    "default",
    "normalise",
    "roofline_constants",
]

_SECTIONS: dict[str, Callable[[str, Entry], Any]] = {
    "gpus": parsers.gpu,
    "models": parsers.model,
    "links": parsers.link,
}


class Catalogue:
    """Immutable look-up of GPUs, models and links by name or alias."""

    def __init__(self, *, entries: Mapping[str, Mapping[str, Any]], aliases: Mapping[str, Mapping[str, str]]) -> None:
        self._entries = {section: dict(entries.get(section, {})) for section in _SECTIONS}
        self._aliases = {section: dict(aliases.get(section, {})) for section in _SECTIONS}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, in the order of the data."""
        return tuple(self._entries["gpus"].values())

    @property
    def models(self) -> tuple[Model, ...]:
        """All models, in the order of the data."""
        return tuple(self._entries["models"].values())

    @property
    def links(self) -> tuple[Link, ...]:
        """All links, in the order of the data."""
        return tuple(self._entries["links"].values())

    def gpu(self, name: str) -> Gpu:
        """The GPU of this name or alias. Raises UnknownNameError with the known names."""
        found: Gpu = self._find("gpus", "GPU", name)
        return found

    def model(self, name: str) -> Model:
        """The model of this name or alias. Raises UnknownNameError with the known names."""
        found: Model = self._find("models", "model", name)
        return found

    def link(self, name: str) -> Link:
        """The link of this name or alias. Raises UnknownNameError with the known names."""
        found: Link = self._find("links", "link", name)
        return found

    def extended(self, document: str | Mapping[str, Any], *, what: str = "catalogue") -> Catalogue:
        """This catalogue with the document's entries added; an entry of a known name replaces it.

        Raises CatalogueError, naming the field, when the document is malformed.
        """
        plain = load.parse(document, what=what) if isinstance(document, str) else document
        if not isinstance(plain, Mapping):
            raise CatalogueError(f"{what} must be a mapping with {', '.join(_SECTIONS)}; it is {type(plain).__name__}")
        unknown = sorted(str(key) for key in plain if key not in _SECTIONS)
        if unknown:
            raise CatalogueError(f"{what} has unknown sections: {', '.join(unknown)}; known are {', '.join(_SECTIONS)}")
        entries = {section: dict(known) for section, known in self._entries.items()}
        aliases = {section: dict(known) for section, known in self._aliases.items()}
        for section, parse in _SECTIONS.items():
            raw = plain.get(section) or {}
            if not isinstance(raw, Mapping):
                raise CatalogueError(f"{what}: {section} must be a mapping of name to fields")
            for title, fields in raw.items():
                name = normalise(str(title))
                entry = Entry(f"{what}: {section}.{title}", fields)
                names = entry.names("aliases")
                entries[section][name] = parse(name, entry)
                entry.done()
                aliases[section].pop(name, None)
                aliases[section].update({normalise(alias): name for alias in names})
        return Catalogue(entries=entries, aliases=aliases)

    def _find(self, section: str, kind: str, name: str) -> Any:
        key = normalise(name)
        known = self._entries[section]
        if key not in known:
            key = self._aliases[section].get(key, key)
        if key not in known:
            raise UnknownNameError(kind=kind, name=name, known=known)
        return known[key]


@cache
def default() -> Catalogue:
    """The catalogue that ships with the engine."""
    catalogue = Catalogue(entries={}, aliases={})
    for section in _SECTIONS:
        catalogue = catalogue.extended(load.packaged(section), what=f"{section}.yaml")
    return catalogue


@cache
def roofline_constants() -> RooflineConstants:
    """The constants of the roofline model as shipped."""
    return parsers.constants(Entry("roofline.yaml", load.packaged("roofline")))
