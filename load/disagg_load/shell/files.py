"""Opening traces and writing reports."""

from __future__ import annotations

import json
from pathlib import Path

from disagg_load.errors import LoadError, TraceError
from disagg_load.report import Report
from disagg_load.requests import Workload
from disagg_load.traces.reader import TimeUnit, TraceFormat, read_trace
from disagg_load.workloads.builtin import PREFIX, builtin_workload


def load_workload(
    trace: str,
    *,
    seed: int,
    limit: int | None = None,
    form: TraceFormat | None = None,
    unit: TimeUnit | None = None,
) -> Workload:
    """The workload of a trace file, or of `builtin:NAME?...`. Raises `LoadError`."""
    if trace.startswith(PREFIX):
        return builtin_workload(trace, seed=seed, limit=limit)
    try:
        with Path(trace).open(encoding="utf-8", newline=None) as lines:
            return read_trace(lines, source=trace, form=form, unit=unit, limit=limit)
    except UnicodeDecodeError as error:
        problem = f"not a text file ({error.reason} at byte {error.start})"
        raise TraceError(source=trace, line=None, problem=problem) from None
    except OSError as error:
        raise TraceError(source=trace, line=None, problem=(error.strerror or str(error)).lower()) from None


def write_report(report: Report, path: str) -> None:
    """Write the report as JSON. Raises `LoadError` where that is not possible."""
    text = json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n"
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LoadError(f"the report can't be written to {path}: {(error.strerror or str(error)).lower()}") from None
