"""Talking to the cluster's API server, through its own kubectl."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from embedded.errors import CommandError
from embedded.layout import Cluster
from embedded.shell import run


def kubectl(cluster: Cluster, *arguments: str, stdin: str | None = None, timeout_seconds: float = 60) -> str:
    """Run kubectl as the cluster's administrator and return its output; raises CommandError."""
    argv = [str(cluster.program("kubectl")), f"--kubeconfig={cluster.kubeconfig}", *arguments]
    hint = f"The API server's log is {cluster.log('apiserver')}."
    return run(argv, stdin=stdin, timeout_seconds=timeout_seconds, hint=hint)


def apply(cluster: Cluster, *objects: dict[str, Any]) -> None:
    """Make objects be as given (server-side apply, so that it can be repeated)."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    kubectl(
        cluster, "apply", "--server-side", "--force-conflicts", "--field-manager=disagg-cluster", "-f", "-", stdin=text
    )


def get(cluster: Cluster, *arguments: str) -> dict[str, Any]:
    """Run `kubectl get … -o json`."""
    answer: dict[str, Any] = json.loads(kubectl(cluster, "get", *arguments, "-o", "json"))
    return answer


def is_ready(cluster: Cluster) -> bool:
    """Ask the API server whether it is ready; False while nobody answers."""
    try:
        return kubectl(cluster, "get", "--raw", "/readyz", "--request-timeout=3s", timeout_seconds=10).strip() == "ok"
    except CommandError:
        return False


def ready_nodes(cluster: Cluster) -> dict[str, float]:
    """Map every Ready node, fake ones included, to the time of its last heartbeat (seconds since 1970)."""
    ready = '.status.conditions[?(@.type=="Ready")]'
    template = f'{{range .items[*]}}{{.metadata.name}} {{{ready}.status}} {{{ready}.lastHeartbeatTime}}{{"\\n"}}{{end}}'
    lines = (line.split() for line in kubectl(cluster, "get", "nodes", "-o", f"jsonpath={template}").splitlines())
    return {words[0]: datetime.fromisoformat(words[2]).timestamp() for words in lines if words[1:2] == ["True"]}
