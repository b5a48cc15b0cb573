"""One installed chart for all tests that serve from pods.

Runs under load report the lag of the workers' loops, and are void where they failed and lagged: tests/support/lag.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kube import Helm, Kube, sets
from tests.support.lag import (  # noqa: F401 - hooks and a fixture work by being here
    lag,
    pytest_itemcollected,
    pytest_report_teststatus,
    pytest_runtest_call,
    pytest_runtest_protocol,
    pytest_terminal_summary,
)
from tests.support.serving import image, prometheus_image

CHART = Path(__file__).parents[2] / "charts" / "disagg"


VALUES = {"prometheus.scrapeIntervalSeconds": "2"}
"""The planner decides every few seconds in these tests; its window must hold several scrapes."""


def image_values() -> dict[str, str]:
    """Chart values that point at the images under test."""
    repository, _, tag = image().rpartition(":")
    prometheus_repository, _, prometheus_tag = prometheus_image().rpartition(":")
    return {
        "image.repository": repository,
        "image.tag": tag,
        "prometheus.image.repository": prometheus_repository,
        "prometheus.image.tag": prometheus_tag,
    }


@pytest.fixture(scope="session")
def release(kubeconfig: Path) -> Iterator[Kube]:
    """``kubectl`` in the namespace where the operator and Prometheus run."""
    kube, helm = Kube(kubeconfig, "disagg-system"), Helm(kubeconfig, "disagg-system")
    helm(
        "upgrade",  # a run that was killed may have left its release
        "disagg",
        str(CHART),
        "--install",
        "--create-namespace",
        "--take-ownership",  # of the CRDs that integration tests brought
        "--wait",
        "--timeout=180s",
        *sets(VALUES | image_values()),
    )
    try:
        yield kube
    finally:
        helm("uninstall", "disagg", "--wait")
        kube("delete", "crd", "disaggdeployments.disagg.dev", "disagggroups.disagg.dev", "--wait=true")
        kube("delete", "namespace", "disagg-system", "--wait=true", timeout_seconds=150)


@pytest.fixture
def serving(release: Kube, namespace: Kube) -> Kube:
    """A namespace to apply deployments in, with the operator running."""
    return namespace
