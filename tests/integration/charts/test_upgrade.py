"""Install, upgrade and uninstall with helm: what happens to the custom resources."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_crds.crd import KINDS
from tests.support.crds import FOLDER, MARK, NAMES
from tests.support.kube import Helm, Kube, wait_until

#: Nothing has to run: these tests are about objects.
QUIET = ("--set", "operator.replicas=0", "--set", "prometheus.enabled=false", "--set", "rbac.aggregate=false")
FIELD = "runtimeClassName"
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "disagg.dev/v1alpha1",
    "kind": "DisaggDeployment",
    "metadata": {"name": "chat"},
    "spec": {
        "model": "opt-13b",
        "slo": {"ttftSeconds": 1, "tpotSeconds": 0.1},
        "worker": {"replicas": 0, "gpu": {"type": "h100"}, "template": {FIELD: "nvidia"}},
    },
}


@pytest.fixture
def release(kubeconfig: Path, namespace: Kube) -> Iterator[Helm]:
    """A release of the test's own. The CRDs are as before afterwards: gone, if they were not there."""
    found = set(namespace("get", "crd", *NAMES, "--ignore-not-found", "-o", "name").split())
    marked = set(namespace("get", "crd", f"--selector={MARK}", "-o", "name").split())
    if found:
        using = namespace("get", "dd", "--all-namespaces", "-o", "name")
        assert not using, f"these tests change and delete CRDs; this cluster has deployments: {using}"
    helm = Helm(kubeconfig, namespace.namespace)
    yield helm
    helm("uninstall", "disagg", "--ignore-not-found", "--wait")
    namespace("delete", "dd,dg", "--all", "--ignore-not-found", check=False)
    if not found:
        namespace("delete", "crd", *NAMES, "--ignore-not-found", "--wait=true")
        return
    files = [f"--filename={FOLDER / kind.file_name}" for kind in KINDS]
    namespace("apply", "--server-side", "--force-conflicts", *files)
    if marked:
        namespace("label", "crd", *NAMES, f"{MARK}=true", "--overwrite")


@pytest.fixture
def older_chart(chart: Path, tmp_path: Path) -> Path:
    """The chart as it was before a field came."""
    folder = tmp_path / "disagg"
    shutil.copytree(chart, folder)
    path = folder / "templates" / "crds" / "disagg.dev_disaggdeployments.yaml"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept: list[str] = []
    depth = -1
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() == f"{FIELD}:":
            depth = indent
            continue
        if depth >= 0 and indent > depth:
            continue
        depth = -1
        kept.append(line)
    assert len(kept) < len(lines)
    path.write_text("".join(kept), encoding="utf-8")
    return folder


def runtime_class(kube: Kube) -> str | None:
    kube("apply", "--validate=ignore", "-f", "-", stdin=json.dumps(DEPLOYMENT))
    stored = kube.get("dd", "chat")
    assert stored is not None
    value: str | None = stored["spec"]["worker"]["template"].get(FIELD)
    return value


def test_hc1_helm_upgrade_brings_new_fields_and_uninstall_leaves_what_serves(
    release: Helm, namespace: Kube, chart: Path, older_chart: Path
) -> None:
    release("install", "disagg", str(older_chart), "--take-ownership", *QUIET)
    for name in NAMES:
        namespace("wait", f"crd/{name}", "--for=condition=Established", "--timeout=60s")
    wait_until(lambda: runtime_class(namespace) is None, "the old schema prunes", timeout_seconds=60)
    before = namespace.get("dd", "chat")
    assert before is not None

    release("upgrade", "disagg", str(chart), "--reuse-values", "--take-ownership")
    wait_until(lambda: runtime_class(namespace) == "nvidia", "the new schema keeps the field", timeout_seconds=60)

    release("uninstall", "disagg", "--wait")
    after = namespace.get("dd", "chat")
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_hc1_uninstall_takes_the_kinds_along_when_asked(release: Helm, namespace: Kube, chart: Path) -> None:
    release("install", "disagg", str(chart), "--take-ownership", "--set", "crds.keep=false", *QUIET)
    assert len(yaml.safe_load(namespace("get", "crd", *NAMES, "-o", "json"))["items"]) == len(NAMES)
    release("uninstall", "disagg", "--wait")
    assert namespace("get", "crd", *NAMES, "--ignore-not-found", "-o", "name") == ""
