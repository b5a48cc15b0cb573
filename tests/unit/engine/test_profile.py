"""The planner's profile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from disagg_contract.config import BatchPolicy
from disagg_contract.profile import Profile
from disagg_engine.batching import BatchingConfig, Role
from disagg_engine.errors import ModelDoesNotFitError, SettingError
from disagg_engine.instance import Instance
from disagg_engine.profile import batches, compute_profile, grid
from disagg_engine.timemodel import BatchShape, Chunk, Roofline

Build = Callable[..., Instance]
PREFILL = BatchingConfig(role=Role.PREFILL)
DECODE = BatchingConfig(role=Role.DECODE)


def profile_of(prefill: Instance, decode: Instance, **more: object) -> Profile:
    settings: dict[str, object] = {"prefill_batching": PREFILL, "decode_batching": DECODE, **more}
    return compute_profile(prefill=prefill, decode=decode, **settings)  # type: ignore[arg-type]


def test_points_are_the_time_model(instance_of: Build, opt13b: Roofline) -> None:
    profile = profile_of(instance_of(), instance_of(), input_tokens=(100, 755), context_tokens=(855,))
    short, long = profile.prefill
    assert long.ttft_seconds == opt13b.iteration_seconds(BatchShape(chunks=(Chunk(0, 755),))).seconds
    assert long.tokens_per_second == 755 / long.ttft_seconds
    together = opt13b.iteration_seconds(BatchShape(chunks=(Chunk(0, 100),) * 5)).seconds
    assert short.tokens_per_second == 500 / together
    point = next(p for p in profile.decode if p.batch == 32)
    assert point.tpot_seconds == pytest.approx(0.0307, rel=0.01)
    assert point.tokens_per_second == 32 / point.tpot_seconds


def test_batches_end_where_the_kv_room_does(instance_of: Build) -> None:
    profile = profile_of(instance_of(), instance_of())
    for point in profile.decode:
        assert point.batch * point.context_tokens <= profile.kv_capacity_tokens
        assert point.batch <= 256
    assert max(p.batch for p in profile.decode if p.context_tokens == 2048) == 58_593 // 2048


def test_rows_are_sorted_and_survive_the_wire(instance_of: Build) -> None:
    h100 = instance_of("llama-3.1-70b", "h100", tensor=8)
    profile = profile_of(h100, instance_of("llama-3.1-70b", "h200", tensor=4))
    assert Profile.from_json(profile.to_json()) == profile
    assert (profile.prefill_gpu, profile.decode_gpu) == ("h100", "h200")
    inputs = [p.input_tokens for p in profile.prefill]
    cells = [(p.context_tokens, p.batch) for p in profile.decode]
    assert inputs == sorted(set(inputs))
    assert cells == sorted(set(cells))
    assert inputs[-1] == 131_072


def test_pipeline_doubles_throughput_and_keeps_latency(instance_of: Build) -> None:
    one, two = (
        profile_of(*(instance_of("opt-13b", pipeline=pp),) * 2, input_tokens=(512,), context_tokens=(512,))
        for pp in (1, 2)
    )
    assert two.prefill[0].ttft_seconds == one.prefill[0].ttft_seconds
    assert two.prefill[0].tokens_per_second == pytest.approx(2 * one.prefill[0].tokens_per_second)
    at = {(p.batch): p for p in one.decode}
    for point in two.decode:
        if point.batch % 2 == 0 and point.batch // 2 in at:
            assert point.tpot_seconds == at[point.batch // 2].tpot_seconds


def test_chunked_prefill_pays_for_its_chunks(instance_of: Build, opt13b: Roofline) -> None:
    chunked = BatchingConfig(role=Role.PREFILL, policy=BatchPolicy.CHUNKED, chunk_tokens=512)
    profile = profile_of(instance_of(), instance_of(), prefill_batching=chunked, input_tokens=(128, 1024))
    parts = sum(opt13b.iteration_seconds(BatchShape(chunks=(Chunk(k, 512),))).seconds for k in (0, 512))
    assert profile.prefill[1].ttft_seconds == pytest.approx(parts)
    together = opt13b.iteration_seconds(BatchShape(chunks=(Chunk(0, 128),) * 4)).seconds
    assert profile.prefill[0].tokens_per_second == pytest.approx(512 / together)


def test_misfits_are_refused(instance_of: Build) -> None:
    with pytest.raises(ModelDoesNotFitError, match="opt-66b"):
        profile_of(instance_of("opt-66b"), instance_of("opt-66b", tensor=4))
    with pytest.raises(SettingError, match=r"decode\.model"):
        profile_of(instance_of("opt-13b"), instance_of("llama-3-8b"))


def test_grids_keep_their_ends() -> None:
    assert grid(16, 2048)[0] == 16
    assert grid(16, 2048)[-1] == 2048
    assert grid(16, 10) == (10,)
    assert batches(0) == ()
    assert batches(1) == (1,)
    assert batches(300)[-1] == 300


def test_sm3_each_leg_follows_its_own_parallelism(instance_of: Build) -> None:
    """Changing only the decode leg leaves every prefill point, and the other way round."""
    narrow, wide = instance_of("opt-66b", tensor=3), instance_of("opt-66b", tensor=4)
    grids = {"input_tokens": (128, 512), "context_tokens": (256, 1024)}
    base = profile_of(narrow, narrow, **grids)
    decode, prefill = profile_of(narrow, wide, **grids), profile_of(wide, narrow, **grids)
    assert decode.prefill == base.prefill
    assert prefill.decode == base.decode
    steps = {(point.context_tokens, point.batch): point.tpot_seconds for point in decode.decode}
    shared = [point for point in base.decode if (point.context_tokens, point.batch) in steps]
    assert len(shared) > 10
    assert all(steps[point.context_tokens, point.batch] < point.tpot_seconds for point in shared)
    for faster, slower in zip(prefill.prefill, base.prefill, strict=True):
        assert faster.ttft_seconds < slower.ttft_seconds


def test_profile_of_another_time_model_says_so(instance_of: Build) -> None:
    fitted = profile_of(instance_of(), instance_of(), kind="fitted")
    assert fitted.source == "fitted"
    assert fitted.prefill != profile_of(instance_of(), instance_of()).prefill
    with pytest.raises(SettingError, match="time_model"):
        profile_of(instance_of(), instance_of(), kind="magic")
