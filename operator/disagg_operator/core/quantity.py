"""Kubernetes quantities as whole numbers.

Placement adds and compares amounts thousands of times, so every amount becomes an int once: CPU in thousandths, all
else (bytes, GPUs, pods) in units. Requests are rounded up, which errs on the side of "does not fit".
"""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from disagg_operator.errors import QuantityError

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"

_TEXT = re.compile(r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$")
_FACTORS: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}


def parse_quantity(text: str) -> Fraction:
    """Exact value of a quantity such as ``500m``, ``2Gi`` or ``1e3``. Raises QuantityError."""
    match = _TEXT.match(text.strip())
    if match is None:
        raise QuantityError(f"quantity {text!r}: use a number with an optional suffix, such as 500m or 2Gi")
    number, suffix = match.group(1), match.group(2) or ""
    if suffix in _FACTORS:
        return Fraction(number) * _FACTORS[suffix]
    return Fraction(number) * Fraction(10) ** int(suffix[1:])


def amount(resource: str, text: str | int | float) -> int:
    """Amount of ``resource`` as an int: thousandths of a CPU, units of anything else; rounded up."""
    value = parse_quantity(str(text))
    return math.ceil(value * 1000 if resource == CPU else value)


def show(resource: str, value: int) -> str:
    """An amount as a quantity a person reads: ``1500m``, ``3Gi``, ``4``."""
    if resource == CPU:
        return f"{value}m" if value % 1000 else str(value // 1000)
    if resource == MEMORY or resource.endswith("storage"):
        for suffix in ("Gi", "Mi", "Ki"):
            unit = int(_FACTORS[suffix])
            if value >= unit:
                return f"{-(-value // unit)}{suffix}"
    return str(value)
