"""Fake GPUs for clusters that have none (kind, minikube): so that placement can be tried and watched anywhere.

A node without GPUs is given an extended resource in its status, which the scheduler then really accounts for, and a
label that says which NVLink domain it is in. What was given is marked with an annotation, so that nodes with real GPUs
or labels of their own are left alone and everything can be taken away again. A kubelet that restarts forgets extended
resources: the loop compares and repairs every few seconds. In flow nodes as the API server shows them, out flow merge
patches; `plan_fakes` and `plan_removal` decide, `run` does.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from disagg_contract import labels
from disagg_contract.settings import Config, log_level_setting, setting
from disagg_operator.errors import ApiError
from disagg_operator.shell.blocking import BlockingApi, Document, until_terminated

log = logging.getLogger(__name__)

FAKE: Final = f"{labels.GROUP}/fake-gpus"
"""Annotation on a node that we gave fake GPUs: the domain that we labelled it with, empty where it had a label."""
_CONTROL_PLANE_TAINT: Final = "node-role.kubernetes.io/"
COMPONENT: Final = "fake-gpus"
"""Value of the component label on the pods of this program."""
JOB_LABEL: Final = "batch.kubernetes.io/job-name"
"""Label that Kubernetes puts on the pods of a Job: the remover is one, the keeper is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpusConfig(Config):
    """Settings of ``disagg fake-gpus``."""

    program: ClassVar[str] = "fake_gpus"

    gpus_per_node: int = setting(8, "fake GPUs of each node", low=1, high=64)
    nodes_per_domain: int = setting(1, "nodes that share one NVLink domain", low=1)
    resource: str = setting(labels.GPU_RESOURCE, "extended resource to advertise")
    domain_key: str = setting(labels.GPU_CLIQUE, "node label key that holds the NVLink domain")
    domain_prefix: str = setting("fake-domain-", "prefix of the domains' names; a number follows")
    node_selector: str = setting("", "label selector of the nodes to treat; empty: all")
    interval_seconds: float = setting(5.0, "wall seconds between looks at the nodes; a kubelet forgets", above=0)
    remove: bool = setting(False, "take everything away again, and exit")
    stop: str = setting("", "namespace/name of the Deployment to stop before removing, which would give them back")
    deadline_seconds: float = setting(120.0, "wall seconds that removing may take", above=0)
    log_level: str = log_level_setting()


@dataclass(frozen=True, slots=True)
class NodeChange:
    """Merge patches of one node: of the object itself, and of its status."""

    node: str
    metadata: Document | None = None
    status: Document | None = None


def plan_fakes(nodes: Iterable[Document], config: FakeGpusConfig) -> list[NodeChange]:
    """Patches that give every node without GPUs its fake ones; empty when all have them.

    Domains are filled in the order of the nodes' names. A node keeps the domain it was given once, so nodes that come
    and go move nobody else.
    """
    known = sorted(nodes, key=_name)
    sizes = Counter(domain for node in known if (domain := _annotations(node).get(FAKE)))
    changes: list[NodeChange] = []
    for node in known:
        if not _may_fake(node, config):
            continue
        found = _labels(node).get(config.domain_key)
        given = _annotations(node).get(FAKE)
        if given is None:
            given = "" if found else _first_with_room(sizes, config)
            sizes[given] += 1
        metadata: dict[str, Any] = {}
        if _annotations(node).get(FAKE) != given:
            metadata["annotations"] = {FAKE: given}
        if given and found != given:
            metadata["labels"] = {config.domain_key: given}
        wanted = {config.resource: str(config.gpus_per_node)}
        status = {
            part: wanted
            for part in ("capacity", "allocatable")
            if node.get("status", {}).get(part, {}).get(config.resource) != wanted[config.resource]
        }
        if metadata or status:
            changes.append(
                NodeChange(
                    _name(node),
                    {"metadata": metadata} if metadata else None,
                    {"status": status} if status else None,
                )
            )
    return changes


def plan_removal(nodes: Iterable[Document], config: FakeGpusConfig) -> list[NodeChange]:
    """Patches that take away what `plan_fakes` gave, and nothing else."""
    changes: list[NodeChange] = []
    for node in sorted(nodes, key=_name):
        given = _annotations(node).get(FAKE)
        if given is None:
            continue
        metadata: dict[str, Any] = {"annotations": {FAKE: None}}
        if given and _labels(node).get(config.domain_key) == given:
            metadata["labels"] = {config.domain_key: None}
        status = {part: {config.resource: None} for part in ("capacity", "allocatable")}
        changes.append(NodeChange(_name(node), {"metadata": metadata}, {"status": status}))
    return changes


