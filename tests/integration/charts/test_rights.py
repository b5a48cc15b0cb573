"""The operator with nothing but the rights that the chart gives it, against a real API server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.crds import installed_crds
from tests.support.kube import Kube, wait_until

Document = dict[str, Any]
Render = Callable[..., list[Document]]
GPU = {"type": "a100-80gb"}
DEPLOYMENT: Document = {
    "apiVersion": "disagg.dev/v1alpha1",
    "kind": "DisaggDeployment",
    "metadata": {"name": "chat"},
    "spec": {
        "model": "opt-13b",
        "slo": {"ttftSeconds": 0.25, "tpotSeconds": 0.1},
        "prefill": {"replicas": 1, "gpu": GPU},
        "decode": {"autoscaling": {"min": 1, "max": 2}, "gpu": GPU},
        "router": {"replicas": 2},
    },
}
CHILDREN = (
    ("dg", {"chat-prefill", "chat-decode"}),
    ("deployments.apps", {"chat-router", "chat-planner"}),
    ("networkpolicies", {"chat-router", "chat-planner", "chat-workers"}),
    ("pdb", {"chat-prefill", "chat-decode", "chat-router"}),
    ("roles", {"chat-router", "chat-planner"}),
)
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Lease")


@pytest.fixture(scope="module")
def crds(kubeconfig: Path) -> Iterator[Kube]:
    with installed_crds(kubeconfig) as kube:
        yield kube


def operators_own(documents: list[Document]) -> list[Document]:
    own = [d for d in documents if d["kind"] in RIGHTS]
    return [d for d in own if d["metadata"]["labels"]["app.kubernetes.io/component"] == "operator"]


@contextmanager
def operator(kube: Kube, arguments: list[str], folder: Path) -> Iterator[Path]:
    """The program with the ServiceAccount's token; gives the file that it logs to."""
    config = yaml.safe_load(kube("config", "view", "--raw", "--minify", "-o", "yaml"))
    config["users"] = [
        {"name": user["name"], "user": {"token": kube("create", "token", "disagg-operator").strip()}}
        for user in config["users"]
    ]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    log = folder / "log"
    own = [item for item in arguments if not item.startswith(("--resync-seconds", "--log-level"))]
    command = [str(Path(sys.executable).parent / "disagg"), "operator", *own, "--health-port=0", "--metrics-port=0"]
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            env={"KUBECONFIG": str(path), "LOGNAME": "disagg", "PATH": "/usr/bin:/bin"},
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.mark.parametrize("values", [(), ("scope=namespace", "rbac.readNodes=true")], ids=["cluster", "namespace"])
def test_hc3_hc4_the_rights_of_the_chart_are_enough(
    render: Render, crds: Kube, namespace: Kube, tmp_path: Path, values: tuple[str, ...]
) -> None:
    documents = render(*values, "networkPolicy.enabled=true", namespace=namespace.namespace)
    rights = operators_own(documents)
    (deployment,) = [d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == "disagg-operator"]
    wide = [d for d in rights if d["kind"].startswith("Cluster")]
    namespace.apply(*rights)
    try:
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        with operator(namespace, arguments, tmp_path) as log:
            namespace.apply(DEPLOYMENT)

            def missing() -> dict[str, set[str]]:
                found = {kind: {item["metadata"]["name"] for item in namespace.items(kind)} for kind, _ in CHILDREN}
                return {kind: names - found[kind] for kind, names in CHILDREN if names - found[kind]}

            wait_until(
                lambda: not missing(), "everything is made", timeout_seconds=90, show=lambda: log.read_text()[-3000:]
            )
            wait_until(
                lambda: namespace.condition("dd", "chat", "GangScheduled"),
                "the status is written",
                timeout_seconds=60,
                show=lambda: log.read_text()[-3000:],
            )
            namespace("delete", "dd", "chat", "--wait=true")
        text = log.read_text()
        assert not re.search(r"\b403\b|[Ff]orbidden", text), text[-3000:]
    finally:
        namespace("delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        for document in wide:
            namespace("delete", document["kind"], document["metadata"]["name"], "--ignore-not-found")
