"""From text lines to a `Workload`: what all formats share.

Flow: numbered lines → the format's parser → `RawRequest`s on the trace's own clock → one origin, one order → requests.
The format is told by the first line, or declared. The unit of the clock is the format's (Azure: calendar time,
Mooncake: milliseconds, own: in the field's name) unless it is declared. The first arrival becomes 0, so a trace reads
the same whether its times are relative or count from 1970; times that mix both, or that can't be in the unit they
claim, are errors, because replaying them would stall or send everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import chain, islice
from typing import NoReturn

from disagg_load.errors import TraceError
from disagg_load.requests import TraceRequest, Workload

from . import azure, mooncake, own
from .raw import Fail, FailAt, RawRequest


class TraceFormat(StrEnum):
    """The formats that can be read."""

    AZURE = "azure"
    MOONCAKE = "mooncake"
    OWN = "own"


class TimeUnit(StrEnum):
    """What one count of a trace's clock is."""

    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"


EPOCH_SECONDS = 10**8
"""Times above this many seconds (three years) can only count from a calendar's epoch."""
_FAR_FUTURE_SECONDS = 10**11
"""Times above this many seconds (the year 5138) can only be in a smaller unit than seconds."""


@dataclass(frozen=True)
class _Format:
    recognises: Callable[[str], bool]
    parse: Callable[[Iterable[tuple[int, str]], FailAt], Iterator[RawRequest]]
    unit: TimeUnit
    shape: str


_FORMATS = {
    TraceFormat.AZURE: _Format(
        azure.recognises, azure.parse, TimeUnit.SECONDS, f"Azure CSV (header {','.join(azure.COLUMNS)})"
    ),
    TraceFormat.MOONCAKE: _Format(
        mooncake.recognises, mooncake.parse, TimeUnit.MILLISECONDS, "Mooncake JSON lines (timestamp, input_length, ...)"
    ),
    TraceFormat.OWN: _Format(
        own.recognises, own.parse, TimeUnit.SECONDS, "JSON lines with arrival_seconds, input_tokens, output_tokens"
    ),
}


def read_trace(
    lines: Iterable[str],
    *,
    source: str,
    form: TraceFormat | None = None,
    unit: TimeUnit | None = None,
    limit: int | None = None,
) -> Workload:
    """The workload that `lines` describe.

    `source` names the file in errors and reports. `limit` keeps the first so many requests in arrival order; every
    line is still read and checked. Raises `TraceError` for a malformed line, and for a trace without requests.
    """

    def fail_at(line: int | None) -> Fail:
        def fail(problem: str) -> NoReturn:
            raise TraceError(source=source, line=line, problem=problem)

        return fail

    numbered = ((number, text) for number, text in _clean(lines) if text)
    first = next(numbered, None)
    if first is None:
        fail_at(None)("the trace is empty")
    chosen = _FORMATS[form if form is not None else _detect(first, fail_at)]
    rows = list(chosen.parse(chain([first], numbered), fail_at))
    if not rows:
        fail_at(None)("the trace has a header and no requests")
    unit = unit or chosen.unit
    if unit is TimeUnit.SECONDS:
        _check_clock(rows, fail_at)
    return Workload(
        name=source,
        requests=tuple(islice(_in_order(rows, unit), limit)),
        block_tokens=rows[0].block_tokens,
    )


def _clean(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(lines, start=1):
        yield number, (text.removeprefix("\ufeff") if number == 1 else text).strip()


def _detect(first: tuple[int, str], fail_at: FailAt) -> TraceFormat:
    number, text = first
    for name, known in _FORMATS.items():
        if known.recognises(text):
            return name
    if text.startswith("version https://git-lfs"):
        fail_at(number)("a Git LFS pointer and not the trace itself; fetch it with `git lfs pull`")
    shapes = "; ".join(known.shape for known in _FORMATS.values())
    return fail_at(number)(f"no known trace format starts like {text[:60]!r}; known are: {shapes}")


def _check_clock(rows: list[RawRequest], fail_at: FailAt) -> None:
    epoch = abs(rows[0].time) >= EPOCH_SECONDS
    for row in rows:
        if abs(row.time) >= _FAR_FUTURE_SECONDS:
            fail_at(row.line)(f"the arrival time {row.time} can't be in seconds; declare the unit (milliseconds)")
        if (abs(row.time) >= EPOCH_SECONDS) != epoch:
            kinds = ("counts from 1970", "is relative")
            here, before = kinds if not epoch else reversed(kinds)
            fail_at(row.line)(f"the arrival time {row.time} {here} and line {rows[0].line} {before}; use one origin")


def _in_order(rows: list[RawRequest], unit: TimeUnit) -> Iterator[TraceRequest]:
    rows.sort(key=lambda row: row.time)
    origin = rows[0].time
    scale = Decimal("0.001") if unit is TimeUnit.MILLISECONDS else Decimal(1)
    for row in rows:
        yield TraceRequest(
            arrival_seconds=float((row.time - origin) * scale),
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            hash_ids=row.hash_ids,
            prompt=row.prompt,
        )
