"""Replicas for a load: the formulas, and what an instance can take within the SLO.

    prefill = ceil(req/s · isl · (1 - hit rate) · k_TTFT / tokens/s of an instance within the TTFT SLO)
    decode  = ceil(req/s · osl / tokens/s of an instance within the TPOT SLO at context isl + osl/2)

*Prefill.* What an instance can take within the TTFT SLO depends on how many share the queue. So n is the smallest
number for which the promised share of the prompts has

    D k + wait of M/D/n(rate, S k) + transfer <= TTFT SLO

with D the profile's time of one prompt, S the time it occupies an instance (equal to D without pipeline stages) and
k = k_TTFT. "tokens/s of an instance within the SLO" is the highest rate that keeps this for n, divided by n.

*Decode.* An instance slowed by k = k_TPOT keeps the SLO as long as the profile's step is within TPOT SLO / k, and then
makes 1/k of the profile's tokens per second.

*Infeasible.* When an idle instance already misses the SLO, no number of instances helps: then n is what the throughput
needs at 90 % utilisation, and the result says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from disagg_planner.core.interpolation import ProfileTable
from disagg_planner.core.queueing import wait_quantile

BEST_EFFORT_UTILISATION = 0.9
MOST_INSTANCES = 10_000
"""Where the search for n ends; far above what a group may have."""
_BISECTIONS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Load to be served: arrivals per engine second and mean lengths in tokens."""

    requests_per_second: float
    input_tokens: float
    output_tokens: float
    hit_rate: float = 0.0

    @property
    def prefill_tokens(self) -> float:
        """Prompt tokens of a request that no cache supplies."""
        return max(self.input_tokens * (1 - self.hit_rate), 1.0)

    @property
    def context_tokens(self) -> float:
        """Mean context while a request decodes."""
        return self.input_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Instances that a load needs, and why. `tokens_per_second` is what one instance takes within the SLO."""

    instances: int
    tokens_per_second: float
    load_tokens_per_second: float
    feasible: bool = True
    idle_latency_seconds: float = 0.0
    """Latency of a lone request on an idle instance: what the SLO is infeasible against."""


def ceil_instances(load: float, capacity: float) -> int:
    """ceil(load / capacity), forgiving rounding noise; 0 for no load. `capacity` is positive."""
    needed = load / capacity
    if not math.isfinite(needed):
        return MOST_INSTANCES
    return min(math.ceil(needed - 1e-9), MOST_INSTANCES)


def size_prefill(
    table: ProfileTable,
    demand: Demand,
    *,
    slo_seconds: float,
    attainment: float,
    correction: float = 1.0,
    transfer_seconds: float = 0.0,
) -> Sizing:
    """Prefill instances for a demand; see the module."""
    tokens = demand.prefill_tokens
    load = demand.requests_per_second * tokens
    alone = table.ttft_seconds(tokens) * correction
    service = table.prefill_service_seconds(tokens) * correction
    slack = slo_seconds - alone - transfer_seconds
    offered = demand.requests_per_second * service
    if slack < 0:
        capacity = BEST_EFFORT_UTILISATION * tokens / service
        return Sizing(
            instances=ceil_instances(load, capacity),
            tokens_per_second=capacity,
            load_tokens_per_second=load,
            feasible=False,
            idle_latency_seconds=alone + transfer_seconds,
        )

    def late(servers: int, offered: float) -> bool:
        return wait_quantile(servers=servers, offered=offered, service_seconds=service, q=attainment) > slack

    instances = math.floor(min(offered, MOST_INSTANCES - 1)) + 1 if offered > 0 else 0
    while 0 < instances < MOST_INSTANCES and late(instances, offered):
        instances += 1
    servers = max(instances, 1)
    low, high = 0.0, float(servers)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if late(servers, middle) else (middle, high)
    return Sizing(
        instances=instances,
        tokens_per_second=low / service / servers * tokens,
        load_tokens_per_second=load,
        idle_latency_seconds=alone + transfer_seconds,
    )


def size_decode(table: ProfileTable, demand: Demand, *, slo_seconds: float, correction: float = 1.0) -> Sizing:
    """Decode instances for a demand; see the module."""
    load = demand.requests_per_second * demand.output_tokens
    best = table.best_decode(demand.context_tokens, slo_seconds / correction)
    alone = table.tpot_seconds(demand.context_tokens, 1) * correction
    if best.tokens_per_second > 0:
        capacity, feasible = best.tokens_per_second / correction, True
    else:
        most = table.best_decode(demand.context_tokens, math.inf).tokens_per_second
        capacity, feasible = BEST_EFFORT_UTILISATION * most / correction, False
    return Sizing(
        instances=ceil_instances(load, capacity),
        tokens_per_second=capacity,
        load_tokens_per_second=load,
        feasible=feasible,
        idle_latency_seconds=alone,
    )
