"""Fake GPUs: given to nodes that have none, kept, and taken away without a trace."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from disagg_contract.settings import parse
from disagg_operator.errors import ApiError
from disagg_operator.shell import fakegpus
from disagg_operator.shell.fakegpus import FAKE, FakeGpusConfig, keep, plan_fakes, plan_removal, remove

CONFIG = FakeGpusConfig(gpus_per_node=4, interval_seconds=0.001)
CLIQUE = "nvidia.com/gpu.clique"
GPU = "nvidia.com/gpu"


def node(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": changes.get("labels", {}), "annotations": {}},
        "spec": {"taints": changes.get("taints", [])},
        "status": {"capacity": {"cpu": "2", **changes.get("capacity", {})}, "allocatable": {"cpu": "2"}},
    }


def merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


class FakeCluster:
    """Nodes in memory; fails the first `failures` calls."""

    def __init__(self, *nodes: dict[str, Any], failures: int = 0, pods_left: int = 0) -> None:
        self.by_name = {n["metadata"]["name"]: copy.deepcopy(n) for n in nodes}
        self.failures = failures
        self.pods_left = pods_left
        self.writes: list[tuple[str, str]] = []
        self.looks = 0

    def nodes(self, selector: str) -> list[Mapping[str, Any]]:
        self.looks += 1
        if self.failures:
            self.failures -= 1
            raise ApiError("503 try later", code=503)
        return copy.deepcopy(list(self.by_name.values()))

    def patch_node(self, name: str, patch: Mapping[str, Any]) -> None:
        self.writes.append((name, "object"))
        merge(self.by_name[name], patch)

    def patch_node_status(self, name: str, patch: Mapping[str, Any]) -> None:
        self.writes.append((name, "status"))
        merge(self.by_name[name], patch)

    def stop_deployment(self, namespace: str, name: str) -> bool:
        self.stopped = (namespace, name)
        self.pods_left = max(0, self.pods_left - 1)
        return not self.pods_left

    def domains(self) -> dict[str, str | None]:
        return {name: n["metadata"]["labels"].get(CLIQUE) for name, n in self.by_name.items()}

    def gpus(self) -> dict[str, str | None]:
        return {name: n["status"]["allocatable"].get(GPU) for name, n in self.by_name.items()}


def settle(cluster: FakeCluster, config: FakeGpusConfig = CONFIG) -> FakeCluster:
    fakegpus.apply(plan_fakes(cluster.nodes(""), config), cluster, metadata_first=True)
    return cluster


def test_every_node_gets_gpus_and_a_domain_of_its_own() -> None:
    cluster = settle(FakeCluster(node("b"), node("a")))
    assert cluster.gpus() == {"a": "4", "b": "4"}
    assert cluster.domains() == {"a": "fake-domain-0", "b": "fake-domain-1"}


def test_nodes_share_domains_when_asked() -> None:
    cluster = settle(FakeCluster(*(node(f"n{i}") for i in range(5))), FakeGpusConfig(nodes_per_domain=2))
    assert list(cluster.domains().values()) == [f"fake-domain-{i // 2}" for i in range(5)]


def test_a_second_look_changes_nothing() -> None:
    cluster = settle(FakeCluster(node("a"), node("b")))
    assert plan_fakes(cluster.nodes(""), CONFIG) == []


def test_what_a_restarted_kubelet_forgot_comes_back_in_the_same_domain() -> None:
    cluster = settle(FakeCluster(node("a"), node("b")))
    cluster.by_name["b"]["status"] = {"capacity": {"cpu": "2", GPU: "0"}, "allocatable": {"cpu": "2", GPU: "0"}}
    del cluster.by_name["b"]["metadata"]["labels"][CLIQUE]
    settle(cluster)
    assert cluster.gpus() == {"a": "4", "b": "4"}
    assert cluster.domains() == {"a": "fake-domain-0", "b": "fake-domain-1"}


def test_a_new_node_fills_the_gap_that_another_left() -> None:
    cluster = settle(FakeCluster(node("a"), node("b"), node("c")))
    del cluster.by_name["b"]
    cluster.by_name["0"] = node("0")
    assert settle(cluster).domains() == {"a": "fake-domain-0", "c": "fake-domain-2", "0": "fake-domain-1"}


def test_real_gpus_and_control_planes_are_left_alone() -> None:
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    cluster = FakeCluster(node("real", capacity={GPU: "8"}), node("master", taints=[taint]))
    settle(cluster)
    assert cluster.writes == []


def test_a_label_that_was_there_stays_for_ever() -> None:
    cluster = settle(FakeCluster(node("a", labels={CLIQUE: "rack-7"})))
    assert cluster.domains() == {"a": "rack-7"}
    assert remove(cluster, CONFIG)
    assert cluster.domains() == {"a": "rack-7"}
    assert cluster.gpus() == {"a": None}


def test_removal_restores_the_nodes() -> None:
    before = [node("a"), node("b", labels={CLIQUE: "rack-7"}), node("real", capacity={GPU: "8"})]
    cluster = settle(FakeCluster(*before))
    assert remove(cluster, CONFIG)
    assert list(cluster.by_name.values()) == before
    assert plan_removal(cluster.nodes(""), CONFIG) == []


def test_the_mark_is_written_first_and_taken_away_last() -> None:
    cluster = settle(FakeCluster(node("a")))
    assert cluster.writes == [("a", "object"), ("a", "status")]
    assert FAKE in cluster.by_name["a"]["metadata"]["annotations"]
    cluster.writes.clear()
    remove(cluster, CONFIG)
    assert cluster.writes == [("a", "status"), ("a", "object")]


def test_removal_waits_until_the_keeper_is_gone() -> None:
    cluster = settle(FakeCluster(node("a"), pods_left=3))
    slept: list[float] = []
    config = FakeGpusConfig(remove=True, stop="disagg-system/disagg-fake-gpus")
    assert remove(cluster, config, now=lambda: 0.0, sleep=slept.append)
    assert cluster.stopped == ("disagg-system", "disagg-fake-gpus")
    assert len(slept) == 2
    assert cluster.gpus() == {"a": None}


def test_removal_gives_up_at_its_deadline() -> None:
    clock = iter(range(0, 1000, 50))
    cluster = FakeCluster(node("a"), failures=100)
    assert not remove(cluster, CONFIG, now=lambda: float(next(clock)), sleep=lambda _: None)


def test_an_unreachable_cluster_is_tried_again() -> None:
    stopped = threading.Event()

    class StopsAfterTheFirstNode(FakeCluster):
        def patch_node_status(self, name: str, patch: Mapping[str, Any]) -> None:
            super().patch_node_status(name, patch)
            stopped.set()

    cluster = StopsAfterTheFirstNode(node("a"), failures=2)
    keep(cluster, CONFIG, stopped)
    assert cluster.gpus() == {"a": "4"}
    assert cluster.looks == 3


def test_flags() -> None:
    config = parse(FakeGpusConfig, ["--gpus-per-node=2", "--remove=true", "--stop=a/b"], {})
    assert (config.gpus_per_node, config.remove, config.stop) == (2, True, "a/b")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """An API server of a few lines on loopback; records what is asked of it."""
    state: dict[str, Any] = {"requests": [], "answers": {}}

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.split("?")[0]
            state["requests"].append((self.command, path, self.headers.get("Content-Type"), body))
            code, document = state["answers"].get((self.command, path), (404, {}))
            data = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = answer

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_real_client_sends_merge_patches(api: dict[str, Any]) -> None:
    api["answers"] = {
        ("GET", "/api/v1/nodes"): (200, {"items": [node("a")]}),
        ("PATCH", "/api/v1/nodes/a"): (200, {}),
        ("PATCH", "/api/v1/nodes/a/status"): (200, {}),
    }
    cluster = fakegpus.KubernetesCluster()
    fakegpus.apply(plan_fakes(cluster.nodes(""), CONFIG), cluster, metadata_first=True)
    patches = [(path, kind, json.loads(body)) for method, path, kind, body in api["requests"] if method == "PATCH"]
    merge_patch = "application/merge-patch+json"
    given = {"annotations": {FAKE: "fake-domain-0"}, "labels": {CLIQUE: "fake-domain-0"}}
    assert patches == [
        ("/api/v1/nodes/a", merge_patch, {"metadata": given}),
        ("/api/v1/nodes/a/status", merge_patch, {"status": {"capacity": {GPU: "4"}, "allocatable": {GPU: "4"}}}),
    ]


def test_the_real_client_stops_the_keeper_and_waits_for_its_pods(api: dict[str, Any]) -> None:
    scale = ("PATCH", "/apis/apps/v1/namespaces/ns/deployments/keeper/scale")
    pods = ("GET", "/api/v1/namespaces/ns/pods")
    api["answers"] = {scale: (200, {}), pods: (200, {"items": [{"metadata": {"name": "keeper-1"}}]})}
    cluster = fakegpus.KubernetesCluster()
    assert not cluster.stop_deployment("ns", "keeper")
    api["answers"][pods] = (200, {"items": []})
    assert cluster.stop_deployment("ns", "keeper")
    del api["answers"][scale]
    assert cluster.stop_deployment("ns", "keeper")


def test_the_real_client_tells_gone_from_refused(api: dict[str, Any]) -> None:
    cluster = fakegpus.KubernetesCluster()
    cluster.patch_node("gone", {})
    api["answers"] = {("GET", "/api/v1/nodes"): (403, {"reason": "Forbidden"})}
    with pytest.raises(ApiError, match="403"):
        cluster.nodes("")


def test_no_cluster_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ApiError, match="no cluster: this is no pod, and KUBECONFIG names none"):
        fakegpus.KubernetesCluster()
