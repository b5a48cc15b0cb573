"""Nodes and pods that only seem to run, for tests at a size that no machine holds: KWOK plays their kubelets.

In: the list of fake nodes. Out: exactly these exist, marked so that KWOK keeps them Ready and acts their pods; none
and no KWOK process when the list is empty. They carry a taint, so only pods that tolerate it go there.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from embedded.kubectl import get, kubectl, ready_nodes
from embedded.layout import Cluster
from embedded.shell import say, wait_until
from embedded.topology import GPU_RESOURCE, KWOK_ANNOTATION, KWOK_LABEL, Node

_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)


def ensure(cluster: Cluster, nodes: list[Node]) -> None:
    """Make the fake nodes be exactly these."""
    listed = get(cluster, "nodes", "-l", f"{KWOK_LABEL}=kwok")["items"]
    existing = {item["metadata"]["name"]: int(item["status"]["capacity"].get(GPU_RESOURCE, 0)) for item in listed}
    wanted = {node.name: node for node in nodes}
    surplus = [name for name, gpus in existing.items() if name not in wanted or wanted[name].gpus != gpus]
    if surplus:
        say(f"KWOK: removing {len(surplus)} nodes")
        _delete(cluster, surplus)
    if not nodes:
        cluster.stop_roles(("kwok",))
        return
    _start(cluster)
    missing = [node for node in nodes if node.name not in existing or node.name in surplus]
    if missing:
        say(f"KWOK: creating {len(missing)} nodes")
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [node_object(node) for node in missing]})
        kubectl(cluster, "create", "-f", "-", stdin=text, timeout_seconds=600)

    def all_ready() -> bool:
        ready = ready_nodes(cluster)
        return all(name in ready for name in wanted)

    wait_until(
        all_ready,
        what=f"readiness of {len(nodes)} KWOK nodes",
        timeout_seconds=60 + len(nodes) * 0.2,
        every_seconds=1,
        alive=lambda: cluster.why_dead("kwok"),
    )


def node_object(node: Node) -> dict[str, Any]:
    """Node object of one fake node."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "250", **({GPU_RESOURCE: str(node.gpus)} if node.gpus else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "annotations": {KWOK_ANNOTATION: "fake"},
            "labels": {
                KWOK_LABEL: "kwok",
                "kubernetes.io/hostname": node.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **node.labels,
            },
        },
        "spec": {"taints": [{"key": KWOK_ANNOTATION, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _delete(cluster: Cluster, names: list[str]) -> None:
    """Delete nodes a hundred a request; `kubectl delete` takes one request, and a fifth of a second, for each."""
    for first in range(0, len(names), 100):
        selector = quote(f"kubernetes.io/hostname in ({','.join(names[first : first + 100])})")
        kubectl(cluster, "delete", "--raw", f"/api/v1/nodes?labelSelector={selector}")


def _start(cluster: Cluster) -> None:
    program = cluster.program("kwok")
    stages = [program.parent / "files" / name for name in _STAGES]
    argv = [
        str(program),
        f"--kubeconfig={cluster.kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}=fake",
        f"--cidr={cluster.subnets.fake_pods}",
        f"--node-ip={cluster.subnets.control_plane}",
        "--node-lease-duration-seconds=40",
        *(f"--config={stage}" for stage in stages),
    ]
    cluster.ensure_running("kwok", argv, files=tuple(stages))
