"""From the bytes of a trace file to requests, as columns or as objects.

`plain.read_plain` has the first look; what is not plain goes to `reader.read_trace`, which also finds the words for
what is wrong.
"""

from __future__ import annotations

from io import StringIO

from disagg_load.columns import Columns
from disagg_load.errors import TraceError
from disagg_load.requests import Workload

from .plain import read_plain
from .reader import TimeUnit, TraceFormat, read_trace


def read_columns(
    text: bytes,
    *,
    source: str,
    form: TraceFormat | None = None,
    unit: TimeUnit | None = None,
    limit: int | None = None,
) -> Columns:
    """The requests of a trace as columns; `disagg_load.traces.reader.read_trace` explains the arguments.

    Literal prompts have no place there and are left out. Raises `TraceError`.
    """
    plain = read_plain(text, source=source, form=form, unit=unit)
    if plain is None:
        return Columns.of(_read_carefully(text, source=source, form=form, unit=unit, limit=limit))
    return plain if limit is None else plain.first(limit)


def read_workload(
    text: bytes,
    *,
    source: str,
    form: TraceFormat | None = None,
    unit: TimeUnit | None = None,
    limit: int | None = None,
) -> Workload:
    """The same requests as objects, with literal prompts. Raises `TraceError`."""
    plain = read_plain(text, source=source, form=form, unit=unit)
    if plain is None:
        return _read_carefully(text, source=source, form=form, unit=unit, limit=limit)
    return (plain if limit is None else plain.first(limit)).workload()


def _read_carefully(
    text: bytes, *, source: str, form: TraceFormat | None, unit: TimeUnit | None, limit: int | None
) -> Workload:
    try:
        lines = StringIO(text.decode(), newline=None)
    except UnicodeDecodeError as error:
        problem = f"not a text file ({error.reason} at byte {error.start})"
        raise TraceError(source=source, line=None, problem=problem) from None
    return read_trace(lines, source=source, form=form, unit=unit, limit=limit)
