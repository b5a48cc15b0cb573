"""Reading and writing of JSON documents that are frozen dataclasses.

One strict pair of functions for discovery, control and profile documents: unknown fields are ignored (a newer writer
may add some), missing and ill-typed ones are errors that name the path. msgspec does the work.
"""

from typing import TypeVar

import msgspec

from disagg_contract.errors import DocumentError

T = TypeVar("T")


def encode(document: object) -> bytes:
    """Canonical JSON bytes of a dataclass: declared field order, no spaces."""
    return msgspec.json.encode(document)


def decode(raw: bytes | str, kind: type[T], *, what: str) -> T:
    """Document of type ``kind`` from JSON.

    ``what`` names the document in errors, e.g. ``"discovery file /run/x.json"``.
    Raises DocumentError with the path of the offending field.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise DocumentError(f"{what}: {error}") from error
    except msgspec.DecodeError as error:
        raise DocumentError(f"{what}: not JSON: {error}") from error
