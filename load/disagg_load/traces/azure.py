"""The traces of Azure's LLM inference service: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Timestamps are calendar times with up to seven digits of a second and sometimes an offset from UTC, e.g.
`2023-11-16 18:15:46.6805900` or `2024-05-10 00:00:00.009930+00:00`. Columns are found by name, in any order.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal

from .raw import Fail, FailAt, RawRequest, parse_tokens

TIME, INPUT, OUTPUT = COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def recognises(first_line: str) -> bool:
    """Whether a file whose first line is this one is such a trace."""
    return set(COLUMNS) <= {name.strip() for name in first_line.split(",")}


def parse(lines: Iterable[tuple[int, str]], fail_at: FailAt) -> Iterator[RawRequest]:
    """The requests of numbered lines, the first of which is the header."""
    places: dict[str, int] | None = None
    width = 0
    for number, text in lines:
        fail = fail_at(number)
        cells = [cell.strip() for cell in next(csv.reader([text]))]
        if places is None:
            missing = [name for name in COLUMNS if name not in cells]
            if missing:
                fail(f"the header lacks the column {', '.join(missing)}; needed are {', '.join(COLUMNS)}")
            places = {name: cells.index(name) for name in COLUMNS}
            width = len(cells)
            continue
        if len(cells) != width:
            fail(f"{len(cells)} columns, the header has {width}")
        yield RawRequest(
            line=number,
            time=_parse_stamp(cells[places[TIME]], fail),
            input_tokens=parse_tokens(cells[places[INPUT]], field=INPUT, fail=fail),
            output_tokens=parse_tokens(cells[places[OUTPUT]], field=OUTPUT, fail=fail),
        )


def _parse_stamp(text: str, fail: Fail) -> Decimal:
    if not text or text.lower() in ("nan", "nat", "null"):
        fail(f"{TIME} is missing, every request needs an arrival time")
    found = _STAMP.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        day, clock, fraction, offset = found.groups()
        moment = datetime.fromisoformat(f"{day}T{clock}{offset or '+00:00'}")
    except ValueError:
        fail(f"{TIME} is {text[:40]!r}, a time like 2023-11-16 18:15:46.6805900 is needed")
    whole = int((moment - _EPOCH).total_seconds())
    return whole + Decimal(fraction or "0")
