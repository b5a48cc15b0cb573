"""`fakeGpus.enabled=true` gives GPU-less nodes fake GPUs, gives them again, and takes them away on uninstall.

The nodes here are objects without a kubelet: nobody but the chart writes to them, and the real nodes of the cluster
are left out by the selector.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_contract import labels
from disagg_operator.shell.fakegpus import FAKE
from tests.e2e.conftest import CHART, image_values
from tests.support.kube import Helm, Kube, sets, wait_until

LABEL = "disagg.dev/test-bare"
NODES = ("bare-1", "bare-2", "bare-3")


@pytest.fixture
def bare_nodes(kubeconfig: Path) -> Iterator[Kube]:
    kube = Kube(kubeconfig)
    cordoned = {"unschedulable": True, "taints": [{"key": LABEL, "effect": "NoExecute"}]}
    try:
        kube.apply(
            *(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": {LABEL: "true"}},
                    "spec": cordoned,
                }
                for name in NODES
            )
        )
        yield kube
    finally:
        kube("delete", "node", "--selector", LABEL)


def gpus(kube: Kube) -> dict[str, tuple[str | None, str | None]]:
    """Fake GPUs and domain of every bare node."""
    nodes: dict[str, dict[str, Any]] = {node["metadata"]["name"]: node for node in kube.items("nodes", LABEL)}
    return {
        name: (
            node["status"].get("allocatable", {}).get(labels.GPU_RESOURCE),
            node["metadata"]["labels"].get(labels.GPU_CLIQUE),
        )
        for name, node in nodes.items()
    }


def test_fake_gpus_come_come_back_and_go(bare_nodes: Kube, namespace: Kube, kubeconfig: Path) -> None:
    kube, helm = bare_nodes, Helm(kubeconfig, namespace.namespace)
    values = {
        **image_values(),
        "fakeGpus.enabled": "true",
        "fakeGpus.gpusPerNode": "4",
        "fakeGpus.nodesPerDomain": "2",
        "fakeGpus.intervalSeconds": "1",
        "fakeGpus.nodeSelector": LABEL,
        "operator.replicas": "0",
        "crds.install": "false",
        "prometheus.enabled": "false",
    }
    helm("install", "fakes", str(CHART), "--wait", "--timeout=120s", *sets(values))
    wanted = {"bare-1": ("4", "fake-domain-0"), "bare-2": ("4", "fake-domain-0"), "bare-3": ("4", "fake-domain-1")}
    wait_until(lambda: gpus(kube) == wanted, "fake GPUs", timeout_seconds=60, show=lambda: str(gpus(kube)))

    # What a kubelet does to extended resources when it starts.
    zero = json.dumps({"status": {part: {labels.GPU_RESOURCE: "0"} for part in ("capacity", "allocatable")}})
    kube("patch", "node", "bare-2", "--subresource=status", "--type=merge", "-p", zero)
    wait_until(lambda: gpus(kube) == wanted, "fake GPUs again", timeout_seconds=60, show=lambda: str(gpus(kube)))

    helm("uninstall", "fakes", "--wait", "--timeout=120s")
    assert gpus(kube) == dict.fromkeys(NODES, (None, None))
    assert not [node for node in kube.items("nodes", LABEL) if FAKE in node["metadata"].get("annotations", {})]
    assert not namespace.items("pods", f"{labels.COMPONENT}=fake-gpus")
