"""Reads the package's own data files: the one place of the engine that touches files."""

from __future__ import annotations

from functools import cache
from pkgutil import get_data
from typing import Any

import yaml

from disagg_engine.errors import CatalogueError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader in C is ten times as fast; PyYAML has it where it was built with libyaml."""


def parse(text: str, *, what: str) -> Any:
    """A YAML (or JSON) document as plain values."""
    try:
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise CatalogueError(f"{what} is not YAML: {error}".replace("\n", " ")) from error


@cache
def packaged(name: str) -> Any:
    """The document `data/<name>.yaml` of this package."""
    data = get_data("disagg_engine", f"data/{name}.yaml")
    if data is None:
        raise CatalogueError(f"data/{name}.yaml is not there: this installation of disagg lacks files")
    return parse(data.decode(), what=f"{name}.yaml")
