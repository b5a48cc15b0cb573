"""REFERENCE row 23: hits alone, load alone, and the cost that balances both, through the router's own choice.

8 × H100 with Llama-3-8B, 6 apps with system prompts of 2,048 tokens, about 600 sessions of 8 turns in the mean at 120
requests/s. Published are P90 TTFTs of 165 ms for hits only against 39 ms, a session on about 6 nodes for a choice that
is blind to caches, and on 1 to 2 for the balanced one. The cost is in seconds, queueing + w · prefill, where w = 1 is
the expected TTFT.
"""

from __future__ import annotations

import pytest

from disagg_load.workloads.builtin import builtin_columns
from disagg_simulator.prefixes import simulate_prefixes
from disagg_simulator.prompts import Prompts
from disagg_simulator.routing import routing_for

HITS_ONLY = 1e9
BALANCED = 1.0
BLIND = 0.0


@pytest.mark.parametrize("seed", [1, 2])
def test_reference_row_23_the_balanced_cost_beats_hits_only(fleet, p90_ttft, nodes_of_a_session, seed):
    sessions = builtin_columns("sessions?requests=4200&rate=120", seed=seed)
    assert sessions.sessions is not None
    assert 550 < len(set(sessions.sessions)) < 700
    runs = {}
    for weight in (HITS_ONLY, BALANCED, BLIND):
        deployment = fleet.deployment("kv", overlap_weight=weight)
        routing = routing_for(
            deployment, Prompts(sessions, deployment), seed=seed, prefill_seconds=fleet.prefill_seconds
        )
        runs[weight] = simulate_prefixes(deployment, sessions, seed=seed, routing=routing)
    ttft = {weight: p90_ttft(run) for weight, run in runs.items()}
    nodes = {weight: nodes_of_a_session(run) for weight, run in runs.items()}
    assert ttft[HITS_ONLY] > 4 * ttft[BALANCED]
    assert ttft[BLIND] > 4 * ttft[BALANCED]
    assert nodes[HITS_ONLY] == 1
    assert 1 < nodes[BALANCED] < 2
    assert 5.5 < nodes[BLIND] < 7
    busy = [record.busy_seconds for record in runs[HITS_ONLY].instances]
    assert min(busy) == 0.0, "hits alone never find a worker that nobody has been sent to"


def test_reference_row_23_the_cost_in_blocks_lies_between(fleet, p90_ttft, nodes_of_a_session):
    sessions = builtin_columns("sessions?requests=4200&rate=120", seed=1)
    runs = {name: simulate_prefixes(fleet.deployment(name), sessions, seed=1) for name in ("kv", "least-loaded")}
    assert p90_ttft(runs["kv"]) < 0.25 * p90_ttft(runs["least-loaded"])
    assert 2 < nodes_of_a_session(runs["kv"]) < nodes_of_a_session(runs["least-loaded"])
