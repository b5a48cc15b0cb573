"""Errors of the engine.

::

    EngineError
    ├── CatalogueError          a catalogue document is malformed
    │   └── UnknownNameError    a GPU, model or link nobody has described; lists the known ones
    ├── SettingError            a setting or argument is out of range
    ├── ModelDoesNotFitError    the weights do not fit the GPUs; says by how much and what would fit
    ├── RequestTooLargeError    the request can never fit this instance's KV room
    ├── UnknownRequestError     no live request has this id
    ├── DuplicateRequestError   a live request already has this id
    └── ClockError              time was made to run back

Each message names the field, its value and what would be right.
"""

from __future__ import annotations

from collections.abc import Iterable


class EngineError(Exception):
    """Base of all errors of the engine."""


class CatalogueError(EngineError):
    """A catalogue document is malformed."""


class UnknownNameError(CatalogueError):
    """A name is not in the catalogue; the message lists the known names."""

    def __init__(self, *, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(f"unknown {kind} {name!r}; known are: {', '.join(self.known)}")


class SettingError(EngineError, ValueError):
    """A setting or an argument is out of range."""

    def __init__(self, *, field: str, value: object, wanted: str) -> None:
        self.field = field
        self.value = value
        super().__init__(f"{field} is {'missing' if value is None else repr(value)}; it must be {wanted}")


class ModelDoesNotFitError(EngineError):
    """The weights and at least one block of KV do not fit the instance's GPUs."""


class RequestTooLargeError(EngineError):
    """The request needs more KV than the whole pool holds, so it could never run."""

    def __init__(self, *, request_id: str, needed_tokens: int, capacity_tokens: int) -> None:
        self.request_id = request_id
        self.needed_tokens = needed_tokens
        self.capacity_tokens = capacity_tokens
        super().__init__(
            f"request {request_id!r} needs KV for {needed_tokens} tokens (prompt and max_tokens); "
            f"this instance holds {capacity_tokens} at most"
        )


class UnknownRequestError(EngineError, KeyError):
    """No live request has this id."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"no live request has the id {request_id!r}")

    def __str__(self) -> str:
        return str(self.args[0])


class DuplicateRequestError(EngineError):
    """A live request already has this id."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"a live request already has the id {request_id!r}; ids must be unique while a request lives")


class ClockError(EngineError):
    """A caller's time lies before a time the engine has already seen."""

    def __init__(self, *, what: str, now_seconds: float, seen_seconds: float) -> None:
        self.now_seconds = now_seconds
        self.seen_seconds = seen_seconds
        super().__init__(
            f"{what} at {now_seconds!r} s, but {seen_seconds!r} s has been seen already; time never runs back"
        )
