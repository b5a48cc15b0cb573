"""Every pod of ours goes into a namespace that enforces the restricted Pod Security standard; policies are accepted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from disagg_crds import DisaggDeployment, DisaggGroup, Role, read_deployment, read_group
from disagg_operator.render.budgets import disruption_budgets
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import NewInstance, pod
from disagg_operator.render.planners import planner_deployment
from disagg_operator.render.policies import network_policies
from disagg_operator.render.services import router_deployment
from tests.support.kube import Kube

Document = dict[str, Any]
Render = Callable[..., list[Document]]
AROUND = Surroundings(
    image="disagg:0.1.0", prometheus_url="http://p:9090", network_policies=True, trusted_namespaces=("monitoring",)
)
EVERYTHING = ("monitoring.enabled=true", "fakeGpus.enabled=true", "networkPolicy.enabled=true")
GPU = {"type": "h100"}
VLLM: Document = {
    "prefill": {"replicas": 1, "gpu": GPU},
    "decode": {"replicas": 2, "gpu": GPU},
    "engine": {"type": "vllm", "image": "vllm:1", "vllm": {"transfer": {"rdma": {"resourceName": "rdma/ib"}}}},
}


@pytest.fixture(scope="module")
def restricted(module_namespace: Kube) -> Kube:
    level = "pod-security.kubernetes.io/enforce=restricted"
    module_namespace("label", "namespace", module_namespace.namespace, level)
    return module_namespace


def deployment(namespace: str, **spec: Any) -> DisaggDeployment:
    wanted = {
        "model": "opt-13b",
        "slo": {"ttftSeconds": 0.25, "tpotSeconds": 0.1},
        "prefill": {"autoscaling": {"max": 2}, "gpu": GPU},
        "decode": {"autoscaling": {"max": 2}, "gpu": GPU},
        "router": {"replicas": 2},
        **spec,
    }
    metadata = {"name": "chat", "namespace": namespace, "uid": "00000000-0000-0000-0000-000000000001"}
    return read_deployment(
        {"apiVersion": "disagg.dev/v1alpha1", "kind": "DisaggDeployment", "metadata": metadata, "spec": wanted}
    )


def group(namespace: str) -> DisaggGroup:
    return read_group(
        {
            "apiVersion": "disagg.dev/v1alpha1",
            "kind": "DisaggGroup",
            "metadata": {"name": "chat-decode", "namespace": namespace, "uid": "00000000-0000-0000-0000-000000000002"},
            "spec": {"deployment": "chat", "role": "decode", "replicas": 1},
        }
    )


def instance(namespace: str, **spec: Any) -> Document:
    new = NewInstance(name="chat-decode-a", role=Role.DECODE, gang="chat")
    return pod(deployment(namespace, **spec), group(namespace), new, around=AROUND)


def templates(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] in ("Deployment", "Job"):
            yield name, document["spec"]["template"]["spec"]
        elif document["kind"] == "Pod":
            yield name, document["spec"]


def admit(kube: Kube, spec: Document) -> str:
    """What the API server says of a pod. The account that it would run as need not exist yet."""
    bare = {key: value for key, value in spec.items() if key != "serviceAccountName"}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": bare}
    return kube("create", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest), check=False)


def test_pods_of_the_chart_are_admitted(render: Render, restricted: Kube) -> None:
    found = dict(templates(render(*EVERYTHING)))
    assert len(found) == 6
    assert {name: admit(restricted, spec) for name, spec in found.items()} == dict.fromkeys(
        found, "pod/probe created (server dry run)\n"
    )


def test_routers_planners_and_workers_are_admitted(restricted: Kube) -> None:
    namespace = restricted.namespace
    documents = [
        router_deployment(deployment(namespace), around=AROUND),
        planner_deployment(deployment(namespace), around=AROUND),
        instance(namespace),
        instance(namespace, **VLLM),
    ]
    answers = [admit(restricted, spec) for _, spec in templates(documents)]
    assert answers == ["pod/probe created (server dry run)\n"] * 4


def test_locked_memory_is_below_the_standard_as_documented(restricted: Kube) -> None:
    transfer = {"rdma": {"resourceName": "rdma/ib", "lockMemory": True}}
    engine = {**VLLM["engine"], "vllm": {"transfer": transfer}}
    (spec,) = [spec for _, spec in templates([instance(restricted.namespace, **{**VLLM, "engine": engine})])]
    answer = admit(restricted, spec)
    assert "violates PodSecurity" in answer
    assert "IPC_LOCK" not in answer.partition("unrestricted capabilities")[0]


def test_policies_and_budgets_of_a_deployment_are_accepted(restricted: Kube) -> None:
    wanted = deployment(restricted.namespace)
    documents = [*network_policies(wanted, around=AROUND), *disruption_budgets(wanted)]
    closed = network_policies(wanted, around=replace(AROUND, trusted_namespaces=()))
    for number, policy in enumerate(closed):
        documents.append({**policy, "metadata": {**policy["metadata"], "name": f"closed-{number}"}})
    answer = restricted("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(documents), check=False)
    assert answer.count("(server dry run)") == len(documents) == 9, answer
