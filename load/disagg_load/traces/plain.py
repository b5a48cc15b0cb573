"""Traces in which nothing is unusual, read fast.

The parsers beside this module accept a lot (any order of columns, numbers as text, decimals, offsets from UTC) and say
what is wrong with the rest; that takes 8 to 15 µs a line. Nearly all traces are plainer than that. `read_plain` takes
one, 5 times as fast, only if every line is as plain as can be and its times are exact as they stand, and gives None
otherwise: then the careful reader has to look, and has the last word on whether the trace is right and what to say
about it. Whatever is read here, it reads the same.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated

import msgspec

from disagg_load.columns import Columns
from disagg_load.requests import DEFAULT_BLOCK_TOKENS

from . import azure, mooncake, own
from .raw import LONGEST_TOKENS
from .reader import EPOCH_SECONDS, TimeUnit, TraceFormat

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=LONGEST_TOKENS)]
_Ids = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


class _MooncakeLine(msgspec.Struct, gc=False):
    timestamp: int
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: _Ids = ()


class _OwnLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    arrival_seconds: int | float
    input_tokens: _Tokens
    output_tokens: _Tokens
    hash_ids: _Ids = ()
    block_tokens: _Tokens = DEFAULT_BLOCK_TOKENS


_MOONCAKE = msgspec.json.Decoder(_MooncakeLine)
_OWN = msgspec.json.Decoder(_OwnLine)
_AZURE = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,7}))?(?:Z|\+00:00)?,(\d{1,9}),(\d{1,9})$", re.ASCII | re.MULTILINE
)
_AZURE_HEADER = ",".join(azure.COLUMNS)
_EXACT_IN_FLOATS = 2**53
_TICKS = 10**7
"""Azure's clock counts ten million a second."""


def read_plain(text: bytes, *, source: str, form: TraceFormat | None, unit: TimeUnit | None) -> Columns | None:
    """The requests of a plain trace, in order; None where it is not plain, which says nothing about its being right."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if not text.isascii() or b"\r" in text:
        return None
    first = text[: text.find(b"\n")].decode()
    readers: tuple[tuple[TraceFormat, Callable[[str], bool], Callable[..., Columns | None]], ...] = (
        (TraceFormat.AZURE, azure.recognises, _read_azure),
        (TraceFormat.MOONCAKE, mooncake.recognises, _read_mooncake),
        (TraceFormat.OWN, own.recognises, _read_own),
    )
    for name, recognises, read in readers:
        if name is form or (form is None and recognises(first)):
            return read(text, source, unit)
    return None


def _read_mooncake(text: bytes, source: str, unit: TimeUnit | None) -> Columns | None:
    try:
        rows = [_MOONCAKE.decode(line) for line in text.split(b"\n") if line]
    except msgspec.DecodeError:
        return None
    if not all(_blocks_fit(row.hash_ids, row.input_length, DEFAULT_BLOCK_TOKENS) for row in rows):
        return None
    times = [row.timestamp for row in rows]
    furthest = EPOCH_SECONDS if unit is TimeUnit.SECONDS else _EXACT_IN_FLOATS
    if not all(abs(time) < furthest for time in times):
        return None
    return _columns(
        source,
        times,
        counts_a_second=1 if unit is TimeUnit.SECONDS else 1000,
        input_tokens=[row.input_length for row in rows],
        output_tokens=[row.output_length for row in rows],
        hash_ids=[row.hash_ids for row in rows],
    )


def _read_own(text: bytes, source: str, unit: TimeUnit | None) -> Columns | None:
    try:
        rows = [_OWN.decode(line) for line in text.split(b"\n") if line]
    except msgspec.DecodeError:
        return None
    times = [row.arrival_seconds for row in rows]
    # Subtracting an origin from binary fractions is not exact, so plain are those that begin at 0.
    if unit is TimeUnit.MILLISECONDS or not times or min(times) != 0 or max(times) >= EPOCH_SECONDS:
        return None
    size = rows[0].block_tokens
    if not all(row.block_tokens == size and _blocks_fit(row.hash_ids, row.input_tokens, size) for row in rows):
        return None
    return _columns(
        source,
        times,
        counts_a_second=1,
        input_tokens=[row.input_tokens for row in rows],
        output_tokens=[row.output_tokens for row in rows],
        hash_ids=[row.hash_ids for row in rows],
        block_tokens=size,
    )


def _read_azure(text: bytes, source: str, unit: TimeUnit | None) -> Columns | None:
    header, _, body = text.decode().partition("\n")
    rows = _AZURE.findall(body)
    lines = body.count("\n") + (not body.endswith("\n"))
    if header != _AZURE_HEADER or len(rows) != lines or unit is TimeUnit.MILLISECONDS:
        return None
    stamps, fractions, inputs, outputs = zip(*rows, strict=True)
    whole: dict[str, int] = {}
    try:
        for stamp in set(stamps):
            whole[stamp] = _TICKS * int(datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None
    input_tokens, output_tokens = [*map(int, inputs)], [*map(int, outputs)]
    if min(whole.values()) < EPOCH_SECONDS * _TICKS or min(input_tokens) < 1 or min(output_tokens) < 1:
        return None
    return _columns(
        source,
        [whole[stamp] + int(fraction.ljust(7, "0")) for stamp, fraction in zip(stamps, fractions, strict=True)],
        counts_a_second=_TICKS,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


def _blocks_fit(hash_ids: Sequence[int], tokens: int, block_tokens: int) -> bool:
    return not hash_ids or len(hash_ids) == -(-tokens // block_tokens)


def _columns(
    source: str,
    times: Sequence[float],
    *,
    counts_a_second: int,
    input_tokens: Sequence[int],
    output_tokens: Sequence[int],
    hash_ids: Sequence[Sequence[int]] | None = None,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
) -> Columns | None:
    if not times:
        return None
    if not all(earlier <= later for earlier, later in pairwise(times)):
        order = sorted(range(len(times)), key=times.__getitem__)
        times = [times[place] for place in order]
        input_tokens = [input_tokens[place] for place in order]
        output_tokens = [output_tokens[place] for place in order]
        hash_ids = None if hash_ids is None else [hash_ids[place] for place in order]
    origin = times[0]
    return Columns(
        name=source,
        arrival_seconds=array("d", [(time - origin) / counts_a_second for time in times]),
        input_tokens=array("i", input_tokens),
        output_tokens=array("i", output_tokens),
        hash_ids=hash_ids if hash_ids is not None and any(hash_ids) else None,
        block_tokens=block_tokens,
    )
