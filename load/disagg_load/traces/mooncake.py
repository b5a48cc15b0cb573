"""Mooncake's traces: JSON lines with timestamp (ms), input_length, output_length and hash_ids.

A hash id stands for a block of 512 input tokens together with everything before it; the last block may be partial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from disagg_load.requests import DEFAULT_BLOCK_TOKENS

from .raw import FailAt, RawRequest, parse_ids, parse_object, parse_time, parse_tokens


def recognises(first_line: str) -> bool:
    """Whether a file whose first line is this one is such a trace."""
    return first_line.startswith("{") and '"timestamp"' in first_line and '"input_length"' in first_line


def parse(lines: Iterable[tuple[int, str]], fail_at: FailAt) -> Iterator[RawRequest]:
    """The requests of numbered lines."""
    for number, text in lines:
        fail = fail_at(number)
        row = parse_object(text, fail)
        input_tokens = parse_tokens(row.get("input_length"), field="input_length", fail=fail)
        hash_ids = parse_ids(row.get("hash_ids", []), field="hash_ids", fail=fail)
        blocks = -(-input_tokens // DEFAULT_BLOCK_TOKENS)
        if hash_ids and len(hash_ids) != blocks:
            fail(
                f"{len(hash_ids)} hash_ids for {input_tokens} input tokens, "
                f"{blocks} blocks of {DEFAULT_BLOCK_TOKENS} are needed"
            )
        yield RawRequest(
            line=number,
            time=parse_time(row.get("timestamp"), field="timestamp", fail=fail),
            input_tokens=input_tokens,
            output_tokens=parse_tokens(row.get("output_length"), field="output_length", fail=fail),
            hash_ids=hash_ids,
        )
