"""Helpers for tests that serve real requests from pods."""

import base64
import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from disagg_contract import labels, ports
from disagg_contract.tokens import TOKEN_FILE_KEY
from tests.support.kube import ClusterError, Kube, Object, program, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def image() -> str:
    """Image that the operator and its pods run; it must be loaded into the cluster's nodes."""
    return os.environ.get("DISAGG_IMAGE", "disagg:dev")


def prometheus_image() -> str:
    return os.environ.get("DISAGG_PROMETHEUS_IMAGE", "disagg-prometheus:dev")


def example(name: str, **changes: Any) -> Object:
    """A shipped example, with dotted keys of its spec replaced: ``planner__intervalSeconds=10``."""
    manifest: Object = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        target = manifest["spec"]
        for key in path:
            target = target.setdefault(key, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return manifest


def pods(kube: Kube, deployment: str, *components: str) -> list[Object]:
    """Pods of a deployment that are not going away, of the components named (default: those with GPUs)."""
    wanted = components or tuple(role.value for role in labels.Role)
    selector = f"{labels.DEPLOYMENT}={deployment},{labels.COMPONENT} in ({','.join(wanted)})"
    return [p for p in kube.items("pods", selector) if "deletionTimestamp" not in p["metadata"]]


def replicas(kube: Kube, group: str) -> int:
    found = kube.get("dg", group)
    if found is None:
        raise ClusterError(f"dg/{group} does not exist")
    count: int = found["spec"]["replicas"]
    return count


@contextmanager
def port_forward(kube: Kube, target: str, port: int = ports.HTTP) -> Iterator[str]:
    """Base URL of a service or pod, on any kind of cluster."""
    process = subprocess.Popen(
        [
            program("kubectl"),
            f"--kubeconfig={kube.kubeconfig}",
            f"--namespace={kube.namespace}",
            "port-forward",
            target,
            f":{port}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"127\.0\.0\.1:(\d+)", line)
        if not match:
            raise ClusterError(f"kubectl port-forward {target}: {line}{process.stdout.read()}")
        yield f"http://127.0.0.1:{match[1]}"
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close() if process.stdout else None


def post(url: str, body: Object, *, bearer: str = "", timeout_seconds: float = 60) -> Object:
    """JSON answer of a POST; an error answer is returned as it is, with its ``status``."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    if bearer:
        request.add_header("authorization", f"Bearer {bearer}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:
            result: Object = json.load(answer)
            return result
    except urllib.error.HTTPError as error:
        with error:
            return {"status": error.code, **json.loads(error.read() or b"{}")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_load(kube: Kube, name: str, *args: str, files: dict[str, str] | None = None) -> None:
    """Start ``disagg replay`` in a pod of the cluster; its report goes to the log as one JSON line."""
    if files:
        kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": files})
    container: Object = {
        "name": "replay",
        "image": image(),
        "imagePullPolicy": "IfNotPresent",
        "args": ["replay", *args, "--json", "-"],
        "resources": {"requests": {"cpu": "10m"}},
    }
    spec: Object = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    if files:
        container["volumeMounts"] = [{"name": "files", "mountPath": "/files"}]
        spec["volumes"] = [{"name": "files", "configMap": {"name": name}}]
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def load_report(kube: Kube, name: str, *, timeout_seconds: float) -> Object:
    """Report of a load pod, once it has ended."""

    def ended() -> str | None:
        phase: str = (kube.get("pod", name) or {}).get("status", {}).get("phase", "Pending")
        return phase if phase in ("Succeeded", "Failed") else None

    wait_until(
        ended,
        f"load {name} ends",
        timeout_seconds=timeout_seconds,
        show=lambda: kube("describe", "pod", name, check=False) + kube("logs", name, check=False)[-3000:],
    )
    log = kube("logs", name)
    lines = [line for line in log.splitlines() if line.startswith("{")]
    if not lines:
        raise ClusterError(f"load {name} wrote no report:\n{log[-3000:]}")
    report: Object = json.loads(lines[-1])
    return report


def token(kube: Kube, deployment: str) -> str:
    """What members of a deployment show each other."""
    secret = kube.get("secret", f"{deployment}-token")
    if secret is None:
        raise ClusterError(f"secret/{deployment}-token does not exist")
    return base64.b64decode(secret["data"][TOKEN_FILE_KEY]).decode().split()[0]


def slow_down(kube: Kube, deployment: str, role: str, factor: float) -> None:
    """Make every worker of a role slower, as an ageing or throttled GPU would be."""
    shown = token(kube, deployment)
    for pod in pods(kube, deployment, role):
        # Not through the API server's proxy, which keeps the Authorization header to itself.
        with port_forward(kube, f"pod/{pod['metadata']['name']}") as url:
            answer = post(url + ports.SLOWDOWN_PATH, {"factor": factor}, bearer=shown)
        if answer != {"factor": factor}:
            raise ClusterError(f"{pod['metadata']['name']}: {ports.SLOWDOWN_PATH} says {answer}")


def stop_load(kube: Kube, name: str) -> None:
    kube("delete", "pod", name, "--wait=true", "--ignore-not-found")


def history(read: Any, *, seconds: float) -> list[Any]:
    """Values of ``read`` for a while, where a change would be a fault."""
    end = time.monotonic() + seconds
    seen = []
    while time.monotonic() < end:
        seen.append(read())
        time.sleep(0.5)
    return seen
