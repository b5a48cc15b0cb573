"""The planner's Kubernetes side against a real API server, with the rights that the operator gives it and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.aio import client, config

from disagg_contract.control import Condition, Event
from disagg_contract.labels import Role
from disagg_crds import read_deployment
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.planners import planner_objects
from disagg_planner.core.fleet import Group
from disagg_planner.errors import ScaleConflict, ScaleRefused, ScalerError
from disagg_planner.shell.kubernetes import KubernetesRuntime
from tests.support.crds import installed_crds
from tests.support.kube import Kube

EXAMPLE = Path(__file__).parents[3] / "examples" / "chat-13b.yaml"
OPERATORS = {"type": "Ready", "status": "False", "reason": "InstancesNotReady", "message": "a test says so"}


@pytest.fixture(scope="module")
def crds(kubeconfig: Path) -> Iterator[Kube]:
    with installed_crds(kubeconfig) as kube:
        yield kube


@pytest.fixture
def deployed(crds: Kube, namespace: Kube) -> Kube:
    """chat-13b, its two groups, and the planner's account with its rights."""
    document = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"]["namespace"] = namespace.namespace
    namespace.apply(document)
    deployment = read_deployment(namespace.get("dd", "chat-13b") or {})
    rights = [
        manifest
        for manifest in planner_objects(deployment, around=Surroundings(image="none"))
        if manifest["kind"] in ("ServiceAccount", "Role", "RoleBinding")
    ]
    for role in (Role.PREFILL, Role.DECODE):
        namespace.apply(
            {
                "apiVersion": "disagg.dev/v1alpha1",
                "kind": "DisaggGroup",
                "metadata": {"name": f"chat-13b-{role.value}"},
                "spec": {"deployment": "chat-13b", "role": role.value, "replicas": 1},
            }
        )
    namespace.apply(*rights)
    return namespace


@pytest.fixture
async def runtime(deployed: Kube) -> AsyncIterator[KubernetesRuntime]:
    token = deployed("create", "token", "chat-13b-planner").strip()
    settings = client.Configuration()
    await config.load_kube_config(config_file=str(deployed.kubeconfig), client_configuration=settings)
    settings.api_key = {"BearerToken": f"Bearer {token}"}
    settings.cert_file = settings.key_file = None
    opened = KubernetesRuntime(
        client.ApiClient(settings), namespace=deployed.namespace, deployment="chat-13b", instance="test"
    )
    yield opened
    await opened.close()


def replicas(kube: Kube, role: Role) -> int:
    group = kube.get("dg", f"chat-13b-{role.value}")
    assert group is not None
    return int(group["spec"]["replicas"])


async def test_a_scale_is_written_once_per_version(deployed: Kube, runtime: KubernetesRuntime) -> None:
    state = await runtime.read(Role.DECODE)
    assert state.group == Group(replicas=1, existing=1, ready=None), "nobody has counted yet"
    await runtime.write(Role.DECODE, 3, state.resource_version)
    assert replicas(deployed, Role.DECODE) == 3
    with pytest.raises(ScaleConflict):
        await runtime.write(Role.DECODE, 4, state.resource_version)
    assert (await runtime.read(Role.DECODE)).group.replicas == 3
    assert replicas(deployed, Role.PREFILL) == 1


async def test_pl6_what_the_api_refuses_is_told_apart(deployed: Kube, runtime: KubernetesRuntime) -> None:
    state = await runtime.read(Role.PREFILL)
    with pytest.raises(ScaleRefused):
        await runtime.write(Role.PREFILL, -1, state.resource_version)
    deployed("delete", "dg", "chat-13b-prefill")
    with pytest.raises(ScalerError, match="404"):
        await runtime.read(Role.PREFILL)


async def test_conditions_live_beside_the_operators(deployed: Kube, runtime: KubernetesRuntime) -> None:
    await runtime.conditions(
        (
            Condition("MetricsAvailable", "False", "MetricsMissing", "no samples"),
            Condition("ScalingActive", "False", "Holding"),
        )
    )
    status = {"conditions": [OPERATORS | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    document = {
        "apiVersion": "disagg.dev/v1alpha1",
        "kind": "DisaggDeployment",
        "metadata": {"name": "chat-13b"},
        "status": status,
    }
    deployed(
        "apply", "--server-side", "--field-manager=disagg-operator", "--subresource=status", "-f", "-",
        stdin=yaml.safe_dump(document),
    )  # fmt: skip
    since = deployed.condition("dd", "chat-13b", "ScalingActive")
    await runtime.conditions(
        (Condition("MetricsAvailable", "True", "MetricsFresh"), Condition("ScalingActive", "False", "Advisory"))
    )
    ready = deployed.condition("dd", "chat-13b", "Ready")
    fresh = deployed.condition("dd", "chat-13b", "MetricsAvailable")
    active = deployed.condition("dd", "chat-13b", "ScalingActive")
    assert ready is not None
    assert (ready["reason"], ready["lastTransitionTime"]) == ("InstancesNotReady", "2026-01-01T00:00:00Z")
    assert fresh is not None
    assert (fresh["status"], fresh["reason"], fresh["observedGeneration"]) == ("True", "MetricsFresh", 1)
    assert active is not None
    assert since is not None
    assert (active["reason"], active["lastTransitionTime"]) == ("Advisory", since["lastTransitionTime"])


async def test_events_are_about_the_deployment(deployed: Kube, runtime: KubernetesRuntime) -> None:
    await runtime.event(Event("Normal", "TPOTAboveSLO", "decode 1 -> 2: TPOT is 0.042 s against an SLO of 0.035 s"))
    (event,) = deployed.events("chat-13b")
    assert (event["reason"], event["type"]) == ("TPOTAboveSLO", "Normal")
    assert event["involvedObject"]["kind"] == "DisaggDeployment"
    assert "decode 1 -> 2" in deployed("describe", "dd", "chat-13b")
