"""Gangs on a real scheduler."""

import json
import threading
from typing import Any

import pytest

from disagg_contract.labels import GPU_RESOURCE, NVLINK_DOMAIN, SCHEDULING_GATE
from disagg_operator.shell.kube import placing
from tests.integration.operator.conftest import World
from tests.support.kube import Object, wait_until

TWO = {"replicas": 2, "minAvailable": 2}


def nodes_of(pods: list[Object]) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in pods}


def blocker(world: World, name: str, node: str, gpus: int) -> Object:
    """Somebody else's pod on a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            **world.template(),
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "hold", "image": "hold", "resources": {"limits": {GPU_RESOURCE: str(gpus)}}}],
        },
    }


def test_the_gang_goes_to_the_one_domain_that_holds_all_of_it(world: World) -> None:
    tight = world.nodes.add("a", "left", gpus=3)
    roomy = [world.nodes.add(name, "right", gpus=2) for name in ("b", "c")]
    world.operator()
    world.kube.apply(
        world.deployment(prefill={"replicas": 2, "minAvailable": 2}, decode={"replicas": 2, "minAvailable": 2})
    )
    pods = world.until_bound(4)
    assert nodes_of(pods) == set(roomy)
    assert tight not in nodes_of(pods)
    assert {pod["metadata"]["labels"][NVLINK_DOMAIN] for pod in pods} == {f"{world.kube.namespace}-right"}
    world.until(lambda: world.reason("GangScheduled") == "GangBound", "the status says so")
    assert world.status()["placement"]["domain"] == f"{world.kube.namespace}-right"
    assert world.reason("Ready") == "InstancesNotReady"


def test_pg2_one_short_binds_nothing_and_names_what_is_missing(world: World) -> None:
    node = world.nodes.add("a", "left", gpus=3)
    world.nodes.add("b", "right", gpus=2)
    world.operator()
    world.kube.apply(
        world.deployment(prefill={"replicas": 2, "minAvailable": 2}, decode={"replicas": 2, "minAvailable": 2})
    )
    found = world.kube.expect_condition("dd", "chat", "GangScheduled", "False")
    world.until(lambda: world.reason("GangScheduled") == "InsufficientCapacity", "capacity is the reason")
    found = world.kube.condition("dd", "chat", "GangScheduled")
    assert found is not None
    assert "4 nvidia.com/gpu needed, 3 free" in found["message"]
    placement = world.status()["placement"]
    assert placement["missing"] == {GPU_RESOURCE: "1"}
    assert placement["bestDomain"] == f"{world.kube.namespace}-left"
    assert "domain" not in placement
    assert len(world.pods()) == 4
    assert world.bound() == []
    assert all(pod["spec"]["schedulingGates"] == [{"name": SCHEDULING_GATE}] for pod in world.pods())
    assert "InsufficientCapacity" in world.event_reasons()
    # Room appears: nobody has to wait for a resync.
    world.nodes.say("a", gpus=4)
    assert nodes_of(world.until_bound(4)) == {node}


def test_pg3_a_waiting_gang_does_not_hold_up_a_small_one(world: World) -> None:
    world.nodes.add("a", "left", gpus=4)
    world.operator()
    world.kube.apply(world.deployment("big", prefill={"replicas": 4, "minAvailable": 4}))
    world.until(lambda: world.reason("GangScheduled", "big") == "InsufficientCapacity", "big does not fit")
    world.kube.apply(world.deployment("small"))
    world.until_bound(2, "small")
    assert world.bound("big") == []


def test_pg4_extras_follow_when_the_base_is_scheduled_not_ready(world: World) -> None:
    world.nodes.add("a", "left", gpus=4)
    world.operator()
    world.kube.apply(world.deployment(prefill={"replicas": 3, "minAvailable": 1}))
    world.until_bound(4)
    assert world.reason("Ready") == "InstancesNotReady"


def test_extras_without_room_wait_and_the_base_serves(world: World) -> None:
    world.nodes.add("a", "left", gpus=3)
    world.nodes.add("b", "right", gpus=1)
    world.operator()
    world.kube.apply(world.deployment(decode={"replicas": 3, "minAvailable": 1}))
    world.until_bound(3)
    condition = world.kube.expect_condition("dd", "chat", "GangScheduled", "True")
    world.until(lambda: world.reason("Ready") == "InstancesNotScheduled", "the last one waits")
    condition = world.kube.condition("dd", "chat", "GangScheduled")
    assert condition is not None
    assert "further instances wait" in condition["message"]
    assert len(world.pods()) == 4


def test_a_replacement_stays_in_the_domain(world: World) -> None:
    world.nodes.add("a", "left", gpus=1)
    node = world.nodes.add("b", "right", gpus=4)
    world.operator()
    world.kube.apply(world.deployment())
    pods = world.until_bound(2)
    world.make_ready()
    victim = pods[0]["metadata"]["name"]
    world.kube("delete", "pod", victim, "--force", "--grace-period=0")
    world.until(
        lambda: len(world.bound()) == 2 and victim not in {p["metadata"]["name"] for p in world.pods()}, "repaired"
    )
    assert nodes_of(world.bound()) == {node}
    world.make_ready()


def test_terminating_and_foreign_pods_hold_what_they_have(world: World) -> None:
    node = world.nodes.add("a", "left", gpus=2)
    world.kube.apply(blocker(world, "foreign", node, 1))
    wait_until(
        lambda: (world.kube.get("pod", "foreign") or {})["spec"].get("nodeName"), "it is bound", timeout_seconds=60
    )
    world.operator()
    world.kube.apply(world.deployment())
    world.until(lambda: world.reason("GangScheduled") == "InsufficientCapacity", "one GPU is taken")
    world.kube("delete", "pod", "foreign", "--wait=false")
    world.until(lambda: (world.kube.get("pod", "foreign") or {})["metadata"].get("deletionTimestamp"), "it terminates")
    assert world.bound() == []
    world.kube("delete", "pod", "foreign", "--force", "--grace-period=0")
    world.until_bound(2)


def test_an_instance_larger_than_any_node_is_refused_by_name(world: World) -> None:
    world.nodes.add("a", "left", gpus=4)
    world.nodes.add("b", "left", gpus=4)
    world.operator()
    world.kube.apply(world.deployment(decode={"replicas": 1, "parallelism": {"tensor": 8}}))
    world.until(lambda: world.reason("GangScheduled") == "InsufficientCapacity", "it cannot run")
    found = world.kube.condition("dd", "chat", "GangScheduled")
    assert found is not None
    assert "needs 8 nvidia.com/gpu on one node and the largest has 4" in found["message"]


def test_paired_instances_share_nodes_and_the_status_tells_how_well(world: World) -> None:
    for name in ("a", "b"):
        world.nodes.add(name, "left", gpus=3)
    world.operator()
    world.kube.apply(world.deployment(prefill=TWO, decode=TWO, placement={"stagePairing": "required"}))
    pods = world.until_bound(4)
    by_node = {
        node: sorted(pod["metadata"]["labels"]["disagg.dev/role"] for pod in pods if pod["spec"]["nodeName"] == node)
        for node in nodes_of(pods)
    }
    assert list(by_node.values()) == [["decode", "prefill"]] * 2
    world.until(lambda: "all in" in world.status()["placement"].get("message", ""), "the status says where it is")
    assert world.status()["placement"]["score"] == 1.0


def test_pg9_a_spread_bounds_what_a_node_holds(world: World) -> None:
    nodes = {world.nodes.add(name, "left", gpus=4) for name in ("a", "b")}
    world.operator()
    apart = {"spread": {"level": "kubernetes.io/hostname", "most": 1}}
    external = {"autoscaling": {"mode": "external", "min": 2, "max": 3}, "minAvailable": 2, "placement": apart}
    world.kube.apply(world.deployment(decode=external))
    world.until_bound(3)
    assert nodes_of(world.bound(role="decode")) == nodes
    world.make_ready()
    world.kube("scale", "dg/chat-decode", "--replicas=3")
    world.until(lambda: "with at most 1 decode instances" in str(world.status()["conditions"]), "a third has no node")
    assert len(world.bound(role="decode")) == 2


def test_room_of_lower_priority_is_taken_only_when_told(world: World) -> None:
    node = world.nodes.add("a", "left", gpus=2)
    name = f"{world.kube.namespace}-high"
    world.kube.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    )
    world.kube.apply(blocker(world, "foreign", node, 1))
    wait_until(
        lambda: (world.kube.get("pod", "foreign") or {})["spec"].get("nodeName"), "it is bound", timeout_seconds=60
    )
    world.operator()
    roles = {role: {"replicas": 1, "template": {"priorityClassName": name}} for role in ("prefill", "decode")}
    world.kube.apply(world.deployment(**roles))
    world.until(lambda: world.reason("GangScheduled") == "InsufficientCapacity", "it does not evict by itself")
    assert not (world.kube.get("pod", "foreign") or {})["metadata"].get("deletionTimestamp")
    world.kube.apply(world.deployment(**roles, placement={"preemption": "lowerPriority"}))
    world.until(
        lambda: (world.kube.get("pod", "foreign") or {"metadata": {"deletionTimestamp": "gone"}})["metadata"].get(
            "deletionTimestamp"
        ),
        "the scheduler evicts it",
    )
    world.nodes.run_pods("!disagg.dev/role")
    world.until_bound(2)
    world.kube("delete", "priorityclass", name)


def test_a_gang_that_misses_its_deadline_is_given_back_and_tried_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.nodes.add("a", "left", gpus=2)
    world.nodes.add("b", "right", gpus=3)
    real, left = placing.pin, f"{world.kube.namespace}-left"

    def lost(**given: Any) -> dict[str, Any]:
        """What the scheduler sees when the room was taken meanwhile: a node that never takes the pod."""
        return real(**given | {"hostname": "taken" if given["domain"] == left else given["hostname"]})

    monkeypatch.setattr(placing, "pin", lost)
    world.operator()
    world.kube.apply(world.deployment(placement={"bindDeadlineSeconds": 3}))
    first = {pod["metadata"]["uid"] for pod in world.until(world.pods, "pods exist")}
    pods = world.until_bound(2)
    assert {pod["metadata"]["labels"][NVLINK_DOMAIN] for pod in pods} == {f"{world.kube.namespace}-right"}
    assert not first & {pod["metadata"]["uid"] for pod in pods}
    assert "BindDeadlineExceeded" in world.event_reasons()


def test_an_operator_that_died_between_two_patches_is_completed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.nodes.add("a", "left", gpus=2)
    real = placing.Placer._pin
    first, died = threading.Event(), threading.Event()

    async def one_only(self: placing.Placer, *given: Any) -> None:
        if first.is_set():
            died.set()
            raise SystemError("the process is gone")
        first.set()
        await real(self, *given)

    monkeypatch.setattr(placing.Placer, "_pin", one_only)
    broken = world.operator()
    world.kube.apply(world.deployment())
    assert died.wait(60)
    broken.crash()
    monkeypatch.setattr(placing.Placer, "_pin", real)
    announced = {item["uid"] for item in world.status()["placement"]["assignments"]}
    assert announced == {pod["metadata"]["uid"] for pod in world.pods()}
    world.operator()
    assert {pod["metadata"]["uid"] for pod in world.until_bound(2)} == announced
    world.until(lambda: not world.status()["placement"].get("assignments"), "nothing is left to finish")


def test_pg5_from_zero_again_is_as_the_first_time(world: World) -> None:
    world.nodes.add("a", "left", gpus=2)
    world.operator()
    external = {"autoscaling": {"mode": "external", "min": 1, "max": 2}}
    world.kube.apply(world.deployment(prefill=external, decode=external))
    world.until_bound(2)
    for role in ("prefill", "decode"):
        world.kube("scale", f"dg/chat-{role}", "--replicas=0")

    def gone() -> bool:
        world.nodes.run_pods("disagg.dev/nothing=at-all")
        for pod in world.kube.items("pods", "disagg.dev/role"):
            if pod["metadata"].get("deletionTimestamp"):
                world.kube("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", check=False)
        return not world.kube.items("pods", "disagg.dev/role")

    world.until(gone, "all instances are gone")
    world.until(lambda: world.reason("Ready") == "ScaledToZero", "zero is said")
    for role in ("prefill", "decode"):
        world.kube("scale", f"dg/chat-{role}", "--replicas=1")
    world.until_bound(2)
    assert json.loads(world.kube("get", "--raw", scale_path(world, "chat-decode")))["status"]["replicas"] == 1


def scale_path(world: World, group: str) -> str:
    return f"/apis/disagg.dev/v1alpha1/namespaces/{world.kube.namespace}/disagggroups/{group}/scale"
