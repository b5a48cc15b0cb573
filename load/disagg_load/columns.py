"""Requests as columns: the form of a workload that a simulation of millions of requests can afford.

A `Workload` is a tuple of objects and suits traces and replays; `Columns` holds the same facts in flat arrays, 16 bytes
a request. `disagg_load.workloads.drawing.draw` draws them from distributions, `builtin_columns` from the name of a
load, `disagg_load.traces.columns` reads them from traces. `at_rate`, `between` and `first` make other loads of the same
requests. Arrival times ascend from 0 (equal ones keep their order), lengths are at least 1.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from math import isfinite

from disagg_load.errors import WorkloadError
from disagg_load.requests import DEFAULT_BLOCK_TOKENS, TraceRequest, Workload, WorkloadStatistics, statistics


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Requests 0 … n − 1 in order of arrival.

    arrival_seconds: array of "d". input_tokens, output_tokens: arrays of "i"; the output length is what is generated.
    hash_ids: for each request the ids of its prompt's blocks of `block_tokens` (the last may be partial), chained as in
    `disagg_load.requests`; None where no prompt shares a prefix.
    priorities: array of "i", higher first; None where all are equal.
    sessions: array of "i", the number of the conversation that a request is a turn of; None where there are none.
    """

    name: str
    arrival_seconds: array[float]
    input_tokens: array[int]
    output_tokens: array[int]
    hash_ids: Sequence[Sequence[int]] | None = None
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    priorities: array[int] | None = None
    sessions: array[int] | None = None

    def __post_init__(self) -> None:
        count = len(self.arrival_seconds)
        for field in ("input_tokens", "output_tokens", "hash_ids", "priorities", "sessions"):
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

    def statistics(self) -> WorkloadStatistics:
        """What describes these requests in one line; at least one is needed."""
        return statistics(
            arrival_seconds=self.arrival_seconds,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            hash_ids=self.hash_ids,
        )

    def workload(self) -> Workload:
        """The same requests as objects (priorities and sessions have no place there)."""
        nothing: Sequence[int] = ()
        rows = zip(
            self.arrival_seconds,
            self.input_tokens,
            self.output_tokens,
            repeat(nothing) if self.hash_ids is None else self.hash_ids,
            strict=self.hash_ids is not None,
        )
        return Workload(
            name=self.name,
            requests=tuple(
                TraceRequest(
                    arrival_seconds=time, input_tokens=input_tokens, output_tokens=output_tokens, hash_ids=tuple(ids)
                )
                for time, input_tokens, output_tokens, ids in rows
            ),
            block_tokens=self.block_tokens,
        )

    def first(self, count: int) -> Columns:
        """The first `count` requests (all, where there are fewer)."""
        return self._slice(0, max(0, min(count, len(self))))

    def between(self, start_seconds: float, stop_seconds: float) -> Columns:
        """The requests that arrive from `start_seconds` (inclusive) to `stop_seconds`; the first of them becomes 0.

        Raises WorkloadError where there is none.
        """
        start = bisect_left(self.arrival_seconds, start_seconds)
        stop = bisect_left(self.arrival_seconds, stop_seconds)
        if start >= stop:
            raise WorkloadError(
                f"no request of {self.name} arrives from {start_seconds:g} to {stop_seconds:g} s; the last arrives at "
                f"{self.span_seconds:g} s"
            )
        return self._slice(start, stop)

    def _slice(self, start: int, stop: int) -> Columns:
        times = self.arrival_seconds[start:stop]
        if times and times[0] != 0:
            origin = times[0]
            times = array("d", (time - origin for time in times))
        return replace(
            self,
            arrival_seconds=times,
            input_tokens=self.input_tokens[start:stop],
            output_tokens=self.output_tokens[start:stop],
            hash_ids=None if self.hash_ids is None else self.hash_ids[start:stop],
            priorities=None if self.priorities is None else self.priorities[start:stop],
            sessions=None if self.sessions is None else self.sessions[start:stop],
        )

    def at_rate(self, factor: float) -> Columns:
        """The same requests, `factor` times as many a second. Raises WorkloadError for a factor that is none."""
        if not (isfinite(factor) and factor > 0):
            raise WorkloadError(f"a rate factor of {factor} was asked for, a number above 0 is needed")
        return replace(self, arrival_seconds=array("d", (time / factor for time in self.arrival_seconds)))
