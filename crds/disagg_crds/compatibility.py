"""What a change of a schema would break for objects that exist and for clients that write them.

Within a served version a schema only grows: fields may come, bounds may widen, values may be added. Anything else makes
objects unreadable, loses what they say, or refuses documents that were accepted. ``breaking_changes`` compares two
structural schemas and names each such change by its path. It says nothing of CEL rules: a rule that refuses more than
before is weighed by people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

_UPPER: Final = ("maximum", "maxLength", "maxItems", "maxProperties")
_LOWER: Final = ("minimum", "minLength", "minItems", "minProperties")
_SAME: Final = ("type", "format", "pattern", "default", "x-kubernetes-list-type", "x-kubernetes-list-map-keys")


def breaking_changes(before: Schema, after: Schema, *, path: str = "") -> list[str]:
    """Sentences that name what `after` no longer promises; empty when it only grew."""
    return list(_changes(before, after, path or "."))


def _changes(before: Schema, after: Schema, path: str) -> Iterator[str]:
    for key in _SAME:
        if key in before and before[key] != after.get(key):
            yield f"{path}: {key} was {before[key]!r} and is {after.get(key)!r}"
        elif key == "pattern" and key in after and key not in before:
            yield f"{path}: {key} {after[key]!r} is new"
    gone = [value for value in before.get("enum", ()) if value not in after.get("enum", (value,))]
    if gone:
        yield f"{path}: no longer takes {', '.join(map(repr, gone))}"
    if "enum" in after and "enum" not in before:
        yield f"{path}: takes {', '.join(map(repr, after['enum']))} only"
    yield from _narrowed(before, after, path)
    wanted = set(after.get("required", ())) - set(before.get("required", ()))
    for name in sorted(wanted):
        yield f"{path}: {name} is required now"
    for name, child in before.get("properties", {}).items():
        inner = f"{path.rstrip('.')}.{name}"
        if name not in after.get("properties", {}):
            yield f"{inner}: is gone"
        else:
            yield from _changes(child, after["properties"][name], inner)
    for key in ("items", "additionalProperties"):
        if key in before and key in after:
            yield from _changes(before[key], after[key], f"{path}[]")
        elif key in before:
            yield f"{path}: {key} are gone"


def _narrowed(before: Schema, after: Schema, path: str) -> Iterator[str]:
    for key in (*_UPPER, *_LOWER):
        old, new = before.get(key), after.get(key)
        if new is not None and (old is None or (new < old if key in _UPPER else new > old)):
            yield f"{path}: {key} was {'open' if old is None else old} and is {new}"
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if after.get(exclusive) and not before.get(exclusive) and before.get(bound) == after.get(bound):
            yield f"{path}: {bound} {after[bound]} itself is no longer taken"