def _may_fake(node: Document, config: FakeGpusConfig) -> bool:
    taints = node.get("spec", {}).get("taints") or ()
    if any(t.get("effect") == "NoSchedule" and str(t["key"]).startswith(_CONTROL_PLANE_TAINT) for t in taints):
        return False
    if FAKE in _annotations(node):
        return True
    real = node.get("status", {}).get("capacity", {}).get(config.resource, "0")
    return str(real) == "0"


def _first_with_room(sizes: Mapping[str, int], config: FakeGpusConfig) -> str:
    number = 0
    while sizes.get(f"{config.domain_prefix}{number}", 0) >= config.nodes_per_domain:
        number += 1
    return f"{config.domain_prefix}{number}"


def _name(node: Document) -> str:
    return str(node["metadata"]["name"])


def _labels(node: Document) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _annotations(node: Document) -> Mapping[str, str]:
    return node["metadata"].get("annotations") or {}


class Cluster(Protocol):
    """The calls that are needed of a cluster. They raise `ApiError` when it refuses or can't be reached."""

    def nodes(self, selector: str) -> list[Document]:
        """All nodes that match a label selector."""

    def patch_node(self, name: str, patch: Document) -> None:
        """Merge into a node; a node that is gone is no error."""

    def patch_node_status(self, name: str, patch: Document) -> None:
        """Merge into a node's status; a node that is gone is no error."""

    def stop_deployment(self, namespace: str, name: str) -> bool:
        """Scale a Deployment to nothing; True once none of its pods is left."""


def apply(changes: Iterable[NodeChange], cluster: Cluster, *, metadata_first: bool) -> None:
    """Send the patches. The mark is written before the GPUs and taken away after them: a crash leaves the mark."""
    for change in changes:
        steps = [(cluster.patch_node, change.metadata), (cluster.patch_node_status, change.status)]
        for patch, body in steps if metadata_first else reversed(steps):
            if body is not None:
                patch(change.node, body)
        log.info("node %s: %s", change.node, json.dumps([change.metadata, change.status]))


def keep(cluster: Cluster, config: FakeGpusConfig, stopped: threading.Event) -> None:
    """Give fake GPUs until `stopped`. A cluster that can't be reached is tried again at the next look."""
    while not stopped.is_set():
        try:
            apply(plan_fakes(cluster.nodes(config.node_selector), config), cluster, metadata_first=True)
        except ApiError as error:
            log.warning("will try again in %g s: %s", config.interval_seconds, error)
        stopped.wait(config.interval_seconds)


def remove(
    cluster: Cluster,
    config: FakeGpusConfig,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> bool:
    """Take all fake GPUs away; False when the deadline passed first."""
    deadline = now() + config.deadline_seconds
    namespace, _, name = config.stop.partition("/")
    while now() < deadline:
        try:
            if not config.stop or cluster.stop_deployment(namespace, name):
                apply(plan_removal(cluster.nodes(""), config), cluster, metadata_first=False)
                return True
        except ApiError as error:
            log.warning("will try again: %s", error)
        sleep(1.0)
    log.error("not done within %g s", config.deadline_seconds)
    return False


class KubernetesCluster:
    """The cluster that this pod runs in, or that KUBECONFIG names."""

    def __init__(self) -> None:
        self._api = BlockingApi()

    def nodes(self, selector: str) -> list[Document]:
        return self._api.items(self._api.core.list_node, label_selector=selector)

    def patch_node(self, name: str, patch: Document) -> None:
        self._api.merge(self._api.core.patch_node, name, body=patch)

    def patch_node_status(self, name: str, patch: Document) -> None:
        self._api.merge(self._api.core.patch_node_status, name, body=patch)

    def stop_deployment(self, namespace: str, name: str) -> bool:
        scale = self._api.apps.patch_namespaced_deployment_scale
        if not self._api.merge(scale, name, namespace, body={"spec": {"replicas": 0}}):
            return True
        selector = f"{labels.NAME}={labels.APP},{labels.COMPONENT}={COMPONENT},!{JOB_LABEL}"
        return not self._api.items(self._api.core.list_namespaced_pod, namespace, label_selector=selector)


def run(config: FakeGpusConfig) -> int:
    """`disagg fake-gpus`: exit status 0, or 1 when removing did not get done."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    cluster = KubernetesCluster()
    if config.remove:
        return 0 if remove(cluster, config) else 1
    keep(cluster, config, until_terminated())
    return 0
