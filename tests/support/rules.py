"""Accept and reject cases of the custom resources' rules: unit tests and a real API server judge the same ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

CASES_FILE = Path(__file__).resolve().parents[1] / "unit" / "crds" / "rule_cases.yaml"
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


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test one case at a time by its argument ``rule_case`` or ``schema_case``."""
    for fixture, section in (("rule_case", "cases"), ("schema_case", "schema")):
        if fixture in metafunc.fixturenames:
            entries = CASES[section]
            names = [f"{number}-{case.get('rule', case.get('field'))[:40]}" for number, case in enumerate(entries)]
            metafunc.parametrize(fixture, entries, ids=names)
