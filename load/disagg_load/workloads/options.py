"""The values of options of a named load: text in, numbers and curves out, or a sentence that says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite

from disagg_load.errors import WorkloadError

from .curves import Curve, Cycle, Noise, Product, burst, ramp, steps

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_TIME = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|s))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)", re.ASCII)


def number(options: Mapping[str, str], name: str, default: float) -> float:
    """A number above 0, or what it is where the option is not given."""
    if name not in options:
        return default
    try:
        value = float(options[name])
    except ValueError:
        raise WorkloadError(f"{name} is {options[name]!r}, a number is needed") from None
    if not (isfinite(value) and value > 0):
        raise WorkloadError(f"{name} is {options[name]}, a number above 0 is needed")
    return value


def whole(options: Mapping[str, str], name: str, default: int) -> int:
    """A whole number above 0, or what it is where the option is not given."""
    value = number(options, name, default)
    if value != int(value):
        raise WorkloadError(f"{name} is {options[name]}, a whole number is needed")
    return int(value)


def curve(options: Mapping[str, str]) -> Curve | None:
    """What the options make of the rate; None where none of them is given."""
    found: list[Curve] = []
    if "cycle" in options:
        amplitude, period = _parts(options, "cycle", "AMPLITUDE:PERIOD like 0.5:3h", 2)
        found.append(Cycle(_factor(amplitude, "cycle"), _seconds(period, "cycle")))
    if "burst" in options:
        wanted = "FACTOR:START:END or FACTOR:START:END:RAMP like 2:4h20m:4h50m:8m"
        factor, *times = _parts(options, "burst", wanted, 3, 4)
        found.append(burst(_factor(factor, "burst"), *(_seconds(time, "burst") for time in times)))
    if "ramp" in options:
        factor, *times = _parts(options, "ramp", "FACTOR:START:END like 3:10m:20m", 3)
        found.append(ramp(_factor(factor, "ramp"), *(_seconds(time, "ramp") for time in times)))
    if "steps" in options:
        pairs = [pair.split(":") for pair in options["steps"].split(",")]
        if any(len(pair) != 2 for pair in pairs):
            raise WorkloadError(f"steps is {options['steps']!r}, START:FACTOR,... like 10m:2,20m:1 is needed")
        found.append(steps(tuple((_seconds(start, "steps"), _factor(factor, "steps")) for start, factor in pairs)))
    if "noise" in options:
        found.append(Noise(number(options, "noise", 0)))
    return Product(tuple(found)) if found else None


def _parts(options: Mapping[str, str], name: str, wanted: str, *counts: int) -> list[str]:
    parts = options[name].split(":")
    if len(parts) not in counts:
        raise WorkloadError(f"{name} is {options[name]!r}, {wanted} is needed")
    return parts


def _factor(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WorkloadError(f"{name} has {text!r} where a number is needed") from None


def _seconds(text: str, name: str) -> float:
    """A time like 90, 1.5h or 4h20m."""
    if _TIME.fullmatch(text):
        return sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(text))
    try:
        return float(text)
    except ValueError:
        raise WorkloadError(f"{name} has {text!r} where a time like 90, 90s or 4h20m is needed") from None
