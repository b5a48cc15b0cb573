"""What a workload is: requests with an arrival time, an input length and an output length.

Readers and generators make `Workload`s, the replay client and the simulator consume them, so this module is the seam
between "where load comes from" and "what is done with it". Arrival times are seconds since the first arrival: the
first request always arrives at 0, requests are sorted, and equal times are common (traces are often rounded) and
keep the order of the source.

Requests may carry `hash_ids`, one id for each block of `Workload.block_tokens` input tokens (the last one may be
partial). Requests whose lists start alike share that prefix of their prompts, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import fsum, sqrt

from disagg_load.errors import WorkloadError

BUILTIN_PREFIX = "builtin:"
"""What the name of a load begins with that is drawn and not read from a file."""

DEFAULT_BLOCK_TOKENS = 512
"""Tokens that one hash id stands for, where a trace does not say (Mooncake's traces: 512)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a workload.

    `prompt` is the literal prompt (text or token ids) where the trace has one; otherwise `disagg_load.prompts` makes
    one of `input_tokens` tokens.
    """

    arrival_seconds: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    prompt: str | tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in arrival order, and what they are called in reports."""

    name: str
    requests: tuple[TraceRequest, ...]
    block_tokens: int = DEFAULT_BLOCK_TOKENS

    def first(self, count: int) -> Workload:
        """The first `count` requests (all, where there are fewer)."""
        return replace(self, requests=tuple(islice(self.requests, count)))

    def between(self, start_seconds: float, stop_seconds: float) -> Workload:
        """The requests that arrive from `start_seconds` (inclusive) to `stop_seconds`; the first of them becomes 0.

        Raises WorkloadError where there is none.
        """
        inside = [request for request in self.requests if start_seconds <= request.arrival_seconds < stop_seconds]
        if not inside:
            raise WorkloadError(
                f"no request of {self.name} arrives from {start_seconds:g} to {stop_seconds:g} s; the last arrives at "
                f"{self.requests[-1].arrival_seconds:g} s"
            )
        origin = inside[0].arrival_seconds
        return replace(
            self,
            requests=tuple(replace(request, arrival_seconds=request.arrival_seconds - origin) for request in inside),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatistics:
    """What describes a workload in one line; the figures that published traces are compared by.

    `interarrival_cv` is the standard deviation of the gaps between arrivals over their mean (1 for Poisson); rate and
    CV are None below two distinct arrival times, since they would not be numbers.
    """

    requests: int
    span_seconds: float
    requests_per_second: float | None
    interarrival_cv: float | None
    input_tokens_mean: float
    input_tokens_p50: float
    input_tokens_p99: float
    output_tokens_mean: float
    output_tokens_p50: float
    output_tokens_p99: float
    infinite_cache_hit_rate: float | None


def describe(requests: Sequence[TraceRequest]) -> WorkloadStatistics:
    """The statistics of a non-empty sequence of requests in arrival order."""
    return statistics(
        arrival_seconds=[request.arrival_seconds for request in requests],
        input_tokens=[request.input_tokens for request in requests],
        output_tokens=[request.output_tokens for request in requests],
        hash_ids=[request.hash_ids for request in requests],
    )


def statistics(
    *,
    arrival_seconds: Sequence[float],
    input_tokens: Sequence[int],
    output_tokens: Sequence[int],
    hash_ids: Sequence[Sequence[int]] | None,
) -> WorkloadStatistics:
    """The statistics of requests that are given as columns, in arrival order and at least one."""
    if not arrival_seconds:
        raise ValueError("requests: nothing to describe, at least one request is needed")
    span = arrival_seconds[-1] - arrival_seconds[0]
    rate = cv = None
    if span > 0:
        gaps = [later - earlier for earlier, later in pairwise(arrival_seconds)]
        mean = span / len(gaps)
        rate = len(arrival_seconds) / span
        cv = sqrt(fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
    inputs = sorted(input_tokens)
    outputs = sorted(output_tokens)
    return WorkloadStatistics(
        requests=len(arrival_seconds),
        span_seconds=span,
        requests_per_second=rate,
        interarrival_cv=cv,
        input_tokens_mean=sum(inputs) / len(inputs),
        input_tokens_p50=percentile(inputs, 50),
        input_tokens_p99=percentile(inputs, 99),
        output_tokens_mean=sum(outputs) / len(outputs),
        output_tokens_p50=percentile(outputs, 50),
        output_tokens_p99=percentile(outputs, 99),
        infinite_cache_hit_rate=infinite_cache_hit_rate(hash_ids or ()),
    )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The `percent`-th percentile of values in ascending order, with linear interpolation between neighbours."""
    position = (len(ascending) - 1) * percent / 100
    below = int(position)
    if below + 1 >= len(ascending):
        return float(ascending[-1])
    return float(ascending[below] + (ascending[below + 1] - ascending[below]) * (position - below))


def infinite_cache_hit_rate(prompts: Iterable[Sequence[int]]) -> float | None:
    """The share of prompt blocks that a cache without limits would have held when their request arrived.

    `prompts` are the hash ids of each request. Only a prefix can be reused, so a request's hits end at its first
    unknown block. None without hash ids.
    """
    seen: set[int] = set()
    hits = blocks = 0
    for ids in prompts:
        for hits_here, block in enumerate(ids):
            if block not in seen:
                hits += hits_here
                break
        else:
            hits += len(ids)
        seen.update(ids)
        blocks += len(ids)
    return hits / blocks if blocks else None
