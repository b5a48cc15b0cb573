"""The operator in this process against a real API server, with nodes of the test's own.

The nodes exist as objects only: nobody runs pods there, so the tests decide what a kubelet would say. A taint keeps
everybody else's pods away, and each namespace has nodes of its own.
"""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from disagg_contract.config import OperatorConfig
from disagg_contract.labels import GPU_CLIQUE, GPU_RESOURCE, HOSTNAME
from disagg_operator.render.rights import OPERATOR_RULES
from disagg_operator.shell.kube.api import Call
from disagg_operator.shell.kube.operator import Operator
from tests.support.crds import installed_crds
from tests.support.kube import Kube, Object, wait_until

TAINT = "disagg.dev/test-nodes"
SERIAL = itertools.count()
WRITES = {"create", "patch", "update", "delete"}


@pytest.fixture(scope="session")
def crds(kubeconfig: Path) -> Iterator[Kube]:
    with installed_crds(kubeconfig) as kube:
        yield kube


@dataclass
class RunningOperator:
    """One operator in a thread. ``calls``: the API calls that it made; ``acted``: when it wrote, monotonic seconds."""

    config: OperatorConfig
    calls: list[Call] = field(default_factory=list)
    acted: list[float] = field(default_factory=list)
    thread: threading.Thread | None = None
    error: BaseException | None = None

    def start(self) -> "RunningOperator":
        ready: Future[None] = Future()

        async def main() -> None:
            operator = await Operator.build(self.config, record=self.record)
            self._stop = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
            ready.set_result(None)
            await operator.run(self._stop)

        def run() -> None:
            try:
                asyncio.run(main())
            except asyncio.CancelledError:
                return
            except BaseException as error:  # noqa: BLE001 - shown by the test that owns it
                self.error = error
                if not ready.done():
                    ready.set_exception(error)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        ready.result(30)
        return self

    def record(self, call: Call) -> None:
        self.calls.append(call)
        if call[2] in WRITES and call[1] != "leases":
            self.acted.append(time.monotonic())

    @property
    def alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def stop(self) -> None:
        """As SIGTERM does."""
        self._end(self._stop.set)

    def crash(self) -> None:
        """Nothing more is written, not even the lease."""
        assert self._task is not None
        self._end(self._task.cancel)

    def _end(self, ask: Callable[[], object]) -> None:
        if self.alive:
            self._loop.call_soon_threadsafe(ask)
            assert self.thread is not None
            self.thread.join(30)
        assert not self.alive

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call[2] in WRITES]


