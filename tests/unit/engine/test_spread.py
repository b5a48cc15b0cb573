"""Mixtures of experts with data-parallel attention and expert parallelism: memory, KV room, time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_engine.catalogue import Catalogue, Experts, Precision
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, Roofline, SpreadRoofline, time_model

Deepseek = Callable[..., Instance]

DENSE = 671e9 - 58 * 256 * 44_040_192
"""Parameters of DeepSeek-V3 outside the routed experts."""


@pytest.fixture(scope="module")
def deepseek(catalogue: Catalogue) -> Deepseek:
    def build(gpu: str = "h200", **fields: object) -> Instance:
        return Instance(model=catalogue.model("deepseek-v3"), gpu=catalogue.gpu(gpu), **fields)  # type: ignore[arg-type]

    return build


def prefill_unit(deepseek: Deepseek, **fields: object) -> Instance:
    """DeepSeek-V3 technical report, section 3.4.1: TP4 × DP8 with EP32 on 32 GPUs."""
    return deepseek(tensor=4, data_parallel=8, expert_parallel=32, weight_precision=Precision.FP8, **fields)


def decode_unit(deepseek: Deepseek, **fields: object) -> Instance:
    """Section 3.4.2: TP4 × DP80 with EP320 on 320 GPUs."""
    return deepseek(tensor=4, data_parallel=80, expert_parallel=320, weight_precision=Precision.FP8, **fields)


def test_deepseek_fits_32_prefill_and_320_decode_gpus(deepseek: Deepseek) -> None:
    prefill, decode = prefill_unit(deepseek, gpu="h100"), decode_unit(deepseek, gpu="h100")
    assert (prefill.gpus, decode.gpus) == (32, 320)
    assert (prefill.experts_per_gpu, decode.experts_per_gpu) == (8, 1)
    assert prefill.rank_weight_bytes / 4 == pytest.approx((DENSE / 4 + 58 * 8 * 44_040_192) * 1)
    assert decode.rank_weight_bytes / 4 == pytest.approx((DENSE / 4 + 58 * 1 * 44_040_192) * 1)
    for instance in (prefill, decode):
        assert instance.rank_weight_bytes / 4 < 74e9
        assert instance.kv_capacity_tokens() > 1_000_000


def test_kv_room_is_the_sum_over_the_ranks(deepseek: Deepseek) -> None:
    instance = prefill_unit(deepseek)
    rank_bytes = 4 * (141e9 - 6e9) - instance.rank_weight_bytes
    kept = 61 * 576 * 2 * 4  # latent attention has no heads to share out: each of the four keeps all of it
    assert instance.kv_capacity_tokens() == 8 * int(rank_bytes // kept)
    assert instance.request_capacity_tokens() == rank_bytes // kept
    assert instance.kv_bytes_per_token == 61 * 576 * 2, "what travels is one copy"
    assert replace(instance, kv_precision=Precision.FP8).kv_bytes_per_token == 61 * 576


def test_experts_divided_evenly_weigh_as_much_as_whole_ones(deepseek: Deepseek) -> None:
    whole, divided = deepseek(tensor=4, data_parallel=8, expert_parallel=32), deepseek(tensor=4, data_parallel=8)
    assert whole.rank_weight_bytes == pytest.approx(divided.rank_weight_bytes)
    uneven = deepseek(tensor=4, data_parallel=12, expert_parallel=48)
    assert uneven.experts_per_gpu == 6, "256 experts on 48 GPUs"
    assert uneven.weight_bytes > deepseek(tensor=4, data_parallel=12).weight_bytes


@pytest.mark.parametrize(("routed", "taken"), [(8, 2), (64, 6), (256, 8)])
def test_expected_experts_hit_are_those_of_random_choices(routed: int, taken: int) -> None:
    experts = Experts(routed=routed, taken=taken, layers=1, parameters_each=1.0)
    rng = random.Random(1)
    for tokens in (1, 4, 30):
        trials = [len({e for _ in range(tokens) for e in rng.sample(range(routed), taken)}) for _ in range(400)]
        assert experts.expected_read(tokens) == pytest.approx(sum(trials) / len(trials), rel=0.02)


def test_without_spreading_it_is_the_roofline(deepseek: Deepseek) -> None:
    plain = deepseek(tensor=16)
    for batch in (
        BatchShape(chunks=(Chunk(0, 700), Chunk(512, 64)), decode_sequences=9, decode_context_tokens=9000),
        BatchShape(decode_sequences=200, decode_context_tokens=200 * 3000),
    ):
        found, expected = SpreadRoofline(plain).iteration_seconds(batch), Roofline(plain).iteration_seconds(batch)
        # The roofline divides by the efficiency of all tokens once, here each part by that of its tokens.
        assert found.seconds == pytest.approx(expected.seconds, rel=1e-9)
        assert found.communication_seconds == 0


@given(
    sequences=st.integers(1, 2000),
    context=st.integers(0, 4000),
    steps=st.integers(0, 60),
    kind=st.sampled_from(["prefill", "decode", "divided"]),
)
def test_window_of_decodes_equals_stepping(
    sequences: int, context: int, steps: int, kind: str, deepseek: Deepseek
) -> None:
    instance = {
        "prefill": prefill_unit(deepseek),
        "decode": decode_unit(deepseek),
        "divided": deepseek(tensor=2, data_parallel=8),
    }[kind]
    model = time_model("roofline", instance)
    stepped = sum(
        model.iteration_seconds(
            BatchShape(decode_sequences=sequences, decode_context_tokens=sequences * (context + step))
        ).seconds
        for step in range(steps)
    )
    assert model.decode_window(sequences, sequences * context, steps) == pytest.approx(stepped, abs=1e-9)


def test_a_prompt_stays_on_one_rank(deepseek: Deepseek) -> None:
    """Seven more prompts use the other ranks: they add their tokens' experts, and no dense work."""
    model = SpreadRoofline(prefill_unit(deepseek))
    one, eight, nine = (
        model.iteration_seconds(BatchShape(chunks=(Chunk(0, 4096),) * count)).seconds for count in (1, 8, 9)
    )
    assert one < eight < 1.5 * one
    assert nine > 1.5 * eight


