"""A cluster of one node without GPUs, minikube's default, started by ``make cluster-up`` beside whatever else runs.

The same goes through the path that people with a cluster of their own take: ``KUBECONFIG`` names it.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_contract import labels
from tests.e2e.conftest import CHART, image_values
from tests.support.kube import Helm, Kube, run, sets, wait_until
from tests.support.serving import example, pods, port_forward, post

ROOT = Path(__file__).parents[2]
STATE = "/var/tmp/disagg-one"


def make(target: str, *, environ: dict[str, str] | None = None, **variables: str) -> str:
    """A target of the Makefile, as a person runs it; nothing of the suite's own cluster leaks in."""
    ours = ("KUBECONFIG", "DISAGG_EMBEDDED", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    environ = {k: v for k, v in os.environ.items() if k not in ours} | (environ or {})
    settings = [f"{k}={v}" for k, v in variables.items()]
    done = subprocess.run(
        ["make", "--no-print-directory", target, f"STATE={STATE}", *settings],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def one_node() -> Iterator[Path]:
    try:
        printed = make("cluster-up", NODES="1", GPUS="0")
        assert f"{STATE}/kubeconfig" in printed, printed
        make("image")
        yield Path(STATE) / "kubeconfig"
    finally:
        make("cluster-down")
        assert not Path(STATE).exists()


def gpus(kube: Kube) -> str:
    (node,) = kube.items("nodes")
    count: str = node["status"]["allocatable"].get(labels.GPU_RESOURCE, "0")
    return count


@pytest.mark.embedded
def test_install_serve_and_uninstall(one_node: Path) -> None:
    kube, helm = Kube(one_node), Helm(one_node, "disagg-system")
    assert gpus(kube) == "0"
    values = image_values() | {"fakeGpus.enabled": "true"}
    printed = helm("install", "disagg", str(CHART), "--create-namespace", "--wait", "--timeout=180s", *sets(values))
    assert "kubectl" in printed
    wait_until(lambda: gpus(kube) == "8", "fake GPUs", timeout_seconds=60, show=lambda: gpus(kube))

    kube.apply(example("chat-13b"))
    kube.expect_condition("dd", "chat-13b", "Ready")
    assert len(pods(kube, "chat-13b")) == 2
    with port_forward(kube, "svc/chat-13b-router") as url:
        answer = post(f"{url}/v1/completions", {"model": "opt-13b", "prompt": "Once upon a time", "max_tokens": 5})
    assert answer["usage"]["completion_tokens"] <= 5, answer
    kube("delete", "dd", "chat-13b", "--wait=true")
    wait_until(
        lambda: not kube.items("pods", f"{labels.DEPLOYMENT}=chat-13b"),
        "its pods are gone",
        timeout_seconds=120,
        show=lambda: kube("get", "pods", check=False),
    )

    helm("uninstall", "disagg", "--wait")
    assert gpus(kube) in ("0", "")

    def left() -> list[str]:
        selector = f"{labels.PART_OF}={labels.APP}"
        return run("kubectl", f"--kubeconfig={one_node}", "get", KINDS, "-A", "-o", "name", "-l", selector).split()

    kept = [f"customresourcedefinition.apiextensions.k8s.io/{plural}.disagg.dev" for plural in CUSTOM_RESOURCES]
    wait_until(lambda: left() == kept, "only the CRDs are left", timeout_seconds=60, show=lambda: str(left()))


@pytest.mark.embedded
def test_the_suite_runs_on_a_cluster_that_is_given(one_node: Path) -> None:
    """``make test`` with ``KUBECONFIG`` set starts no cluster and uses that one."""
    printed = make("test", TESTS="tests/integration/crds", environ={"KUBECONFIG": str(one_node)})
    assert f"Testing on the cluster of KUBECONFIG={one_node}" in printed
    assert " passed" in printed.splitlines()[-1], printed[-2000:]


CUSTOM_RESOURCES = ("disaggdeployments", "disagggroups")
KINDS = (
    "crd,clusterrole,clusterrolebinding,deployment,daemonset,job,pod,service,serviceaccount,role,rolebinding,configmap,"
    "secret,lease"
)
