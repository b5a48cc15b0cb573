"""Stored results say which code, which seed and which kind of machine they come from."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

RESULTS = sorted((Path(__file__).parents[3] / "benchmarks" / "results").glob("*.json"))


def test_there_are_results() -> None:
    assert {path.stem for path in RESULTS} >= {"router_relay", "soak", "worker_loop"}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_can_be_traced(path: Path) -> None:
    found = json.loads(path.read_text())
    assert set(found) == {"commit", "seed", "machine", "date", "figures"}
    assert re.fullmatch(r"[0-9a-f]{40}", found["commit"]), "store results of committed code"
    assert isinstance(found["seed"], int)
    assert {"cpu", "cores", "python"} <= set(found["machine"])
    assert date.fromisoformat(found["date"])
    assert found["figures"]
