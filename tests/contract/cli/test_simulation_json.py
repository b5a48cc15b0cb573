"""The JSON of the commands that simulate is a contract: names and types of all fields, against golden files.

A field may be added (then the golden file is), but not renamed or dropped. Absent figures are null, so a type is what a
field has when it is there.
"""

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from disagg_cli.main import main
from disagg_engine.batching import BatchingConfig
from disagg_engine.instance import Instance
from disagg_simulator.deployment import Group

GOLDEN = Path(__file__).parents[1] / "golden"
DEPLOYMENT = ("--model", "opt-13b", "--gpu", "a100-80gb", "--prefill", "2", "--decode", "1")
LOAD = ("--input", "512", "--output", "64", "--ttft", "400ms", "--tpot", "40ms")


def shape(value: Any) -> Any:
    """The names and types of a document: objects by field, lists by their first entry."""
    if isinstance(value, dict):
        return {name: shape(field) for name, field in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return type(value).__name__
    return "number" if isinstance(value, int | float) else type(value).__name__


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "NaN" not in out
    assert "Infinity" not in out
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("simulation", ("simulate", *DEPLOYMENT, *LOAD, "--rate", "5", "--requests", "60", "--json")),
        ("goodput", ("goodput", *DEPLOYMENT, *LOAD, "--requests", "60", "--json")),
    ],
)
def test_fields_are_those_of_the_golden_file(
    name: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert shape(printed(capsys, *arguments)) == golden


def test_the_fields_that_the_readme_promises(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "simulate", *DEPLOYMENT, *LOAD, "--rate", "5", "--requests", "60", "--json")
    for name in ("ttft_seconds", "tpot_seconds", "tbt_seconds"):
        assert list(found[name]) == ["mean", "p50", "p90", "p99", "max"]
    assert list(found["attainment"]) == ["ttft", "tpot", "both"]
    assert found["gpus"] == 3
    assert found["requests"] == found["completed"] == 60
    assert found["throughput_requests_per_second"] == pytest.approx(60 / found["duration_seconds"])
    assert found["throughput_tokens_per_second"] == pytest.approx(60 * 64 / found["duration_seconds"])
    assert found["good_requests_per_second"] <= found["throughput_requests_per_second"]


def test_sm6_the_same_seed_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """Under both hash seeds, and with one process or two, a sweep is the same file to the byte."""
    texts = []
    for hash_seed, processes in (("0", "1"), ("1", "2")):
        out = tmp_path / f"{hash_seed}.csv"
        subprocess.run(
            [
                *(sys.executable, "-m", "disagg_cli.main", "sweep", *DEPLOYMENT[:4], "--workload", "chat"),
                *("--requests", "80", "--ratios", "1W,1P1D,2P1D", "--rates", "1,3", "--slo-scales", "0.5,1"),
                *("--routing", "kv", "--seed", "9", "--processes", processes, "--csv", str(out)),
            ],
            env={**os.environ, "PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        )
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]
    assert texts[0].count(b"\n") == 1 + 3 * 2 * 2


def test_what_was_simulated_names_every_setting_of_a_group() -> None:
    """Whatever changes a number is told: no setting may be added without the result showing it."""
    batching = {
        "policy": "scheduler",
        "chunk_tokens": "token_budget",
        "role": "role",
        "pipeline": "pipeline",
        "ranks": "data_parallel",
    }
    instance = {"weight_precision": "weights", "kv_precision": "kv"}
    told = json.loads((GOLDEN / "simulation.json").read_text(encoding="utf-8"))["deployment"]["groups"][0]
    wanted = {batching.get(field.name, field.name) for field in fields(BatchingConfig)}
    wanted |= {instance.get(field.name, field.name) for field in fields(Instance)} - {"model", "constants"}
    wanted |= {field.name for field in fields(Group)} - {"instance", "batching"}
    assert wanted <= set(told)
