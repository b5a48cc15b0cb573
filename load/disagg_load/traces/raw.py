"""What every trace format hands over: a request whose time still counts in the trace's own clock.

Times stay exact decimals until the origin is subtracted: an epoch time in floating point seconds has a resolution of
0.2 µs, and the same trace written relative, in epoch seconds and in epoch milliseconds has to read the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from disagg_load.requests import DEFAULT_BLOCK_TOKENS

Fail = Callable[[str], NoReturn]
"""Raises the `TraceError` of the line at hand with the problem it is given."""

LONGEST_TOKENS = 2**31 - 1
"""More tokens than any request has; what is above is a mistake, and would not fit into `disagg_load.columns`."""

FailAt = Callable[[int], Fail]
"""Gives the `Fail` of a line number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """One parsed line. `time` counts the trace's unit from an origin that only the trace knows."""

    line: int
    time: Decimal
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    prompt: str | tuple[int, ...] | None = None


def parse_object(text: str, fail: Fail) -> dict[str, Any]:
    """One JSON object of a JSON-lines file, numbers with a fraction as `Decimal`."""
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=lambda name: Decimal(name))
    except ValueError as error:
        fail(f"not a JSON object ({error})")
    if not isinstance(value, dict):
        fail(f"a JSON object is needed, found {_short(value)}")
    return value


def parse_time(value: object, *, field: str, fail: Fail) -> Decimal:
    """A point in time: a finite number, as a JSON number or as text."""
    if value is None or value == "":
        fail(f"{field} is missing, every request needs an arrival time")
    try:
        time = Decimal(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else value
    except InvalidOperation:
        time = value
    if not isinstance(time, Decimal):
        fail(f"{field} is {_short(value)}, a number is needed")
    if not time.is_finite():
        fail(f"{field} is {time}, a finite number is needed")
    return time


def parse_tokens(value: object, *, field: str, fail: Fail) -> int:
    """A number of tokens: a whole number of at least 1."""
    if value is None or value == "":
        fail(f"{field} is missing, every request needs a number of tokens")
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        fail(f"{field} is {_short(value)}, a whole number of tokens is needed")
    if value < 1:
        fail(f"{field} is {value}, at least 1 token is needed")
    if value > LONGEST_TOKENS:
        fail(f"{field} is {_short(value)}, at most {LONGEST_TOKENS} tokens make sense")
    return value


def parse_ids(value: object, *, field: str, fail: Fail) -> tuple[int, ...]:
    """A list of whole, non-negative numbers: block hash ids or token ids."""
    if not isinstance(value, list):
        fail(f"{field} is {_short(value)}, a list of whole numbers is needed")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            fail(f"{field} holds {_short(item)}, whole numbers of at least 0 are needed")
    return tuple(value)


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
