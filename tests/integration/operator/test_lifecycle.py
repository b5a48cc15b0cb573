"""A deployment from apply to delete, through edits, repairs and restarts of the operator."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from disagg_contract.labels import DRAINING
from tests.integration.operator.conftest import World
from tests.support.kube import Object

PLANNED = {"autoscaling": {"mode": "planner", "min": 1, "max": 4}}
EXTERNAL = {"autoscaling": {"mode": "external", "min": 1, "max": 4}}


def replicas(world: World, group: str) -> int | None:
    found = world.kube.get("dg", group)
    return None if found is None else int(found["spec"]["replicas"])


def uids(items: list[Object]) -> set[str]:
    return {item["metadata"]["uid"] for item in items}


def children(world: World) -> dict[str, str]:
    """UID by kind and name of everything the operator applies."""
    kinds = "services,serviceaccounts,roles,rolebindings,deployments,disagggroups"
    items = json.loads(world.kube("get", kinds, "-o", "json", "--selector=disagg.dev/deployment"))["items"]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"] for item in items}


def test_op18_from_apply_to_ready_without_optional_kinds(world: World) -> None:
    world.nodes.add("a", "left")
    world.operator()
    world.kube.apply(world.deployment(decode=PLANNED))
    world.make_ready()
    names = {"chat-router", "chat-planner"}
    parts = {f"{kind}/{name}" for kind in ("ServiceAccount", "Role", "RoleBinding", "Deployment") for name in names}
    groups = {"DisaggGroup/chat-prefill", "DisaggGroup/chat-decode"}
    assert set(children(world)) == parts | {"Service/chat-router"} | groups
    status = world.status()
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Ready": "True",
        "Available": "True",
        "Progressing": "False",
        "GangScheduled": "True",
        "ModelFits": "True",
        "UpdateBlocked": "False",
        "MinAvailableBreached": "False",
        "QuotaExceeded": "False",
        "TopologyKnown": "True",
    }
    budgets = {item["metadata"]["name"]: item["spec"]["minAvailable"] for item in world.kube.items("pdb")}
    assert budgets == {"chat-prefill": 1, "chat-decode": 1}
    assert status["observedGeneration"] == 1
    assert status["endpoint"] == f"http://chat-router.{world.kube.namespace}:8000"
    table = world.kube("get", "dd,dg")
    assert "AllInstancesReady" in table
    assert "1/1" in table
    group = world.kube.get("dg", "chat-decode")
    assert group is not None
    assert (group["status"]["replicas"], group["status"]["readyReplicas"]) == (1, 1)
    selected = world.kube.items("pods", group["status"]["selector"])
    assert uids(selected) == uids(world.pods(role="decode"))
    reasons = world.event_reasons()
    assert {"InstancesCreated", "GangPlaced", "GangBound", "AllInstancesReady"} <= set(reasons)


def test_op5_op8_the_steady_state_writes_nothing(world: World) -> None:
    world.nodes.add("a", "left")
    operator = world.operator(resync_seconds=1.0, lease=False)
    world.kube.apply(world.deployment(decode=PLANNED))
    world.make_ready()
    time.sleep(3)
    before = len(operator.calls)
    written = len(operator.writes)
    conditions = world.status()["conditions"]
    world.until(lambda: len(operator.calls) > before + 30, "several resyncs pass")
    assert operator.writes[written:] == []
    assert world.status()["conditions"] == conditions


def test_a_hand_made_scale_of_fixed_replicas_is_put_back_with_an_event(world: World) -> None:
    world.nodes.add("a", "left")
    world.operator()
    world.kube.apply(world.deployment())
    world.until_bound(2)
    world.kube("scale", "dg/chat-prefill", "--replicas=3")
    world.until(lambda: "ScaleReverted" in world.event_reasons(), "an Event says so")
    assert replicas(world, "chat-prefill") == 1


def test_op7_autoscaled_replicas_are_left_alone_and_come_back(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()
    world.kube.apply(world.deployment(decode=EXTERNAL))
    world.until_bound(2)
    world.kube("scale", "dg/chat-decode", "--replicas=3")
    world.until_bound(3, role="decode")
    world.until(lambda: world.status()["groups"]["decode"]["replicas"] == 3, "the number is remembered")
    world.kube.apply(world.deployment(decode=EXTERNAL, gpuBudget=8))
    world.until(lambda: world.status()["observedGeneration"] == 2, "the edit was seen")
    assert replicas(world, "chat-decode") == 3
    old = uids([world.kube.get("dg", "chat-decode") or {}])
    world.kube("delete", "dg", "chat-decode")
    world.until(
        lambda: (found := world.kube.get("dg", "chat-decode")) is not None and not uids([found]) & old,
        "the group is back",
    )
    assert replicas(world, "chat-decode") == 3


def test_op6_a_role_that_left_the_spec_takes_only_its_own_along(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()
    world.kube.apply(world.deployment(worker={"replicas": 1}))
    world.until_bound(3)
    before, kept = children(world), uids(world.pods(role="prefill") + world.pods(role="decode"))
    world.kube("patch", "dd", "chat", "--type=json", '--patch=[{"op": "remove", "path": "/spec/worker"}]')
    world.until(lambda: not world.pods(role="worker"), "its pods are gone")
    world.until(lambda: world.kube.get("dg", "chat-worker") is None, "its group is gone")
    after = children(world)
    assert {key: uid for key, uid in before.items() if key != "DisaggGroup/chat-worker"} == after
    assert uids(world.pods()) == kept


def test_op16_the_planner_goes_when_nobody_needs_it(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()

    def planner() -> set[str]:
        return {key for key in children(world) if key.endswith("chat-planner")}

    world.kube.apply(world.deployment(decode=PLANNED))
    world.until(lambda: len(planner()) == 4, "the planner is there")
    said = {"type": "ScalingActive", "status": "True", "reason": "DecisionsWritten", "message": "it says so"}
    said["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    word = {key: value for key, value in world.deployment().items() if key != "spec"} | {
        "status": {"conditions": [said]}
    }
    as_planner = ("--server-side", "--subresource=status", "--field-manager=disagg-planner")
    world.kube("apply", *as_planner, "-f", "-", stdin=json.dumps(word))
    world.kube.apply(world.deployment(decode=EXTERNAL))
    world.until(lambda: not planner(), "nothing of it is left")
    world.until(lambda: world.kube.condition("dd", "chat", "ScalingActive") is None, "nor of what it said")
    assert world.reason("Ready")
    assert world.status()["roles"]["decode"]["desired"] == 1
    world.kube.apply(world.deployment(decode={"replicas": 1}))
    world.until(lambda: world.status().get("observedGeneration") == 3, "the third edit was seen")
    assert not planner()
    world.kube.apply(world.deployment(decode=PLANNED))
    world.until(lambda: len(planner()) == 4, "it is back")


def test_pg7_scale_down_drains_one_instance_and_only_one(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator(resync_seconds=1.0)
    world.kube.apply(world.deployment(decode=EXTERNAL | {"minAvailable": 1}))
    world.until_bound(2)
    world.kube("scale", "dg/chat-decode", "--replicas=3")
    world.until_bound(3, role="decode")
    world.make_ready()
    before = uids(world.pods(role="decode"))
    world.kube("scale", "dg/chat-decode", "--replicas=2")

    def marked() -> list[Object]:
        return [pod for pod in world.pods(role="decode") if pod["metadata"]["labels"].get(DRAINING) == "true"]

    (victim,) = world.until(marked, "one is marked first")
    # Nobody answers there, so the drain ends with its bound (the grace period, 3 s). No pass in between picks another.
    world.until(lambda: len(world.pods(role="decode")) == 2, "it goes")
    time.sleep(3)
    left = uids(world.pods(role="decode"))
    assert left == before - uids([victim])
    assert not marked()
    reasons = world.event_reasons()
    assert "InstanceDraining" in reasons
    assert "InstanceDeleted" in reasons


def test_a_drain_is_taken_back_when_the_instance_is_wanted(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()
    slow = {"template": world.template() | {"terminationGracePeriodSeconds": 300}}
    world.kube.apply(world.deployment(decode=EXTERNAL | slow))
    world.until_bound(2)
    world.kube("scale", "dg/chat-decode", "--replicas=2")
    world.until_bound(2, role="decode")
    world.make_ready()
    before = uids(world.pods(role="decode"))
    world.kube("scale", "dg/chat-decode", "--replicas=1")

    def marked() -> int:
        return sum(1 for pod in world.pods(role="decode") if DRAINING in pod["metadata"]["labels"])

    world.until(lambda: marked() == 1, "one drains")
    world.until(lambda: world.reason("Progressing") == "Draining", "the status says so")
    world.kube("scale", "dg/chat-decode", "--replicas=2")
    world.until(lambda: marked() == 0, "the mark is gone")
    assert uids(world.pods(role="decode")) == before


def test_pg6_a_new_image_never_leaves_the_base_unready(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()
    world.kube.apply(world.deployment(decode={"replicas": 2, "minAvailable": 1}))
    world.make_ready()
    old = uids(world.pods())
    world.kube.apply(world.deployment(decode={"replicas": 2, "minAvailable": 1}, engine={"image": "disagg:next"}))

    def replaced() -> bool:
        for role in ("prefill", "decode"):
            assert any(map(serves, world.pods(role=role))), f"no {role} instance serves"
        world.nodes.run_pods("disagg.dev/role")
        images = {pod["spec"]["containers"][0]["image"] for pod in world.pods()}
        return images == {"disagg:next"} and len(world.pods()) == 3

    world.until(replaced, "all instances are new", seconds=120)
    assert not old & uids(world.pods())
    world.make_ready()


def serves(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and DRAINING not in pod["metadata"]["labels"]


def test_op12_deleted_while_no_operator_runs(world: World) -> None:
    world.nodes.add("a", "left")
    operator = world.operator()
    world.kube.apply(world.deployment(decode=PLANNED))
    world.until_bound(2)
    operator.stop()
    world.kube("delete", "dd", "chat", "--wait=true", "--timeout=30s")

    def gone() -> bool:
        world.nodes.run_pods()
        return not children(world) and not world.kube.items("pods", "disagg.dev/deployment=chat")

    world.until(gone, "Kubernetes has collected everything")


def test_one_that_returns_at_once_starts_afresh(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()
    world.kube.apply(world.deployment(decode=EXTERNAL))
    world.until_bound(2)
    world.kube("scale", "dg/chat-decode", "--replicas=2")
    world.until_bound(2, role="decode")
    world.kube("delete", "dd", "chat")
    world.kube.apply(world.deployment(decode=EXTERNAL))
    world.until(lambda: len(world.pods(role="decode")) == 1 == replicas(world, "chat-decode"), "one, as at first")
    owner = world.kube.get("dd", "chat")
    assert owner is not None
    world.until(lambda: owners(world) == uids([owner]), "every child belongs to the new one")


def owners(world: World) -> set[str]:
    kinds = "services,serviceaccounts,roles,rolebindings,deployments,disagggroups"
    items = json.loads(world.kube("get", kinds, "-o", "json", "--selector=disagg.dev/deployment"))["items"]
    return {owner["uid"] for item in items for owner in item["metadata"]["ownerReferences"]}


def test_op14_edits_while_no_operator_runs_are_made_good(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    first = world.operator()
    world.kube.apply(world.deployment(decode=EXTERNAL))
    world.until_bound(2)
    first.stop()
    world.kube("scale", "dg/chat-decode", "--replicas=2")
    world.kube("scale", "dg/chat-prefill", "--replicas=2")
    world.kube("delete", "service", "chat-router")
    world.kube("delete", "pod", world.pods(role="prefill")[0]["metadata"]["name"], "--force", "--grace-period=0")
    world.operator()
    world.until_bound(2, role="decode")
    world.until_bound(1, role="prefill")
    assert replicas(world, "chat-prefill") == 1
    assert world.kube.get("service", "chat-router") is not None


def test_op13_a_child_that_exists_already_is_taken_over(world: World) -> None:
    world.nodes.add("a", "left")
    world.kube("create", "service", "clusterip", "chat-router", "--tcp=80:80")
    world.operator()
    world.kube.apply(world.deployment())
    world.until_bound(2)
    world.until(
        lambda: (world.kube.get("service", "chat-router") or {})["metadata"].get("ownerReferences"), "it is ours"
    )
    service = world.kube.get("service", "chat-router")
    assert service is not None
    assert 8000 in {port["port"] for port in service["spec"]["ports"]}


def test_a_child_that_somebody_changed_is_put_right(world: World) -> None:
    world.nodes.add("a", "left")
    world.operator(resync_seconds=1.0)
    world.kube.apply(world.deployment())
    world.until_bound(2)
    world.kube("scale", "deployment/chat-router", "--replicas=3")
    world.until(
        lambda: (world.kube.get("deployment", "chat-router") or {})["spec"]["replicas"] == 1, "one router as specified"
    )


def test_op5_op13_a_quota_is_a_reason_of_its_own_and_no_storm(world: World) -> None:
    world.nodes.add("a", "left")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "1"}},
    }
    world.kube.apply(quota)
    world.until(lambda: (world.kube.get("resourcequota", "gpus") or {}).get("status", {}).get("hard"), "it counts")
    operator = world.operator()
    world.kube.apply(world.deployment())
    world.until(lambda: world.reason("Ready") == "QuotaExceeded", "the quota is the reason")
    assert world.bound() == []
    said = world.kube.condition("dd", "chat", "Ready")
    written = len(acting(operator.writes))
    time.sleep(5)
    assert world.kube.condition("dd", "chat", "Ready") == said
    assert len(acting(operator.writes)) - written <= 4, "it is tried again now and then, and told once"
    world.kube("delete", "resourcequota", "gpus")
    world.until_bound(2)
    world.until(lambda: world.reason("Ready") == "InstancesNotReady", "the reason is gone")


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"model": "opt-13"}, "UnknownModel", "opt-13b"),
        ({"decode": {"replicas": 1, "gpu": {"type": "b17"}}}, "UnknownGpu", "a100-80gb"),
        ({"model": "opt-66b"}, "InsufficientGpuMemory", "GPUs would do"),
    ],
)
def test_a_model_that_does_not_fit_starts_nothing(world: World, spec: dict[str, Any], reason: str, words: str) -> None:
    world.operator()
    world.kube.apply(world.deployment(**spec))
    world.until(lambda: world.reason("ModelFits") == reason, "the condition says why")
    found = world.kube.condition("dd", "chat", "ModelFits")
    assert found is not None
    assert words in found["message"]
    assert world.pods() == []
    assert world.reason("Ready") == reason


def test_the_budget_counts_what_is_terminating(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    world.operator()
    world.kube.apply(world.deployment(decode=EXTERNAL, gpuBudget=3))
    world.until_bound(2)
    world.kube("scale", "dg/chat-decode", "--replicas=4")
    world.until_bound(2, role="decode")
    world.until(lambda: world.reason("Ready") == "GpuBudgetExceeded", "the budget is the reason")
    assert len(world.kube.items("pods", "disagg.dev/role")) == 3
    world.kube("delete", "pod", world.pods(role="decode")[0]["metadata"]["name"], "--wait=false")
    time.sleep(2)
    assert len(world.kube.items("pods", "disagg.dev/role")) == 3, "the terminating one still holds its GPU"


def test_op17_a_second_operator_takes_over_when_the_first_is_gone(world: World) -> None:
    world.nodes.add("a", "left", gpus=8)
    first = world.operator()
    world.kube.apply(world.deployment(decode=EXTERNAL))
    world.until_bound(2)
    second = world.operator()
    time.sleep(4)
    assert acting(second.writes) == [], "it stands by"
    for edit in range(1, 21):
        change = json.dumps({"spec": {"gpuBudget": 10 + edit, "router": {"template": {"env": [tick(edit)]}}}})
        world.kube("patch", "dd", "chat", "--type=merge", f"--patch={change}")
        if edit == 10:
            first.crash()
    generation = (world.kube.get("dd", "chat") or {})["metadata"]["generation"]
    assert generation >= 20
    world.until(lambda: world.status()["observedGeneration"] == generation, "the last edit was acted upon")
    router = world.kube.get("deployment", "chat-router")
    assert router is not None
    assert tick(20) in router["spec"]["template"]["spec"]["containers"][0]["env"]
    world.kube("scale", "dg/chat-decode", "--replicas=2")
    world.until_bound(2, role="decode")
    assert first.acted
    assert min(second.acted) > max(first.acted), "they never act at the same time"
    assert second.alive


def tick(number: int) -> Object:
    return {"name": "TICK", "value": str(number)}


def test_a_clean_stop_gives_the_lease_away_at_once(world: World) -> None:
    first = world.operator(lease_seconds=60.0)
    world.until(lambda: lease_holder(world), "it is held")
    first.stop()
    assert first.error is None
    second = world.operator(lease_seconds=60.0)
    world.until(lambda: acting(second.calls), "the next one acts", seconds=20)


def acting(calls: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [call for call in calls if call[1] != "leases"]


def lease_holder(world: World) -> str:
    lease: Object = world.kube.get("lease", "disagg-operator") or {}
    return str(lease.get("spec", {}).get("holderIdentity", ""))


def test_a_spec_this_version_cannot_read_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from disagg_crds import Problem, SpecError
    from disagg_operator.shell.kube import deployments

    def newer(document: Object) -> Callable[..., Any]:
        raise SpecError(subject="DisaggDeployment chat", problems=(Problem("spec.novelty", "unknown field"),))

    monkeypatch.setattr(deployments, "read_deployment", newer)
    world.operator()
    world.kube.apply(world.deployment())
    world.until(lambda: world.reason("Ready") == "InvalidSpec", "the condition says so")
    found = world.kube.condition("dd", "chat", "Ready")
    assert found is not None
    assert "spec.novelty" in found["message"]
