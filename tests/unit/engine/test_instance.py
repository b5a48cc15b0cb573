"""Memory, start and links of an instance; case SM10: physics follow the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_engine.catalogue import Catalogue, Precision
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


def test_sm10_kv_size_follows_layers_and_heads(catalogue: Catalogue) -> None:
    """Nothing about KV is a constant: twice the layers, heads or head size are twice the bytes and half the room."""
    fields = {"parameters": 1e9, "layers": 20, "hidden": 1024, "max_context_tokens": 4096}
    heads = {"heads": 16, "kv_heads": 8, "head_size": 64}
    gpu = catalogue.gpu("a100")

    def room(layers: int, **more: int) -> tuple[float, int]:
        entry = {**fields, "layers": layers, "attention": {**heads, **more}}
        model = catalogue.extended({"models": {"x": entry}}).model("x")
        return model.kv_bytes_per_token, Instance(model=model, gpu=gpu).kv_capacity_tokens()

    size, tokens = room(20)
    assert size == 2 * 20 * 8 * 64 * 2
    for twice in (room(40), room(20, kv_heads=16), room(20, head_size=128)):
        assert twice == (2 * size, pytest.approx(tokens / 2, abs=1))


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


@given(
    model=st.sampled_from(["opt-13b", "opt-66b", "opt-175b", "qwen3-235b-a22b", "deepseek-v3", "llama-3.1-405b"]),
    gpu=st.sampled_from(["a10g", "l40s", "a100-80gb", "h200", "b200"]),
    tensor=st.integers(1, 9),
    pipeline=st.integers(1, 5),
    data_parallel=st.sampled_from([1, 2, 8, 80]),
    whole_experts=st.booleans(),
    weights=st.sampled_from(list(Precision)),
)
def test_advice_is_right_wherever_a_model_does_not_fit(
    model: str,
    gpu: str,
    tensor: int,
    pipeline: int,
    data_parallel: int,
    whole_experts: bool,
    weights: Precision,
    catalogue: Catalogue,
) -> None:
    found = catalogue.model(model)
    ranks = data_parallel if found.experts else 1
    instance = Instance(
        model=found,
        gpu=catalogue.gpu(gpu),
        tensor=tensor,
        pipeline=pipeline,
        data_parallel=ranks,
        expert_parallel=tensor * ranks if whole_experts and found.experts else 1,
        weight_precision=weights,
    )
    if instance.kv_bytes / ranks >= instance.kept_bytes_per_token:
        assert instance.kv_capacity_tokens() >= 1
        return
    with pytest.raises(ModelDoesNotFitError) as caught:
        instance.kv_capacity_tokens()
    short = re.search(r"([\d.]+) GB too little", str(caught.value))
    assert short is not None
    assert float(short[1]) == pytest.approx(
        (instance.kept_bytes_per_token * ranks - instance.kv_bytes) / 1e9, abs=0.051
    )
    fitting = instance.fitting()
    if fitting is None:
        assert "no tensor up to 8 × pipeline up to" in str(caught.value)
        return
    assert fitting.kv_capacity_tokens() >= 1
    assert f"{fitting.layout()} would be enough" in str(caught.value)
    assert fitting.tensor <= 8
    assert found.attention is not None
    assert found.attention.heads % fitting.tensor == 0
    if fitting.tensor > 1:  # and no fewer would do
        fewer = [t for t in range(1, fitting.tensor) if found.attention.heads % t == 0]
        for size in fewer:
            experts = size * ranks if fitting.expert_parallel > 1 else 1
            like = replace(fitting, tensor=size, expert_parallel=experts)
            assert like.kv_bytes / ranks < like.kept_bytes_per_token


def test_advice_where_nothing_would_do(catalogue: Catalogue) -> None:
    base = Instance(model=catalogue.model("opt-13b"), gpu=catalogue.gpu("a10g"))
    full = replace(base, gpu=replace(base.gpu, memory_bytes=5e9))
    with pytest.raises(ModelDoesNotFitError, match=r"a10g has no memory beyond the reserve of 6\.0 GB"):
        full.kv_capacity_tokens()
    # Latent attention keeps all KV on every GPU of the group: here not one token fits beside the weights.
    huge = replace(base, model=replace(base.model, kv_bytes_per_token=1e15))
    with pytest.raises(ModelDoesNotFitError, match="no tensor up to 8 × pipeline up to 40 would be enough"):
        huge.kv_capacity_tokens()


def test_advice_of_a_spread_instance_keeps_its_ranks(catalogue: Catalogue) -> None:
    model, gpu = catalogue.model("deepseek-v3"), catalogue.gpu("a10g")
    with pytest.raises(
        ModelDoesNotFitError, match="tensor 4 × pipeline 1 × data-parallel 80, expert-parallel 320 would"
    ):
        Instance(model=model, gpu=gpu, tensor=1, data_parallel=80, expert_parallel=80).kv_capacity_tokens()


def test_mixed_gpus_share_a_request(catalogue: Catalogue) -> None:
    """Splitwise (Patel et al., ISCA 2024): prompts on H100, decodes on cheaper A100; the slower link carries KV."""
    model = catalogue.model("llama-2-70b")
    prompts = Instance(model=model, gpu=catalogue.gpu("h100"), tensor=8)
    tokens = Instance(model=model, gpu=catalogue.gpu("a100-80gb"), tensor=8)
    assert prompts.kv_bytes_per_token == tokens.kv_bytes_per_token
    assert link_bandwidth(catalogue.link("nvlink"), source=prompts.gpu, target=tokens.gpu) == 300e9
    assert prompts.dollars_per_hour is not None
    assert tokens.dollars_per_hour is not None
    assert tokens.dollars_per_hour < 0.7 * prompts.dollars_per_hour


def test_narrow_weights_and_kv_leave_more_room(instance_of: Build) -> None:
    wide = instance_of()
    weights = replace(wide, weight_precision=Precision.FP8)
    both = replace(weights, kv_precision=Precision.FP8)
    assert weights.weight_bytes == wide.weight_bytes / 2 == 13e9
    assert weights.load_seconds() == wide.load_seconds() / 2
    assert both.kv_bytes_per_token == wide.kv_bytes_per_token / 2
    assert both.kv_capacity_tokens() == int((74e9 - 13e9) // 409_600)


def test_power_and_price(instance_of: Build) -> None:
    four = instance_of(tensor=2, pipeline=2)
    assert four.power_watts(1.0) == 4 * 400
    assert four.power_watts(0.0) == pytest.approx(4 * 400 * 0.15)
    assert four.power_watts(0.5) == pytest.approx(4 * 400 * (0.15 + 0.85 / 2))
    assert four.dollars_per_hour == pytest.approx(4 * 1.8)
    unknown = replace(four, gpu=replace(four.gpu, watts=None, dollars_per_hour=None))
    assert unknown.power_watts(0.5) is None
    assert unknown.dollars_per_hour is None
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(SettingError, match="busy_share"):
            four.power_watts(share)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, float("nan"), "2", None])
@pytest.mark.parametrize("field", ["tensor", "pipeline", "data_parallel", "expert_parallel"])
def test_what_is_no_count_is_refused_by_name(field: str, value: object, instance_of: Build) -> None:
    with pytest.raises(SettingError, match=f"{field} is .* it must be a whole number, at least 1"):
        replace(instance_of(), **{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("weight_precision", "fp7"), ("weight_precision", 16), ("kv_precision", "fp4")]
)
def test_unknown_precisions_are_refused_by_name(field: str, value: object, instance_of: Build) -> None:
    with pytest.raises(SettingError, match=f"{field} is .* one of fp16, fp8"):
        replace(instance_of(), **{field: value})


def test_precisions_may_be_given_by_name(instance_of: Build) -> None:
    assert replace(instance_of(), weight_precision="fp8").weight_precision is Precision.FP8


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
