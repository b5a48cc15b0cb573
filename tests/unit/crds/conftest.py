"""The rule cases, shared with the integration tests that put them to a real API server."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

CASES_FILE = Path(__file__).with_name("rule_cases.yaml")
CASES: dict[str, Any] = yaml.safe_load(CASES_FILE.read_text(encoding="utf-8"))


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
            entries = CASES[section]
            names = [f"{number}-{case.get('rule', case.get('field'))[:40]}" for number, case in enumerate(entries)]
            metafunc.parametrize(fixture, entries, ids=names)


@pytest.fixture
def base_of() -> Any:
    """kind, patch → document."""
    return lambda kind, patch: merge(CASES["base"][kind], patch)
