"""Fake GPUs: `nvidia.com/gpu` in a node's status, so that the scheduler accounts for them, and the labels around them.

Nothing hands out devices; a pod that asks for GPUs is placed and counted as if there were some. A kubelet sets the
number to 0 when it starts, so it is written again after every start, until it stays.
"""

from __future__ import annotations

import json
from functools import partial

from embedded.kubectl import get, kubectl
from embedded.layout import Cluster
from embedded.shell import say, wait_until
from embedded.topology import GPU_RESOURCE, Node

_LABEL_PREFIX = "nvidia.com/gpu."


def ensure(cluster: Cluster, nodes: list[Node]) -> None:
    """Give every node its GPUs and labels, and take labels away that it should not have."""
    for node in nodes:
        wait_until(partial(_settled, cluster, node), what=f"{node.name}'s fake GPUs", timeout_seconds=60)
    summary = ", ".join(f"{node.name} {node.gpus} in {node.domain}" for node in nodes)
    say(f"fake GPUs: {summary}")


def _settled(cluster: Cluster, node: Node) -> bool:
    """Write what differs; True when nothing did."""
    found = get(cluster, "node", node.name)
    labels = found["metadata"].get("labels", {})
    stale = [name for name in labels if name.startswith(_LABEL_PREFIX) and name not in node.labels]
    wrong = {name: value for name, value in node.labels.items() if labels.get(name) != value}
    changes: dict[str, str | None] = {**wrong, **dict.fromkeys(stale)}
    if changes:
        patch = json.dumps({"metadata": {"labels": changes}})
        kubectl(cluster, "patch", "node", node.name, "--type=merge", "-p", patch)
    wanted = str(node.gpus)
    amounts = [found["status"].get(kind, {}).get(GPU_RESOURCE, "0") for kind in ("capacity", "allocatable")]
    if amounts != [wanted, wanted]:
        patch = json.dumps({"status": {kind: {GPU_RESOURCE: wanted} for kind in ("capacity", "allocatable")}})
        kubectl(cluster, "patch", "node", node.name, "--subresource=status", "--type=merge", "-p", patch)
    return not changes and amounts == [wanted, wanted]
