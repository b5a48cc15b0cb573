"""Zero, negative and NaN are refused by name, whichever lane would have run."""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.batching.speculation import Speculation
from disagg_engine.catalogue import default
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.kv import CountingLedger
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_load.report import Slo
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode
from disagg_simulator.errors import DeploymentError
from disagg_simulator.options import Lane, Options
from disagg_simulator.simulate import simulate

INSTANCE = Instance(model=default().model("opt-13b"), gpu=default().gpu("a100"))
GROUP = Group(instance=INSTANCE, time_model=Roofline(INSTANCE), batching=BatchingConfig(role=Role.WORKER))
NUMBERS = (0, -1, nan, 1.5)


def columns(**changed: list[Any]) -> Columns:
    rows: dict[str, list[Any]] = {"arrival_seconds": [0.0, 1.0, 2.0], "input_tokens": [5] * 3, "output_tokens": [2] * 3}
    rows.update(changed)
    kinds = {"arrival_seconds": "d", "input_tokens": "i", "output_tokens": "i"}
    return Columns(name="given", **{name: array(kinds[name], values) for name, values in rows.items()})


@pytest.mark.parametrize("lane", ["fast", "prefixes", "cluster"])
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"arrival_seconds": [nan, 1.0, 2.0]}, "request 0 arrives at nan s"),
        ({"arrival_seconds": [0.0, nan, 2.0]}, "request 1 arrives at nan s"),
        ({"arrival_seconds": [0.0, 1.0, inf]}, "request 2 arrives at inf s"),
        ({"arrival_seconds": [-1.0, 1.0, 2.0]}, "request 0 arrives at -1.0 s"),
        ({"arrival_seconds": [0.0, 2.0, 1.0]}, "request 2 arrives at 1.0 s, the one before it at 2.0 s"),
        ({"input_tokens": [5, 0, 5]}, "request 1 has 0 input_tokens"),
        ({"output_tokens": [5, 5, -3]}, "request 2 has -3 output_tokens"),
    ],
)
def test_requests_that_make_no_sense_are_named(lane: str, changed: dict[str, list[Any]], sentence: str) -> None:
    group = replace(GROUP, ledger=Ledger.BLOCKS, block_tokens=16) if lane == "prefixes" else GROUP
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group,))
    options = Options(lane=Lane.CLUSTER if lane == "cluster" else Lane.AUTO)
    with pytest.raises(WorkloadError, match=sentence):
        simulate(deployment, columns(**changed), seed=0, options=options)


@pytest.mark.parametrize(("field", "value"), [("kv_capacity_tokens", -5), ("kv_capacity_tokens", nan)])
def test_room_is_a_whole_number(field: str, value: Any) -> None:
    with pytest.raises(DeploymentError, match=rf"worker\.{field} is {value}"):
        replace(GROUP, **{field: value})


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("field", ["replicas", "block_tokens"])
def test_counts_of_a_group_are_whole_numbers(field: str, value: Any) -> None:
    with pytest.raises(DeploymentError, match=rf"worker\.{field} is {value}; it must be a whole number, at least 1"):
        replace(GROUP, **{field: value})


@pytest.mark.parametrize("value", [-1.0, nan, inf])
def test_the_weight_of_prefixes_is_a_number(value: float) -> None:
    with pytest.raises(DeploymentError, match=f"overlap_weight is {value}"):
        Deployment(mode=Mode.COLOCATED, workers=(GROUP,), overlap_weight=value)


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize(
    "field", ["max_batched_tokens", "fill_tokens", "chunk_tokens", "max_sequences", "pipeline", "ranks"]
)
def test_settings_of_batching_are_whole_numbers(field: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"{field} is {value}; it must be a whole number, at least 1"):
        BatchingConfig(**{field: value})


@pytest.mark.parametrize("value", NUMBERS)
def test_draft_tokens_are_a_whole_number(value: Any) -> None:
    with pytest.raises(SettingError, match=f"draft_tokens is {value}"):
        Speculation(draft_tokens=value, acceptance=0.5)


@pytest.mark.parametrize("value", [0, -1, nan])
def test_a_ledger_has_room(value: Any) -> None:
    with pytest.raises(SettingError, match=f"capacity_tokens is {value}"):
        CountingLedger(capacity_tokens=value)


@pytest.mark.parametrize("value", [0.0, -1.0, nan])
@pytest.mark.parametrize("field", ["ttft_seconds", "tpot_seconds"])
def test_objectives_are_above_0(field: str, value: float) -> None:
    with pytest.raises(WorkloadError, match=f"{field} is {value}"):
        Slo(**{"ttft_seconds": 1.0, "tpot_seconds": 1.0, field: value})
