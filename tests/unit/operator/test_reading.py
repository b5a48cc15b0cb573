"""From manifests to values."""

from collections.abc import Callable
from typing import Any

import pytest

from disagg_contract import labels
from disagg_crds import DisaggDeployment, DisaggGroup, Role
from disagg_operator.core.placement import Requirement
from disagg_operator.core.quantity import amount, parse_quantity, show
from disagg_operator.errors import QuantityError
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, pod
from disagg_operator.render.patches import mark_draining, pin
from disagg_operator.render.reading import demand, instance, node_view, requests, router_view, use

AROUND = Surroundings(image="disagg:0.1.0")


@pytest.fixture
def live(make_deployment: Callable[..., DisaggDeployment], make_group: Callable[..., DisaggGroup]) -> dict[str, Any]:
    """A gated pod as the API server would return it."""
    new = NewInstance(name="chat-prefill-a", role=Role.PREFILL, gang="chat")
    manifest = pod(make_deployment(), make_group(), new, around=AROUND)
    manifest["metadata"] |= {"uid": "u1", "creationTimestamp": "2026-01-02T03:04:05Z"}
    return manifest


def pinned(manifest: dict[str, Any], **status: Any) -> dict[str, Any]:
    patch = pin(hostname="h1", gang="chat", domain_key="k", domain="rack-1", placed_at=12.5)
    metadata = dict(manifest["metadata"])
    metadata["labels"] = metadata["labels"] | patch["metadata"]["labels"]
    metadata["annotations"] = metadata["annotations"] | patch["metadata"]["annotations"]
    spec = manifest["spec"] | {"nodeSelector": patch["spec"]["nodeSelector"], "schedulingGates": []}
    return {**manifest, "metadata": metadata, "spec": spec, "status": status}


def test_a_pod_through_its_life(live: dict[str, Any]) -> None:
    born = instance(live)
    assert (born.gated, born.placed, born.gpus, born.role) == (True, False, 1, Role.PREFILL)
    reserved = instance(pinned(live))
    assert (reserved.gated, reserved.pinned_node, reserved.placed_at, reserved.scheduled) == (False, "h1", 12.5, False)
    running = pinned(live, conditions=[{"type": "Ready", "status": "True"}])
    running["spec"]["nodeName"] = "n1"
    assert (instance(running).ready, instance(running).node) == (True, "n1")
    running["metadata"]["labels"] |= mark_draining(since=77.0)["metadata"]["labels"]
    running["metadata"]["annotations"] |= mark_draining(since=77.0)["metadata"]["annotations"]
    assert instance(running).draining_since == 77.0
    assert instance(pinned(live, phase="Failed")).failed


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"state": {"running": {}}}, ""),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, ""),
        ({"image": "nope/x:1", "state": {"waiting": {"reason": "ErrImagePull"}}}, "image nope/x:1 cannot be pulled"),
        (
            {"image": "nope/x:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
            "image nope/x:1 cannot be pulled",
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError"}}},
            "its container cannot be created: CreateContainerConfigError",
        ),
        (
            {"state": {"terminated": {"exitCode": 2, "reason": "Error"}}},
            "its process ended with exit status 2, see kubectl logs --previous",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}},
            },
            "its process ended with exit status 2, see kubectl logs --previous",
        ),
        (
            {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
            "it was killed for using more memory than its limit",
        ),
    ],
)
def test_what_keeps_a_pod_from_starting_has_words_that_last(
    live: dict[str, Any], container: dict[str, Any], words: str
) -> None:
    assert instance(pinned(live, containerStatuses=[container])).trouble == words


def test_a_pinned_pod_is_a_reservation(live: dict[str, Any]) -> None:
    assert use(live) is None
    reserved = use(pinned(live))
    assert reserved is not None
    assert (reserved.node, reserved.hostname) == ("", "h1")
    assert (labels.GPU_RESOURCE, 1) in reserved.requests
    assert use(pinned(live, phase="Succeeded")) is None


def test_a_terminating_pod_still_takes_its_share(live: dict[str, Any]) -> None:
    running = pinned(live)
    running["spec"]["nodeName"] = "n1"
    running["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert use(running) is not None


def test_requests_are_counted_as_the_scheduler_does() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "nvidia.com/gpu": 2}}},
            {"resources": {"requests": {"cpu": "250m"}}},
        ],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            {"resources": {"requests": {"cpu": "2"}}},
        ],
        "overhead": {"cpu": "50m"},
    }
    assert requests({"spec": spec}) == {"cpu": 2150, "nvidia.com/gpu": 2}


def test_demand_keeps_selectors_and_tolerations(live: dict[str, Any]) -> None:
    live["spec"]["tolerations"] = [{"operator": "Exists"}]
    live["spec"]["nodeSelector"] = {"pool": "gpu"}
    found = demand(live)
    assert found.node_selector == {"pool": "gpu"}
    assert found.tolerations[0].operator == "Exists"


def test_demand_keeps_affinity_and_priority(live: dict[str, Any]) -> None:
    terms = [
        {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100", "h200"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    live["spec"] |= {"affinity": {"nodeAffinity": required}, "priority": 1000, "preemptionPolicy": "Never"}
    found = demand(live)
    assert found.node_terms == (
        (Requirement("gpu", "In", ("h100", "h200")),),
        (Requirement("metadata.name", "NotIn", ("n1",), field=True),),
    )
    assert (found.priority, found.preempts, found.owner) == (1000, False, "chat-prefill-a")
    live["spec"] |= {"nodeName": "n1", "schedulingGates": []}
    taken = use(live)
    assert taken is not None
    assert taken.priority == 1000


def test_nodes_that_are_not_ready_or_cordoned_are_not_schedulable() -> None:
    def node(ready: str = "True", **spec: Any) -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": ready}]
        return {
            "metadata": {"name": "n1", "labels": {"a": "b"}},
            "spec": spec,
            "status": {"conditions": conditions, "allocatable": {"cpu": "1500m", "pods": "110"}},
        }

    assert node_view(node()).schedulable
    assert node_view(node()).allocatable == {"cpu": 1500, "pods": 110}
    assert not node_view(node("Unknown")).schedulable
    assert not node_view(node(unschedulable=True)).schedulable
    assert node_view(node(taints=[{"key": "k", "effect": "NoSchedule"}])).taints[0].key == "k"


def test_a_router_whose_new_generation_was_not_observed_is_not_up_to_date() -> None:
    status = {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}
    seen = router_view({"metadata": {"generation": 2}, "status": status}, desired=1)
    assert not seen.up_to_date
    assert not router_view(None, desired=1).up_to_date


@pytest.mark.parametrize(("text", "value"), [("500m", 500), ("2", 2000), ("0.1", 100), ("1e3", 1_000_000), ("1n", 1)])
def test_cpu_is_counted_in_thousandths_rounded_up(text: str, value: int) -> None:
    assert amount("cpu", text) == value


def test_quantities() -> None:
    assert amount("memory", "2Gi") == 2 << 30
    assert parse_quantity("1.5k") == 1500
    assert (show("cpu", 1500), show("cpu", 2000), show("memory", 3 << 30), show("nvidia.com/gpu", 4)) == (
        "1500m",
        "2",
        "3Gi",
        "4",
    )
    with pytest.raises(QuantityError, match="such as 500m"):
        parse_quantity("many")
