"""The engine's catalogue, with a user's additions."""

from __future__ import annotations

from pathlib import Path

from disagg_engine.catalogue import Catalogue, default
from disagg_engine.errors import CatalogueError

from .errors import UsageError


def read_catalogue(path: str | None) -> Catalogue:
    """The shipped catalogue, extended by a file where one is given. Raises `UsageError`."""
    if not path:
        return default()
    try:
        return default().extended(Path(path).read_text(encoding="utf-8"), what=path)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file ({error.reason} at byte {error.start})") from None
    except CatalogueError as error:
        raise UsageError(str(error)) from None
