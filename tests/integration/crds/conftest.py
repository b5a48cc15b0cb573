"""The CRDs on a real API server, and the rule cases of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.crds import installed_crds
from tests.support.kube import Kube
from tests.support.rules import CASES, merge, parametrize

pytest_generate_tests = parametrize


@pytest.fixture(scope="module")
def crds(kubeconfig: Path) -> Iterator[Kube]:
    """`kubectl` on a cluster that knows our kinds."""
    with installed_crds(kubeconfig) as kube:
        yield kube


@pytest.fixture(scope="session")
def rule_base() -> Any:
    """kind, patch → document without namespace, for the namespace of the test."""

    def build(kind: str, patch: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = merge(CASES["base"][kind], patch)
        document["metadata"].pop("namespace")
        return document

    return build