def test_prompts_go_to_the_rank_with_the_fewest_tokens(deepseek: Deepseek) -> None:
    model = SpreadRoofline(deepseek(tensor=4, data_parallel=2, expert_parallel=8))
    apart = model.iteration_seconds(BatchShape(chunks=(Chunk(0, 3000), Chunk(0, 1000), Chunk(0, 2000))))
    even = model.iteration_seconds(BatchShape(chunks=(Chunk(0, 3000), Chunk(0, 3000))))
    assert apart.communication_seconds == even.communication_seconds, "3000 against 1000 + 2000"


def test_more_ranks_decode_more_in_the_same_time(deepseek: Deepseek) -> None:
    def step(ranks: int) -> float:
        model = time_model("roofline", deepseek(tensor=4, data_parallel=ranks, expert_parallel=4 * ranks))
        sequences = 64 * ranks
        return model.iteration_seconds(
            BatchShape(decode_sequences=sequences, decode_context_tokens=sequences * 2000)
        ).seconds

    times = [step(ranks) for ranks in (8, 16, 40, 80)]
    assert times[-1] < 1.05 * times[0]


def test_exchange_follows_the_link_and_the_precision(deepseek: Deepseek) -> None:
    batch = BatchShape(chunks=(Chunk(0, 4096),) * 8)

    def exchange(instance: Instance) -> float:
        return SpreadRoofline(instance).iteration_seconds(batch).communication_seconds

    network = prefill_unit(deepseek)
    assert exchange(network) > 3 * exchange(prefill_unit(deepseek, gpu="gb200-nvl72")), "72 GPUs joined by NVLink"
    faster = replace(network, gpu=replace(network.gpu, network_bandwidth=2 * network.gpu.network_bandwidth))
    assert exchange(faster) == pytest.approx(exchange(network) / 2)
    wide = replace(network, weight_precision=Precision.FP16)
    assert exchange(wide) == pytest.approx(exchange(network) * 4 / 3), "2 + 2 bytes a number instead of 1 + 2"
    assert exchange(deepseek(tensor=32, expert_parallel=32)) == 0


def test_dense_models_and_odd_spreads_are_refused(deepseek: Deepseek, instance_of: Callable[..., Instance]) -> None:
    with pytest.raises(SettingError, match="mixture of experts"):
        SpreadRoofline(instance_of())
    with pytest.raises(SettingError, match="without data or expert parallelism"):
        Roofline(deepseek(tensor=4, data_parallel=8))
    with pytest.raises(SettingError, match="expert_parallel is 5; it must be a divisor of tensor × data_parallel, 32"):
        deepseek(tensor=4, data_parallel=8, expert_parallel=5)
    with pytest.raises(SettingError, match="roofline for tensor 4"):
        time_model("fitted", deepseek(tensor=4, data_parallel=8))
