"""The router's policies among simulated instances."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pytest

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_router.core.policies import KvAware, LeastLoaded, RoundRobin
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode
from disagg_simulator.prompts import Prompts
from disagg_simulator.routing import MAX_POOLS, RouterChoice, routing_for
from disagg_simulator.simulate import simulate


def prompts_of(ids, *, tokens: int | None = None) -> Columns:
    count = len(ids)
    return Columns(
        name="given",
        arrival_seconds=array("d", range(count)),
        input_tokens=array("i", [tokens or 64 * len(chain) for chain in ids]),
        output_tokens=array("i", [4] * count),
        hash_ids=ids,
        block_tokens=64,
    )


def choice(
    fleet, routing: str, requests: Columns, *, replicas: int = 2, weight: float = 1.0, **options
) -> RouterChoice:
    deployment = fleet.deployment(routing, replicas=replicas, overlap_weight=weight)
    made = routing_for(deployment, Prompts(requests, deployment), seed=1, **options)
    for number in range(replicas):
        made.joined(number, deployment.workers[0])
    return made


@pytest.mark.parametrize(
    ("name", "kind"), [("kv", KvAware), ("least-loaded", LeastLoaded), ("round-robin", RoundRobin)]
)
def test_the_policies_are_the_routers_own(fleet, name, kind):
    assert type(choice(fleet, name, prompts_of([[1]])).policy) is kind


def test_rt7_without_a_match_load_decides(fleet):
    ids = [[10 * n + part for part in range(8)] for n in range(40)]
    routing = choice(fleet, "kv", prompts_of(ids), weight=100.0)
    for request in range(1, 20):  # number 1 remembers much and is idle, number 0 has a queue
        routing.dispatched(1, request, 512)
        routing.ended(1, request, 512)
    for request in range(20, 39):
        routing.dispatched(0, request, 512)
    assert [routing.choose((0, 1), 39, 512) for _ in range(20)] == [1] * 20


def test_a_prompt_goes_where_its_prefix_is_until_the_queue_there_is_longer(fleet):
    ids = [list(range(16))] * 30
    routing = choice(fleet, "kv", prompts_of(ids))
    routing.dispatched(0, 0, 1024)
    chosen = []
    for request in range(1, 20):
        number = routing.choose((0, 1), request, 1024)
        routing.dispatched(number, request, 1024)
        chosen.append(number)
    # Number 0 has 16 blocks active, and number 1 would have 16 to prefill: equal, and there are fewer requests.
    assert chosen[0] == 1
    assert chosen.count(0) in (9, 10)


def test_rt14_a_lost_instance_is_believed_to_hold_nothing(fleet):
    ids = [list(range(16))] * 3
    routing = choice(fleet, "kv", prompts_of(ids), weight=10.0)
    routing.dispatched(0, 0, 1024)
    routing.ended(0, 0, 1024)
    assert routing.choose((0, 1), 1, 1024) == 0
    routing.left(0)
    routing.joined(0, fleet.deployment("kv").workers[0])
    assert {routing.choose((0, 1), 1, 1024) for _ in range(20)} == {0, 1}


def test_rt5_load_returns_to_nothing(fleet):
    ids = [[n] for n in range(50)]
    for name in ("kv", "least-loaded"):
        routing = choice(fleet, name, prompts_of(ids), replicas=3)
        for request in range(50):
            number = routing.choose((0, 1, 2), request, 64)
            routing.dispatched(number, request, 64)
            if request % 3:
                routing.prefilled(number, request)
            if request >= 10:
                routing.ended(routing._charges[request - 10].worker.number, request - 10, 64)
        assert sum(seat.requests for seat in routing._seats.values()) == 10
        for request in range(40, 50):
            routing.ended(routing._charges[request].worker.number, request, 64)
        assert [(seat.requests, seat.tokens, seat.blocks) for seat in routing._seats.values()] == [(0, 0, 0)] * 3
        assert not routing._charges


def test_a_pool_that_changes_is_seen(fleet):
    routing = choice(fleet, "least-loaded", prompts_of([[1]] * 500), replicas=3)
    for request in range(2 * MAX_POOLS):
        pool = (0, 1) if request % 2 else (1, 2)
        assert routing.choose(tuple(pool), request, 64) in pool
    assert len(routing._pools) <= MAX_POOLS


def test_in_seconds_a_prompt_waits_no_longer_once_it_has_its_first_token(fleet):
    ids = [list(range(16)), [*range(16), 100], [*range(16), 101]]
    routing = choice(fleet, "kv", prompts_of(ids), prefill_seconds=fleet.prefill_seconds)
    routing.dispatched(0, 0, 1024)
    assert routing.choose((0, 1), 1, 1088) == 1, "1,024 tokens wait there, and 1,088 are to prefill here"
    routing.prefilled(0, 0)
    assert routing.choose((0, 1), 1, 1088) == 0, "nothing waits any more, and all but 64 are there"


def test_the_decode_leg_is_chosen_by_active_blocks(fleet):
    def group(role: Role) -> Group:
        return Group(
            instance=fleet.instance,
            time_model=Roofline(fleet.instance),
            batching=BatchingConfig(role=role),
            replicas=2,
            ledger=Ledger.BLOCKS,
            block_tokens=64,
        )

    deployment = Deployment(
        mode=Mode.DISAGGREGATED, prefill=(group(Role.PREFILL),), decode=(group(Role.DECODE),), routing=RoutingPolicy.KV
    )
    ids = [[n, n + 1000] for n in range(0, 400, 10)]
    requests = prompts_of(ids)
    run = simulate_cluster(deployment, requests, seed=2)
    assert set(run.prefill_instance) == {0, 1}
    assert set(run.decode_instance) == {2, 3}
    routing = routing_for(deployment, Prompts(requests, deployment), seed=2)
    for number in range(4):
        routing.joined(number, deployment.prefill[0] if number < 2 else deployment.decode[0])
    routing.dispatched(2, 0, 128)
    assert {routing.choose((2, 3), request, 128) for request in range(1, 20)} == {3}
    assert routing._seats[2].tokens == 0, "a decode leg has nothing to prefill"


def test_without_blocks_there_is_nothing_to_find(fleet):
    ids = [[1, 2, 3]] * 40
    deployment = fleet.deployment("kv", replicas=2)
    counting = Group(instance=fleet.instance, time_model=fleet.time_model, batching=BatchingConfig(), replicas=2)
    deployment = Deployment(mode=Mode.COLOCATED, workers=(counting,), routing=RoutingPolicy.KV)
    run = simulate(deployment, prompts_of(ids), seed=1)
    assert set(run.prefill_instance) == {0, 1}, "equals are settled by lot"
    assert len(routing_for(deployment, Prompts(prompts_of(ids), deployment), seed=1).policy._index) == 0


PROGRAM = """
import sys
sys.path[:0] = {path!r}
from disagg_engine.catalogue import default
from disagg_engine.batching import BatchingConfig
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_load.workloads.builtin import builtin_columns
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode
from disagg_simulator.simulate import simulate
known = default()
instance = Instance(model=known.model("llama-3-8b"), gpu=known.gpu("h100"))
group = Group(instance=instance, time_model=Roofline(instance), batching=BatchingConfig(role=Role.WORKER), replicas=4,
              ledger=Ledger.BLOCKS, block_tokens=64)
deployment = Deployment(mode=Mode.COLOCATED, workers=(group,), routing=RoutingPolicy.KV)
run = simulate(deployment, builtin_columns("sessions?requests=300", seed=5), seed=5)
sys.stdout.buffer.write(run.finish.tobytes() + run.prefill_instance.tobytes())
"""


def test_sm6_the_same_seed_gives_the_same_bytes_whatever_the_hash_seed():
    program = PROGRAM.format(path=[path for path in sys.path if path])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) == 300 * 10
