"""The engine's profile, read by the planner: chat-13b (OPT-13B on A100-80GB, TTFT 0.25 s, TPOT 0.1 s)."""

from __future__ import annotations

import pytest

from disagg_contract.labels import Role
from disagg_contract.profile import Profile
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.profile import compute_profile
from disagg_planner.core.capacity import Demand, size_decode, size_prefill
from disagg_planner.core.interpolation import ProfileTable


@pytest.fixture(scope="module")
def table() -> ProfileTable:
    catalogue = default()
    instance = Instance(model=catalogue.model("opt-13b"), gpu=catalogue.gpu("a100-80gb"), tensor=1, pipeline=1)
    profile = compute_profile(
        prefill=instance,
        decode=instance,
        prefill_batching=BatchingConfig(role=Role.PREFILL),
        decode_batching=BatchingConfig(role=Role.DECODE),
    )
    return ProfileTable(Profile.from_json(profile.to_json()))


def test_reference_rows_1_3_and_4_through_the_profile(table: ProfileTable) -> None:
    assert table.tpot_seconds(512, 1) == pytest.approx(0.0172, rel=0.01)
    assert table.ttft_seconds(755) == pytest.approx(0.104, rel=0.01)
    assert table.tpot_seconds(855, 32) == pytest.approx(0.0307, rel=0.01)
    assert table.profile.kv_capacity_tokens == pytest.approx(58_594, rel=0.001)


@pytest.mark.parametrize(("rate", "replicas"), [(3.0, (1, 1)), (12.0, (2, 2))])
def test_chat_13b_needs(table: ProfileTable, rate: float, replicas: tuple[int, int]) -> None:
    demand = Demand(requests_per_second=rate, input_tokens=755, output_tokens=200)
    prefill = size_prefill(table, demand, slo_seconds=0.25, attainment=0.9, transfer_seconds=0.003)
    decode = size_decode(table, demand, slo_seconds=0.1)
    assert (prefill.instances, decode.instances) == replicas
