"""The CRDs on a real API server, and the rule cases of the unit tests."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.crds import installed_crds
from tests.support.kube import Kube

ROOT = Path(__file__).resolve().parents[3]
CASES: dict[str, Any] = yaml.safe_load((ROOT / "tests/unit/crds/rule_cases.yaml").read_text(encoding="utf-8"))


def merge(base: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386) on a copy."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, section in (("rule_case", "cases"), ("schema_case", "schema")):
        if fixture in metafunc.fixturenames:
            names = [f"{n}-{case.get('rule', case.get('field'))[:40]}" for n, case in enumerate(CASES[section])]
            metafunc.parametrize(fixture, CASES[section], ids=names)


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
