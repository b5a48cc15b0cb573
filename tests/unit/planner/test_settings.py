"""Settings from the command line."""

from __future__ import annotations

import pytest

from disagg_contract.config import PlannerConfig
from disagg_contract.labels import Role
from disagg_planner.core.settings import from_config
from disagg_planner.errors import SettingsError


def test_gpus_of_an_instance_and_bounds() -> None:
    settings = from_config(
        PlannerConfig(prefill_max=3, decode_min=2, decode_max=5, decode_tensor=4, decode_pipeline=2, gpu_budget=40)
    )
    assert settings.roles[Role.DECODE].gpus == 8
    assert (settings.roles[Role.PREFILL].maximum, settings.roles[Role.DECODE].minimum) == (3, 2)


@pytest.mark.parametrize(("startup", "steps"), [(0.0, 1), (10.0, 1), (180.0, 7), (1e6, 31)])
def test_how_far_to_look_ahead(startup: float, steps: int) -> None:
    assert from_config(PlannerConfig(startup_seconds=startup)).steps == steps


def test_contradictions_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"--decode-min=3 is above --decode-max=2"):
        from_config(PlannerConfig(decode_min=3, decode_max=2))
    with pytest.raises(SettingsError, match=r"--gpu-budget=3: the minimum of both roles takes 5 GPUs"):
        from_config(PlannerConfig(gpu_budget=3, decode_tensor=4))