class Nodes:
    """Nodes of one namespace, and what their kubelets would say."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.names: dict[str, str] = {}

    def add(self, name: str, domain: str, *, gpus: int = 4) -> str:
        full = f"{self.kube.namespace}-{name}-{next(SERIAL)}"
        labels = {HOSTNAME: full, GPU_CLIQUE: f"{self.kube.namespace}-{domain}", TAINT: self.kube.namespace}
        taints = [{"key": TAINT, "value": self.kube.namespace, "effect": "NoSchedule"}]
        self.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": full, "labels": labels},
                "spec": {"taints": taints},
            }
        )
        self.names[name] = full
        self.say(name, gpus=gpus)
        wait_until(
            lambda: len((self.kube.get("node", full) or {})["spec"].get("taints", [])) == 1,
            f"{full} is Ready for the node controller",
            timeout_seconds=60,
        )
        return full

    def say(self, name: str, *, gpus: int = 4) -> None:
        """What its kubelet would report."""
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU_RESOURCE: str(gpus)}
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "a test says so"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [condition]}
        self._status("node", self.names[name], status)

    def fail(self, name: str) -> None:
        """Its kubelet says that it is not well: the node controller marks its pods and evicts them."""
        condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "a test says so"}
        self._status("node", self.names[name], {"conditions": [condition]})

    def beat(self) -> None:
        """Heartbeats: without them the node controller gives the nodes up after most of a minute."""
        for full in tuple(self.names.values()):
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": full, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": full, "leaseDurationSeconds": 3600, "renewTime": _now()},
            }
            self.kube.within("kube-node-lease").apply(lease)

    def run_pods(self, selector: str = "") -> int:
        """Every bound pod becomes Ready, and what is terminating goes; returns how many are Ready now."""
        ready = 0
        for pod in self.kube.items("pods", selector):
            name = pod["metadata"]["name"]
            if not pod["spec"].get("nodeName", "").startswith(self.kube.namespace):
                continue
            if pod["metadata"].get("deletionTimestamp"):
                self.kube("delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found", check=False)
                continue
            conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]
            self._status("pod", name, {"phase": "Running", "conditions": conditions})
            ready += 1
        return ready

    def clean(self) -> None:
        if self.names:
            self.kube("delete", "node", *self.names.values(), "--ignore-not-found", "--wait=false")
            self.kube.within("kube-node-lease")("delete", "lease", *self.names.values(), "--ignore-not-found")

    def _status(self, kind: str, name: str, status: Object) -> None:
        patch = json.dumps({"status": status})
        self.kube("patch", kind, name, "--subresource=status", "--type=merge", f"--patch={patch}", check=False)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class World:
    """A namespace, its nodes, and operators that look at it alone."""

    kube: Kube
    nodes: Nodes
    operators: list[RunningOperator] = field(default_factory=list)

    def operator(self, **settings: Any) -> RunningOperator:
        config = OperatorConfig(
            **{
                "namespace": self.kube.namespace,
                "lease_namespace": self.kube.namespace,
                "lease_seconds": 3.0,
                "health_port": 0,
                "metrics_port": 0,
                "resync_seconds": 20.0,
                "image": "disagg:test",
                "prometheus_url": "http://prometheus.example:9090",
                **settings,
            }
        )
        running = RunningOperator(config).start()
        self.operators.append(running)
        return running

    def deployment(self, name: str = "chat", **spec: Any) -> Object:
        """A deployment whose pods go to the test's nodes alone."""
        merged: Object = {
            "model": "opt-13b",
            "slo": {"ttftSeconds": 0.25, "tpotSeconds": 0.1},
            "prefill": {"replicas": 1},
            "decode": {"replicas": 1},
            **spec,
        }
        for role in ("prefill", "decode", "worker"):
            if merged.get(role) is not None:
                section = {"gpu": {"type": "a100-80gb"}, **merged[role]}
                section["template"] = self.template() | section.get("template", {})
                merged[role] = section
        for part in ("router", "planner"):
            merged[part] = {"template": self.template(), **merged.get(part, {})}
        return {
            "apiVersion": "disagg.dev/v1alpha1",
            "kind": "DisaggDeployment",
            "metadata": {"name": name},
            "spec": {key: value for key, value in merged.items() if value is not None},
        }

    def template(self) -> Object:
        return {
            "nodeSelector": {TAINT: self.kube.namespace},
            "tolerations": [{"key": TAINT, "operator": "Exists"}],
            "terminationGracePeriodSeconds": 3,
        }

    def pods(self, name: str = "chat", role: str = "") -> list[Object]:
        """Serving pods that are not on their way out."""
        selector = f"disagg.dev/deployment={name},disagg.dev/role" + (f"={role}" if role else "")
        return [pod for pod in self.kube.items("pods", selector) if not pod["metadata"].get("deletionTimestamp")]

    def bound(self, name: str = "chat", role: str = "") -> list[Object]:
        return [pod for pod in self.pods(name, role) if pod["spec"].get("nodeName")]

    def until_bound(self, count: int, name: str = "chat", role: str = "") -> list[Object]:
        found: list[Object] = wait_until(
            lambda: pods if len(pods := self.bound(name, role)) == count else None,
            f"{count} pods are bound",
            timeout_seconds=60,
            show=lambda: self.kube.explain("dd", name),
        )
        return found

    def until(self, condition: Callable[[], Any], what: str, *, seconds: float = 60) -> Any:
        return wait_until(condition, what, timeout_seconds=seconds, show=lambda: self.kube.explain("dd", "chat"))

    def status(self, name: str = "chat") -> Object:
        return (self.kube.get("dd", name) or {}).get("status", {})

    def reason(self, condition: str, name: str = "chat") -> str:
        found = self.kube.condition("dd", name, condition)
        return found["reason"] if found else ""

    def event_reasons(self, name: str = "chat") -> list[str]:
        return [event["reason"] for event in self.kube.events(name)]

    def make_ready(self, name: str = "chat") -> None:
        """Play kubelet until the deployment says Ready."""

        def ready() -> bool:
            self.nodes.run_pods()
            found = self.kube.condition("dd", name, "Ready")
            return found is not None and found["status"] == "True"

        self.until(ready, f"{name} is Ready")


@contextmanager
def world_of(kube: Kube) -> Iterator[World]:
    nodes = Nodes(kube)
    world = World(kube, nodes)
    stop = threading.Event()

    def heart() -> None:
        while not stop.wait(10):
            nodes.beat()

    thread = threading.Thread(target=heart, daemon=True)
    thread.start()
    try:
        yield world
        held = {(rule.group, kind, verb) for rule in OPERATOR_RULES for kind in rule.resources for verb in rule.verbs}
        for operator in world.operators:
            assert set(operator.calls) <= held, "HC4: every call is covered by the rights in the chart"
    finally:
        for operator in world.operators:
            operator.stop()
        stop.set()
        thread.join()
        kube("delete", "dd,dg,services,deployments,pdb,quota,limits", "--all", "--ignore-not-found", "--wait=false")
        kube("delete", "pods", "--all", "--force", "--grace-period=0")
        nodes.clean()
        wait_until(lambda: not kube.items("dd,dg,pods"), "nothing is left for the next test", timeout_seconds=60)


@pytest.fixture
def world(crds: Kube, module_namespace: Kube) -> Iterator[World]:
    """A namespace that is empty, and no nodes; add them as the test needs."""
    with world_of(module_namespace) as found:
        yield found
