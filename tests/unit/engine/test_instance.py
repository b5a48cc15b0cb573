"""Memory, start and links of an instance; case SM10: physics follow the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from disagg_engine.catalogue import Catalogue
from disagg_engine.errors import ModelDoesNotFitError, SettingError
from disagg_engine.instance import Instance, link_bandwidth, transfer_seconds

Build = Callable[..., Instance]


def test_sm10_kv_room_scales_with_memory_and_kv_size(instance_of: Build) -> None:
    base = instance_of()
    small_kv = replace(base, model=replace(base.model, kv_bytes_per_token=base.model.kv_bytes_per_token / 2))
    assert small_kv.kv_capacity_tokens() == pytest.approx(2 * base.kv_capacity_tokens(), abs=1)
    large = replace(base, gpu=replace(base.gpu, memory_bytes=2 * base.gpu.memory_bytes))
    more = 80e9 / base.model.kv_bytes_per_token
    assert large.kv_capacity_tokens() - base.kv_capacity_tokens() == pytest.approx(more, abs=1)


def test_sm10_transfer_time_scales_with_bytes_and_link(catalogue: Catalogue) -> None:
    slow, fast = catalogue.link("eth-25").bandwidth, catalogue.link("eth-100").bandwidth
    assert slow == 25e9 / 8, "links are named in Gbit/s and kept in bytes/s"
    assert fast is not None
    once = transfer_seconds(1e9, bandwidth=slow)
    assert transfer_seconds(2e9, bandwidth=slow) == 2 * once
    assert transfer_seconds(1e9, bandwidth=fast) == once / 4
    assert transfer_seconds(1e9, bandwidth=slow, latency_seconds=0.5) == once + 0.5


def test_more_gpus_hold_more_kv_and_load_faster(instance_of: Build) -> None:
    one, four = instance_of("opt-13b"), instance_of("opt-13b", tensor=2, pipeline=2)
    assert four.kv_bytes == pytest.approx(one.kv_bytes + 3 * 74e9)
    assert four.load_seconds() == one.load_seconds() / 4
    assert instance_of("opt-66b", tensor=3).kv_capacity_tokens() > 0, "tp need not be a power of two"


def test_model_that_does_not_fit_says_how_much_and_what_would(instance_of: Build) -> None:
    with pytest.raises(ModelDoesNotFitError) as caught:
        instance_of("opt-66b").kv_capacity_tokens()
    message = str(caught.value)
    assert "58.0 GB too little" in message
    assert "tensor 2 × pipeline 1" in message
    assert instance_of("opt-66b", tensor=2).kv_capacity_tokens() > 0


@pytest.mark.parametrize(
    ("model", "gpu"),
    [
        ("opt-66b", "a100-80gb"),
        ("opt-175b", "a100-80gb"),
        ("opt-13b", "a10g"),
        ("opt-175b", "h200"),
        ("deepseek-v3", "b200"),
    ],
)
def test_advice_of_a_misfit_is_enough(model: str, gpu: str, instance_of: Build) -> None:
    with pytest.raises(ModelDoesNotFitError) as caught:
        instance_of(model, gpu).kv_capacity_tokens()
    advice = re.search(r"tensor (\d+) × pipeline (\d+) would be enough", str(caught.value))
    assert advice is not None
    assert instance_of(model, gpu, int(advice[1]), int(advice[2])).kv_capacity_tokens() >= 1


@pytest.mark.parametrize(("tensor", "pipeline", "field"), [(0, 1, "tensor"), (1, 0, "pipeline"), (1, 41, "pipeline")])
def test_parallelism_out_of_range_is_refused(tensor: int, pipeline: int, field: str, instance_of: Build) -> None:
    with pytest.raises(SettingError, match=field):
        instance_of(tensor=tensor, pipeline=pipeline)


def test_own_links_take_the_slower_gpu(catalogue: Catalogue) -> None:
    nvlink, pcie = catalogue.link("nvlink"), catalogue.link("pcie")
    a100, h100, l40s = catalogue.gpu("a100"), catalogue.gpu("h100"), catalogue.gpu("l40s")
    assert link_bandwidth(nvlink, source=a100) == 300e9
    assert link_bandwidth(nvlink, source=h100, target=a100) == 300e9
    assert link_bandwidth(pcie, source=a100) == 32e9
    assert link_bandwidth(catalogue.link("ib-400"), source=l40s) == 50e9
    with pytest.raises(SettingError, match="l40s"):
        link_bandwidth(nvlink, source=a100, target=l40s)


def test_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(SettingError, match="bandwidth"):
        transfer_seconds(1.0, bandwidth=0.0)
