"""The catalogue with a user's additions."""

from pathlib import Path

from disagg_engine.catalogue import Catalogue, default
from disagg_operator.errors import RuntimeStartError


def read_catalogue(path: str) -> Catalogue:
    """What ships, plus the entries of a YAML file if ``path`` is given.

    Raises RuntimeStartError when it cannot be read, CatalogueError when it is malformed.
    """
    if not path:
        return default()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeStartError(f"catalogue {path}: {error}") from error
    return default().extended(text, what=path)
