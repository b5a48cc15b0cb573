"""This project's own format: JSON lines that say their unit in the field's name.

    {"arrival_seconds": 0.25, "input_tokens": 755, "output_tokens": 200}
    {"arrival_milliseconds": 250, "input_tokens": 1024, "output_tokens": 64, "hash_ids": [0, 7], "block_tokens": 512}
    {"arrival_seconds": 0.5, "input_tokens": 3, "output_tokens": 16, "prompt": "a literal prompt"}

`hash_ids` (one for each block of `block_tokens` input tokens, 512 by default) and `prompt` (text, or a list of token
ids) are optional. `write` gives the same format back, so that any workload can be kept and read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from disagg_load.requests import DEFAULT_BLOCK_TOKENS, Workload

from .raw import Fail, FailAt, RawRequest, parse_ids, parse_object, parse_time, parse_tokens

SECONDS = "arrival_seconds"
MILLISECONDS = "arrival_milliseconds"
_FIELDS = {SECONDS, MILLISECONDS, "input_tokens", "output_tokens", "hash_ids", "block_tokens", "prompt"}


def recognises(first_line: str) -> bool:
    """Whether a file whose first line is this one is such a trace."""
    return first_line.startswith("{") and '"input_tokens"' in first_line


def parse(lines: Iterable[tuple[int, str]], fail_at: FailAt) -> Iterator[RawRequest]:
    """The requests of numbered lines; every line must use the unit and the block size of the first."""
    unit: str | None = None
    block_tokens: int | None = None
    for number, text in lines:
        fail = fail_at(number)
        row = parse_object(text, fail)
        unknown = sorted(set(row) - _FIELDS)
        if unknown:
            fail(f"unknown field {unknown[0]!r}, known are {', '.join(sorted(_FIELDS))}")
        units = [name for name in (SECONDS, MILLISECONDS) if name in row]
        if len(units) == 2:
            fail(f"both {SECONDS} and {MILLISECONDS} are given, one is needed")
        here = units[0] if units else unit or SECONDS
        if unit is not None and here != unit:
            fail(f"{here} where the lines before have {unit}; a trace has one unit")
        unit = here
        size = parse_tokens(row.get("block_tokens", DEFAULT_BLOCK_TOKENS), field="block_tokens", fail=fail)
        if block_tokens is not None and size != block_tokens:
            fail(f"block_tokens is {size} where the lines before have {block_tokens}; a trace has one block size")
        block_tokens = size
        yield _parse_row(row, line=number, unit=unit, block_tokens=size, fail=fail)


def _parse_row(row: dict[str, Any], *, line: int, unit: str, block_tokens: int, fail: Fail) -> RawRequest:
    time = parse_time(row.get(unit), field=unit, fail=fail)
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        prompt = parse_ids(prompt, field="prompt", fail=fail)
    elif prompt is not None and not isinstance(prompt, str):
        fail("prompt is neither text nor a list of token ids")
    if isinstance(prompt, tuple) and "input_tokens" not in row:
        row["input_tokens"] = len(prompt)
    input_tokens = parse_tokens(row.get("input_tokens"), field="input_tokens", fail=fail)
    if isinstance(prompt, tuple) and len(prompt) != input_tokens:
        fail(f"prompt has {len(prompt)} token ids, input_tokens says {input_tokens}")
    hash_ids = parse_ids(row.get("hash_ids", []), field="hash_ids", fail=fail)
    blocks = -(-input_tokens // block_tokens)
    if hash_ids and len(hash_ids) != blocks:
        fail(f"{len(hash_ids)} hash_ids for {input_tokens} input tokens, {blocks} blocks of {block_tokens} are needed")
    return RawRequest(
        line=line,
        time=time.scaleb(-3) if unit == MILLISECONDS else time,
        input_tokens=input_tokens,
        output_tokens=parse_tokens(row.get("output_tokens"), field="output_tokens", fail=fail),
        hash_ids=hash_ids,
        block_tokens=block_tokens,
        prompt=prompt,
    )


def write(workload: Workload) -> Iterator[str]:
    """The workload as lines of this format, each with its newline."""
    for request in workload.requests:
        row: dict[str, Any] = {
            SECONDS: request.arrival_seconds,
            "input_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
        }
        if request.hash_ids:
            row["hash_ids"] = list(request.hash_ids)
        if workload.block_tokens != DEFAULT_BLOCK_TOKENS:
            row["block_tokens"] = workload.block_tokens
        if request.prompt is not None:
            row["prompt"] = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        yield json.dumps(row, ensure_ascii=False) + "\n"
