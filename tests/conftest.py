"""Fixtures of the whole suite, and its order: unit, contract, integration, e2e.

Tests run in any order within a folder. The folders keep theirs, because integration tests start operators of their own
and e2e tests install one for the whole cluster.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.kube import Kube, wait_until_cleared

STAGES = ("unit", "contract", "integration", "e2e")
LEFT_OUT = pytest.StashKey[list[str]]()
ROOT = Path(__file__).parent.parent

# A loaded machine must not turn a slow example into a failure.
settings.register_profile("disagg", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("disagg")


def stage(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: STAGES.index(stage(item)))
    if not os.environ.get("DISAGG_EMBEDDED"):
        left_out = [item for item in items if item.get_closest_marker("embedded")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
        config.stash[LEFT_OUT] = [item.nodeid for item in left_out]
    for item in items:
        if stage(item) in ("integration", "e2e"):
            item.add_marker(getattr(pytest.mark, stage(item)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(
            f"left out, because it starts an embedded cluster and DISAGG_EMBEDDED is not set: {name}"
        )


@pytest.fixture(scope="session")
def data() -> Path | None:
    """Folder with real traces and measurements, where there is one (``DISAGG_DATA``)."""
    folder = os.environ.get("DISAGG_DATA")
    return Path(folder) if folder else None


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """The cluster under test. `make test` starts one where none is given."""
    path = os.environ.get("KUBECONFIG")
    assert path, "KUBECONFIG is not set: run `make test`, or name a cluster, or ask for less with DISAGG_TESTS=unit"
    return Path(path)


@pytest.fixture(scope="session")
def namespaces(kubeconfig: Path) -> Iterator[Kube]:
    """Nothing of the tests' own is left at the end. What a test leaves may go while the next one runs."""
    kube = Kube(kubeconfig)
    try:
        yield kube
    finally:
        wait_until_cleared(kube)


@pytest.fixture
def namespace(namespaces: Kube) -> Iterator[Kube]:
    """``kubectl`` in a namespace of the test's own, which goes away with it."""
    yield from namespace_of(namespaces)


@pytest.fixture(scope="module")
def module_namespace(namespaces: Kube) -> Iterator[Kube]:
    """The same, for all tests of a file."""
    yield from namespace_of(namespaces)


def namespace_of(kube: Kube) -> Iterator[Kube]:
    name = kube("create", "-f", "-", "-o", "name", stdin=NAMESPACE).strip().removeprefix("namespace/")
    try:
        yield kube.within(name)
    finally:
        kube("delete", "namespace", name, "--wait=false")


NAMESPACE = """
apiVersion: v1
kind: Namespace
metadata: {generateName: disagg-test-, labels: {disagg.dev/test: "true"}}
"""
