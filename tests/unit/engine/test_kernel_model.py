"""The time model made of kernels, on tables of known laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk
from disagg_engine.timemodel.kernels import Kernels, KernelTables, kernel_shapes

Build = Callable[..., Instance]

ROWS = (1, 64, 4096)
SIZES = (1024, 4096, 16384, 65536)


def product(m: float, n: float, k: float) -> float:
    """A law that is linear in each size, which interpolation gives back exactly."""
    return 1e-6 + 1e-15 * n * k + 2e-15 * m * n * k


def tables(*, sums: bool = True) -> KernelTables:
    return KernelTables(
        products={(n, k): [(m, product(m, n, k)) for m in ROWS] for n in SIZES for k in SIZES},
        prompts={b: [(x, 1e-6 + 1e-12 * b * x * x) for x in (16, 512, 8192)] for b in (1, 16)},
        decodes={c: [(b, 2e-6 + 1e-9 * b * c) for b in (1, 512)] for c in (1, 1023, 8191)},
        sums=[(1, 5e-6), (10**9, 5e-6 + 4e-3)] if sums else (),
    )


@pytest.fixture
def model(instance_of: Build) -> Kernels:
    return Kernels(instance_of("llama-3.1-8b", "h100", tensor=2), tables=tables())


def shared(rows: int, answers: int) -> float:
    layer = ((16 + 8) * 128, 4096), (4096, 2048), (14336, 4096), (4096, 7168)
    return 32 * sum(product(rows, n, k) for n, k in layer) + product(answers, 64128, 4096)


def exchange(rows: int) -> float:
    return 64 * (5e-6 + 4e-12 * (rows * 4096 - 1))


def test_a_prompt_is_the_sum_of_its_kernels(model: Kernels) -> None:
    cost = model.iteration_seconds(BatchShape(chunks=(Chunk(0, 512),)))
    assert cost.seconds == pytest.approx(shared(512, 1) + exchange(512) + 32 * (1e-6 + 1e-12 * 512**2) + 1e-3)
    assert cost.communication_seconds == pytest.approx(exchange(512))
    assert cost.bound == "compute"


def test_a_step_is_the_sum_of_its_kernels(model: Kernels) -> None:
    cost = model.iteration_seconds(BatchShape(decode_sequences=20, decode_context_tokens=20 * 500))
    assert cost.seconds == pytest.approx(shared(20, 20) + exchange(20) + 32 * (2e-6 + 1e-9 * 20 * 500) + 1e-3)
    assert cost.bound == "memory"


def test_prompts_and_decodes_share_their_products(model: Kernels) -> None:
    mixed = BatchShape(chunks=(Chunk(0, 100),), decode_sequences=20, decode_context_tokens=20 * 500)
    attention = 32 * (1e-6 + 1e-12 * 100**2 + 2e-6 + 1e-9 * 20 * 500)
    assert model.iteration_seconds(mixed).seconds == pytest.approx(shared(120, 21) + exchange(120) + attention + 1e-3)


def test_attention_of_cached_tokens_is_that_of_the_pairs(model: Kernels) -> None:
    """300 tokens after 400: 700² − 400² pairs."""
    after = model.iteration_seconds(BatchShape(chunks=(Chunk(400, 300),))).seconds
    plain = model.iteration_seconds(BatchShape(chunks=(Chunk(0, 300),))).seconds
    assert after - plain == pytest.approx(32e-12 * (700**2 - 400**2 - 300**2))


@given(sequences=st.integers(1, 600), context=st.integers(0, 9000), steps=st.integers(0, 60))
def test_window_of_decodes_equals_stepping(sequences: int, context: int, steps: int, instance_of: Build) -> None:
    model = Kernels(instance_of("llama-3.1-8b", "h100"), tables=tables(sums=False))
    stepped = sum(
        model.iteration_seconds(
            BatchShape(decode_sequences=sequences, decode_context_tokens=sequences * (context + step))
        ).seconds
        for step in range(steps)
    )
    assert model.decode_window(sequences, sequences * context, steps) == pytest.approx(stepped, abs=1e-9)


def test_shapes_are_divided_among_the_tensor_group(instance_of: Build) -> None:
    shapes = kernel_shapes(instance_of("opt-66b", tensor=3))
    assert (shapes.heads, shapes.kv_heads) == (24, 24)
    assert shapes.layer == ((3 * 24 * 128, 9216), (9216, 24 * 128), (12288, 9216), (9216, 12288))
    assert shapes.vocabulary == (-(-50272 // 3), 9216)
    gated = kernel_shapes(instance_of("llama-3.1-8b", "h100", tensor=16))
    assert (gated.heads, gated.kv_heads) == (2, 1), "KV heads are kept twice"
    assert gated.layer[2] == (2 * 14336 // 16, 4096)


def test_what_the_tables_lack_is_refused(instance_of: Build, catalogue: object) -> None:
    with pytest.raises(SettingError, match="no sums over so many GPUs"):
        Kernels(instance_of("llama-3.1-8b", "h100", tensor=2), tables=tables(sums=False))
    with pytest.raises(SettingError, match="decodes is 'empty'"):
        Kernels(instance_of("llama-3.1-8b", "h100"), tables=replace(tables(), decodes={}))
    with pytest.raises(SettingError, match="a dense one without latent attention"):
        kernel_shapes(instance_of("mixtral-8x7b", "h100", tensor=2))
    bare = instance_of("llama-3.1-8b", "h100")
    with pytest.raises(SettingError, match="attention and feed_forward in the catalogue"):
        kernel_shapes(replace(bare, model=replace(bare.model, attention=None)))
