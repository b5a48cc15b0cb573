"""Opening traces and writing reports.

NumPy is imported where something is drawn or reported, so that reading a trace does not wait for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from disagg_load.columns import Columns
from disagg_load.errors import LoadError, TraceError
from disagg_load.requests import BUILTIN_PREFIX, Workload
from disagg_load.traces.columns import read_columns, read_workload
from disagg_load.traces.reader import TimeUnit, TraceFormat

if TYPE_CHECKING:
    from disagg_load.report import Report

Window = tuple[float, float]
"""From this many seconds after the first arrival (inclusive) to that many."""


def load_workload(
    trace: str,
    *,
    seed: int,
    limit: int | None = None,
    form: TraceFormat | None = None,
    unit: TimeUnit | None = None,
    window: Window | None = None,
) -> Workload:
    """The workload of a trace file, or of `builtin:NAME?...`.

    `window` keeps what arrives within it, and `limit` the first so many of those. Raises `LoadError`.
    """
    if window is not None:
        workload = load_workload(trace, seed=seed, form=form, unit=unit).between(*window)
        return workload if limit is None else workload.first(limit)
    if trace.startswith(BUILTIN_PREFIX):
        from disagg_load.workloads.builtin import builtin_workload

        return builtin_workload(trace, seed=seed, limit=limit)
    return read_workload(_read(trace), source=trace, form=form, unit=unit, limit=limit)


def load_columns(
    trace: str,
    *,
    seed: int,
    limit: int | None = None,
    form: TraceFormat | None = None,
    unit: TimeUnit | None = None,
    window: Window | None = None,
) -> Columns:
    """The same requests as columns, without literal prompts. Raises `LoadError`."""
    if window is not None:
        columns = load_columns(trace, seed=seed, form=form, unit=unit).between(*window)
        return columns if limit is None else columns.first(limit)
    if trace.startswith(BUILTIN_PREFIX):
        from disagg_load.workloads.builtin import builtin_columns

        return builtin_columns(trace, seed=seed, limit=limit)
    return read_columns(_read(trace), source=trace, form=form, unit=unit, limit=limit)


def _read(trace: str) -> bytes:
    try:
        return Path(trace).read_bytes()
    except OSError as error:
        raise TraceError(source=trace, line=None, problem=(error.strerror or str(error)).lower()) from None


def write_report(report: Report, path: str) -> None:
    """Write the report as JSON. Raises `LoadError` where that is not possible."""
    text = json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n"
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LoadError(f"the report can't be written to {path}: {(error.strerror or str(error)).lower()}") from None
