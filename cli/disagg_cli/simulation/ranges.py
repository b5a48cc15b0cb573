"""Lists of values on a command line: 1,2,4, or 1:5:0.5, or xPyD ratios."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from disagg_cli.parsing import positive

MOST_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Numbers of instances: prefill and decode, or colocated ones."""

    prefill: int = 0
    decode: int = 0
    workers: int = 0

    def __str__(self) -> str:
        return f"{self.workers}W" if self.workers else f"{self.prefill}P{self.decode}D"


def numbers(text: str) -> tuple[float, ...]:
    """Numbers above 0 from a list, whose parts may be ranges FROM:TO:STEP that include TO."""
    values: list[float] = []
    for part in text.split(","):
        bounds = [positive(bound) for bound in part.split(":")]
        if len(bounds) == 1:
            values += bounds
            continue
        if len(bounds) != 3 or bounds[1] < bounds[0] or (bounds[1] - bounds[0]) / bounds[2] > MOST_VALUES:
            raise argparse.ArgumentTypeError(f"{part!r} is no range like 1:5:0.5, from, to and step")
        low, high, step = bounds
        count = int((high - low) / step + 1e-9) + 1
        values += [round(low + number * step, 12) for number in range(count)]
    return tuple(values)


_RATIO = re.compile(r"(?:(\d+)P(\d+)D|(\d+)W)", re.IGNORECASE)


def ratios(text: str) -> tuple[Ratio, ...]:
    """Ratios like 2P1D (disaggregated) or 3W (colocated)."""
    found = []
    for part in text.split(","):
        match = _RATIO.fullmatch(part.strip())
        counts = [int(count) for count in match.groups() if count] if match else [0]
        if not match or min(counts) < 1:
            raise argparse.ArgumentTypeError(f"{part!r} is no ratio like 2P1D or 3W")
        found.append(Ratio(workers=counts[0]) if match[3] else Ratio(prefill=counts[0], decode=counts[1]))
    return tuple(found)
