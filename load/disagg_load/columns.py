"""Requests as columns: the form of a workload that a simulation of millions of requests can afford.

A `Workload` is a tuple of objects and suits traces and replays; `Columns` holds the same facts in flat arrays, 16 bytes
a request. Arrival times ascend from 0 (equal ones keep their order), lengths are at least 1.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from disagg_load.errors import WorkloadError
from disagg_load.requests import DEFAULT_BLOCK_TOKENS, Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Requests 0 … n − 1 in order of arrival.

    arrival_seconds: array of "d". input_tokens, output_tokens: arrays of "i"; the output length is what is generated.
    hash_ids: for each request the ids of its prompt's blocks of `block_tokens` (the last may be partial), chained as in
    `disagg_load.requests`; None where no prompt shares a prefix.
    priorities: array of "i", higher first; None where all are equal.
    """

    name: str
    arrival_seconds: array[float]
    input_tokens: array[int]
    output_tokens: array[int]
    hash_ids: Sequence[Sequence[int]] | None = None
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    priorities: array[int] | None = None

    def __post_init__(self) -> None:
        count = len(self.arrival_seconds)
        for field in ("input_tokens", "output_tokens", "hash_ids", "priorities"):
            column = getattr(self, field)
            if column is not None and len(column) != count:
                raise WorkloadError(f"{field} has {len(column)} rows; {count} are needed, one a request")

    def __len__(self) -> int:
        return len(self.arrival_seconds)

    @property
    def span_seconds(self) -> float:
        """Time of the last arrival (0 without requests)."""
        return self.arrival_seconds[-1] if len(self) else 0.0

    @classmethod
    def of(cls, workload: Workload) -> Columns:
        """The same requests as columns."""
        requests = workload.requests
        shared = any(request.hash_ids for request in requests)
        return cls(
            name=workload.name,
            arrival_seconds=array("d", (request.arrival_seconds for request in requests)),
            input_tokens=array("i", (request.input_tokens for request in requests)),
            output_tokens=array("i", (request.output_tokens for request in requests)),
            hash_ids=[request.hash_ids for request in requests] if shared else None,
            block_tokens=workload.block_tokens,
        )

    def at_rate(self, factor: float) -> Columns:
        """The same requests, `factor` times as many a second. Raises WorkloadError for a factor that is none."""
        if not (isfinite(factor) and factor > 0):
            raise WorkloadError(f"a rate factor of {factor} was asked for, a number above 0 is needed")
        return Columns(
            name=self.name,
            arrival_seconds=array("d", (time / factor for time in self.arrival_seconds)),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            hash_ids=self.hash_ids,
            block_tokens=self.block_tokens,
            priorities=self.priorities,
        )
