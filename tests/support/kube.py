"""Talking to a cluster as a person does: through ``kubectl`` and ``helm``.

The programs come from ``DISAGG_KUBECTL`` and ``DISAGG_HELM``, or from PATH. Every wait has a deadline and, when it
passes, an error that shows what the cluster says.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]


class ClusterError(AssertionError):
    """A command against the cluster failed, or a condition was not met in time."""


def program(name: str) -> str:
    found = os.environ.get(f"DISAGG_{name.upper()}") or shutil.which(name)
    if not found:
        raise ClusterError(f"{name} not found: put it on PATH or name it in DISAGG_{name.upper()}")
    return found


def run(*command: str, stdin: str | None = None, timeout_seconds: float = 120, check: bool = True) -> str:
    """Output of a command. Raises ClusterError with stderr when it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    if check and done.returncode:
        raise ClusterError(f"{' '.join(command)}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout if check else done.stdout + done.stderr


def wait_until(
    condition: Callable[[], Any], what: str, *, timeout_seconds: float, show: Callable[[], str] = str
) -> Any:
    """First truthy value of ``condition``, polled. ``show`` tells the state when the deadline passes."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {timeout_seconds:.0f} s: {what}\n{show()}")
        time.sleep(0.25)


@dataclass(frozen=True)
class Kube:
    """``kubectl`` bound to a kubeconfig and a namespace."""

    kubeconfig: Path
    namespace: str = "default"

    def within(self, namespace: str) -> "Kube":
        return Kube(self.kubeconfig, namespace)

    def __call__(self, *args: str, stdin: str | None = None, timeout_seconds: float = 120, check: bool = True) -> str:
        return run(
            program("kubectl"),
            f"--kubeconfig={self.kubeconfig}",
            f"--namespace={self.namespace}",
            *args,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            check=check,
        )

    def apply(self, *manifests: Object | Path, check: bool = True) -> str:
        text = "\n---\n".join(m.read_text() if isinstance(m, Path) else yaml.safe_dump(m) for m in manifests)
        return self("apply", "-f", "-", stdin=text, check=check)

    def items(self, kind: str, selector: str = "") -> list[Object]:
        items: list[Object] = json.loads(self("get", kind, "-o", "json", f"--selector={selector}"))["items"]
        return items

    def get(self, kind: str, name: str) -> Object | None:
        text = self("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def condition(self, kind: str, name: str, condition: str) -> Object | None:
        item = self.get(kind, name)
        found = (item or {}).get("status", {}).get("conditions", [])
        return next((c for c in found if c["type"] == condition), None)

    def expect_condition(
        self, kind: str, name: str, condition: str, status: str = "True", *, timeout_seconds: float = 120
    ) -> Object:
        def met() -> Object | None:
            found = self.condition(kind, name, condition)
            return found if found and found["status"] == status else None

        result: Object = wait_until(
            met,
            f"{kind}/{name} has {condition}={status}",
            timeout_seconds=timeout_seconds,
            show=lambda: self.explain(kind, name),
        )
        return result

    def events(self, name: str) -> list[Object]:
        """Events about an object of this name, oldest first."""
        found = [e for e in self.items("events") if e["involvedObject"]["name"] == name]
        return sorted(found, key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "")

    def explain(self, kind: str, name: str) -> str:
        """Everything a person would look at next."""
        return "\n".join(
            [
                self("describe", kind, name, check=False),
                self("get", "dd,dg,pods", "-o", "wide", check=False),
                self("get", "events", "--sort-by=.lastTimestamp", check=False)[-4000:],
            ]
        )

    def raw(self, path: str) -> str:
        return self("get", "--raw", path)

    def pod_get(self, pod: str, path: str, *, port: int = 8000) -> str:
        """GET through the API server's proxy, which works on every kind of cluster."""
        return self.raw(f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{port}/proxy{path}")

    def service_get(self, service: str, path: str, *, port: int | str) -> str:
        return self.raw(f"/api/v1/namespaces/{self.namespace}/services/{service}:{port}/proxy{path}")


@dataclass(frozen=True)
class Helm:
    """``helm`` bound to a kubeconfig and a namespace."""

    kubeconfig: Path
    namespace: str

    def __call__(self, *args: str, timeout_seconds: float = 300, check: bool = True) -> str:
        return run(
            program("helm"),
            f"--kubeconfig={self.kubeconfig}",
            f"--namespace={self.namespace}",
            *args,
            timeout_seconds=timeout_seconds,
            check=check,
        )


def sets(values: dict[str, str]) -> Iterable[str]:
    """``--set`` arguments."""
    for key, value in values.items():
        yield "--set"
        yield f"{key}={value}"


def wait_until_cleared(kube: Kube) -> None:
    """Wait for the namespaces of tests that have ended, and so for the GPUs that their pods held."""

    def going() -> list[str]:
        found = kube.items("namespaces", "disagg.dev/test=true")
        return [item["metadata"]["name"] for item in found if item["status"]["phase"] == "Terminating"]

    wait_until(lambda: not going(), "namespaces are gone", timeout_seconds=180, show=lambda: str(going()))
