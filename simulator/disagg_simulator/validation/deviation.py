"""What an error is.

The error of one figure is (modelled − measured) / measured. Over many: MAPE is the mean of its absolute value, the
median and the 90th percentile are those of the absolute value, and the bias is the mean with its sign, so a model that
is always late by a tenth has a bias of +0.1 and one that is as often early as late has none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from disagg_engine.timemodel.calibration import rounded

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors over `count` figures, as shares (0.1 is 10 %)."""

    count: int
    mape: float
    median: float
    p90: float
    bias: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: value if name == "count" else rounded(value) for name, value in asdict(self).items()}


def errors_of(modelled: Sequence[float], measured: Sequence[float]) -> Errors | None:
    """Errors of as many modelled figures as measured ones; None without any."""
    signed = [model / real - 1.0 for model, real in zip(modelled, measured, strict=True)]
    if not signed:
        return None
    sizes = sorted(abs(value) for value in signed)
    return Errors(
        count=len(signed),
        mape=sum(sizes) / len(sizes),
        median=percentile(sizes, 0.5),
        p90=percentile(sizes, 0.9),
        bias=sum(signed) / len(signed),
    )


def by(keys: Sequence[Key], modelled: Sequence[float], measured: Sequence[float]) -> dict[Key, Errors]:
    """Errors apart for each key, in the order of first appearance."""
    found: dict[Key, Errors] = {}
    for key in dict.fromkeys(keys):
        places = [place for place, other in enumerate(keys) if other == key]
        errors = errors_of([modelled[place] for place in places], [measured[place] for place in places])
        assert errors is not None
        found[key] = errors
    return found


def percentile(ascending: Sequence[float], share: float) -> float:
    """The value below which that share of the sorted values lies, linear between neighbours."""
    position = share * (len(ascending) - 1)
    low = int(position)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (position - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Mean and percentiles of one quantity, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figures:
        """Figures of at least one value."""
        ordered = sorted(values)
        p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
        return cls(mean=sum(ordered) / len(ordered), p50=p50, p90=p90, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One quantity of the same requests, measured and modelled: both distributions, and the errors one by one."""

    measured: Figures
    modelled: Figures
    requests: Errors

    @classmethod
    def of(cls, modelled: Sequence[float], measured: Sequence[float]) -> Comparison:
        """Comparison over at least one request, in the same order."""
        errors = errors_of(modelled, measured)
        assert errors is not None
        return cls(measured=Figures.of(measured), modelled=Figures.of(modelled), requests=errors)

    def to_json(self) -> dict[str, Any]:
        """Plain values; `ratio` is modelled / measured."""
        measured, modelled = asdict(self.measured), asdict(self.modelled)
        return {
            "measured": {name: rounded(value) for name, value in measured.items()},
            "modelled": {name: rounded(value) for name, value in modelled.items()},
            "ratio": {name: rounded(modelled[name] / measured[name]) for name in measured},
            "requests": self.requests.to_json(),
        }
