"""Rolling updates, evictions, lost nodes and roles that change, on a real API server and scheduler."""

import json
import time
from typing import Any

from disagg_contract.labels import DRAINING, PAIRING, RESTARTED_AT
from tests.integration.operator.conftest import World
from tests.integration.operator.test_lifecycle import EXTERNAL, serves, uids
from tests.support.kube import Object

SMALL_BLOCKS = {"simulated": {"blockTokens": 16}}
LARGE_BLOCKS = {"simulated": {"blockTokens": 32}}


def pairs(world: World) -> set[str]:
    """Pairings of which a prefill and a decode instance serve."""
    serving = {role: {pairing(pod) for pod in world.pods(role=role) if serves(pod)} for role in ("prefill", "decode")}
    return serving["prefill"] & serving["decode"]


def pairing(pod: Object) -> str:
    return str(pod["metadata"]["labels"][PAIRING])


def blocked(world: World) -> tuple[str, str]:
    found = world.kube.condition("dd", "chat", "UpdateBlocked") or {}
    return found.get("status", ""), found.get("reason", "")


def patch(world: World, change: Object) -> None:
    world.kube("patch", "dd", "chat", "--type=merge", f"--patch={json.dumps(change)}")


def marked(world: World, role: str = "") -> list[Object]:
    return [pod for pod in world.pods(role=role) if pod["metadata"]["labels"].get(DRAINING) == "true"]


def test_op2_an_incompatible_update_moves_as_pairs_or_says_what_it_lacks(world: World) -> None:
    world.nodes.add("a", "left", gpus=3)
    world.operator()
    world.kube.apply(world.deployment(engine=SMALL_BLOCKS))
    world.make_ready()
    old = uids(world.pods())
    (before,) = pairs(world)
    patch(world, {"spec": {"engine": LARGE_BLOCKS}})
    # A pair needs two GPUs and one is free: neither half is placed, and nothing that serves goes.
    world.until(lambda: blocked(world) == ("True", "InsufficientCapacity"), "the update says that it is blocked")
    assert uids(world.bound()) == old
    assert pairs(world) == {before}
    assert world.reason("Ready") == "Updating"
    assert world.status()["observedGeneration"] == 2
    world.nodes.say("a", gpus=4)

    def done() -> bool:
        assert pairs(world), "a pair serves at any moment"
        world.nodes.run_pods("disagg.dev/role")
        return not uids(world.pods()) & old

    world.until(done, "all instances are new", seconds=120)
    assert pairs(world) != {before}
    world.make_ready()
    assert blocked(world) == ("False", "UpToDate")


