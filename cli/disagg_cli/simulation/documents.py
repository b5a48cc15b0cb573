"""Results for other programs: one JSON document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from disagg_cli.errors import CommandError


def write_document(document: dict[str, Any], path: str) -> None:
    """Write to a file, or print for `-`. Raises `CommandError`."""
    text = json.dumps(document, indent=1, allow_nan=False)
    if path == "-":
        print(text)
    else:
        write_text(text + "\n", path)


def write_text(text: str, path: str) -> None:
    """Write a file. Raises `CommandError`."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} can't be written: {(error.strerror or str(error)).lower()}") from None


def read_document(path: str) -> dict[str, Any]:
    """A JSON object from a file. Raises `CommandError`."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CommandError(f"{path}: no JSON document ({error})") from None
    if not isinstance(document, dict):
        raise CommandError(f"{path}: a JSON object is expected, not a {type(document).__name__}")
    return document