def test_a_restart_is_blocked_by_the_budget_paused_and_taken_back(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()
    slow = {"template": world.template() | {"terminationGracePeriodSeconds": 300}}
    world.kube.apply(world.deployment(decode={"replicas": 2} | slow, gpuBudget=3))
    world.make_ready()
    old = uids(world.pods())
    world.kube("annotate", "dd", "chat", f"{RESTARTED_AT}=now")
    # Decode is replaced in place; the only prefill instance would need a GPU more than the budget has.
    world.until(lambda: len(marked(world, "decode")) == 1, "one decode instance drains")
    world.kube("annotate", "dd", "chat", f"{RESTARTED_AT}-")
    world.until(lambda: not marked(world), "the drain is taken back")
    assert uids(world.pods()) == old, "what was not thrown away yet is kept"
    patch(world, {"spec": {"paused": True}})
    patch(world, {"metadata": {"annotations": {RESTARTED_AT: "later"}}})
    world.until(lambda: world.reason("Ready") == "Paused", "the update is paused")
    assert not marked(world)
    patch(world, {"spec": {"paused": False, "decode": {"minAvailable": 2}}})
    world.until(lambda: blocked(world) == ("True", "GpuBudgetExceeded"), "neither role may move within the budget")
    assert uids(world.pods()) == old
    assert "GpuBudgetExceeded" in world.event_reasons()


def test_evictions_leave_min_available_serving(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()
    world.kube.apply(world.deployment(decode={"replicas": 2, "minAvailable": 1}))
    world.make_ready()
    first, second = (pod["metadata"]["name"] for pod in world.pods(role="decode"))
    path = f"/api/v1/namespaces/{world.kube.namespace}/pods"

    def evict(name: str) -> str:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        return world.kube("create", "--raw", f"{path}/{name}/eviction", "-f", "-", stdin=json.dumps(body), check=False)

    def counted() -> bool:
        return {b["status"].get("disruptionsAllowed") for b in world.kube.items("pdb")} == {0, 1}

    world.until(counted, "the budgets count the pods")
    assert '"Success"' in evict(first)
    assert "disruption budget" in evict(second)
    world.until(lambda: len(world.bound(role="decode")) == 2, "what was evicted is replaced")
    world.make_ready()
    world.until(counted, "one may go again")
    assert '"Success"' in evict(second)


def test_pg10_what_is_left_of_a_gang_is_placed_anew_as_one(world: World) -> None:
    first = world.nodes.add("a", "left", gpus=1)
    second = world.nodes.add("b", "left", gpus=1)
    world.operator(resync_seconds=1.0)
    spec = world.deployment(placement={"gangTerminationDelaySeconds": 10, "nodeLossSeconds": 1})
    world.kube.apply(spec)
    world.make_ready()
    old = world.pods()
    lost = next(pod for pod in old if pod["spec"]["nodeName"] == second)
    world.nodes.fail("b")
    # Its replacement is there before the lost pod is gone, and finds no room in the domain.
    world.until(lambda: len(uids(world.pods()) - uids(old)) == 1, "the replacement waits for nobody")
    world.until(lambda: world.reason("MinAvailableBreached") == "MembersLost", "the breach is said")
    assert uids(world.bound()) == uids(old) - uids([lost]), "what is left stays until the delay is over"
    roomy = world.nodes.add("c", "right", gpus=2)
    fresh = world.until(
        lambda: pods if len(pods := [p for p in world.bound() if p["spec"]["nodeName"] == roomy]) == 2 else None,
        "the whole gang is placed elsewhere",
        seconds=60,
    )
    assert not uids(fresh) & uids(old)
    assert world.event_reasons().count("GangTerminated") == 1
    world.until(lambda: world.reason("MinAvailableBreached") == "MinimumAvailable", "the breach is over")
    assert first not in {pod["spec"]["nodeName"] for pod in world.pods()}


def test_op6_a_role_is_replaced_by_others_without_a_gap(world: World) -> None:
    world.nodes.add("a", "left", gpus=4)
    world.operator()
    world.kube.apply(world.deployment(prefill=None, decode=None, worker={"replicas": 1}))
    world.make_ready()
    (worker,) = world.pods(role="worker")
    world.kube.apply(world.deployment(prefill={"replicas": 1}, decode={"replicas": 1}, worker=None))
    patch(world, {"spec": {"worker": None}})
    world.until(lambda: len(world.bound()) == 3, "the new roles are placed beside the old one")
    time.sleep(1)
    assert uids(world.pods(role="worker")) == uids([worker]), "it serves until they do"
    assert not marked(world)
    assert world.reason("Available") == "Updating"
    world.until(lambda: world.nodes.run_pods("disagg.dev/role") and marked(world, "worker"), "they serve, so it drains")
    world.until(lambda: world.kube.get("dg", "chat-worker") is None and not world.pods(role="worker"), "it is gone")
    assert len(world.pods()) == 2


def test_pods_whose_group_was_taken_away_are_adopted(world: World) -> None:
    world.nodes.add("a", "left", gpus=4)
    world.operator()
    world.kube.apply(world.deployment(decode=EXTERNAL))
    world.make_ready()
    before = uids(world.pods())
    world.kube("delete", "dg", "chat-decode", "--cascade=orphan")

    def owner() -> set[str]:
        return {
            reference["uid"] for pod in world.pods(role="decode") for reference in pod["metadata"]["ownerReferences"]
        }

    def adopted() -> bool:
        group = world.kube.get("dg", "chat-decode")
        return group is not None and owner() == uids([group])

    world.until(adopted, "the new group owns them")
    assert uids(world.pods()) == before


def test_a_limit_range_is_a_quota(world: World) -> None:
    world.nodes.add("a", "left")
    limit = {"type": "Container", "min": {"cpu": "1"}}
    world.kube.apply(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": [limit]}}
    )
    world.operator()
    world.kube.apply(world.deployment())
    found: Any = world.until(lambda: refused(world), "the condition says so")
    assert "minimum cpu usage per Container is 1" in found["message"]
    assert world.reason("Ready") == "QuotaExceeded"


def refused(world: World) -> Object | None:
    found = world.kube.condition("dd", "chat", "QuotaExceeded")
    return found if found and found["status"] == "True" else None


def test_a_level_that_no_node_carries_has_a_condition(world: World) -> None:
    world.nodes.add("a", "left")
    world.operator()
    level = "example.com/no-such-level"
    world.kube.apply(world.deployment(placement={"levels": [level], "required": level}))
    world.until(lambda: world.reason("TopologyKnown") == "UnknownTopologyKey", "it is said")
    world.until_bound(2)
