"""The roofline model beyond the reference rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, Roofline

Build = Callable[..., Instance]


@given(
    sequences=st.integers(1, 512),
    context=st.integers(0, 4000),
    steps=st.integers(0, 400),
    model=st.sampled_from(["opt-13b", "llama-3-8b", "deepseek-v3"]),
)
def test_window_of_decodes_equals_stepping(
    sequences: int, context: int, steps: int, model: str, instance_of: Build
) -> None:
    roofline = Roofline(instance_of(model, tensor=16 if model == "deepseek-v3" else 1))
    stepped = sum(
        roofline.iteration_seconds(
            BatchShape(decode_sequences=sequences, decode_context_tokens=sequences * (context + step))
        ).seconds
        for step in range(steps)
    )
    assert roofline.decode_window(sequences, sequences * context, steps) == pytest.approx(stepped, abs=1e-9)


def test_window_that_changes_sides_equals_stepping(instance_of: Build) -> None:
    roofline = Roofline(instance_of())
    bounds = {
        roofline.iteration_seconds(BatchShape(decode_sequences=200, decode_context_tokens=200 * k)).bound
        for k in (100, 400)
    }
    assert bounds == {"compute", "memory"}
    stepped = sum(
        roofline.iteration_seconds(BatchShape(decode_sequences=200, decode_context_tokens=200 * k)).seconds
        for k in range(100, 400)
    )
    assert roofline.decode_window(200, 200 * 100, 300) == pytest.approx(stepped, abs=1e-9)


def test_window_has_no_closed_form_with_pipeline_stages(instance_of: Build) -> None:
    assert Roofline(instance_of(pipeline=2)).decode_window(4, 400, 10) is None


def test_tensor_parallelism_cuts_the_step_with_falling_returns(instance_of: Build) -> None:
    shape = BatchShape(decode_sequences=32, decode_context_tokens=32 * 512)
    steps = {tp: Roofline(instance_of(tensor=tp)).iteration_seconds(shape).seconds - 0.001 for tp in (1, 2, 3, 4, 8)}
    for tp, seconds in steps.items():
        assert steps[1] / seconds == pytest.approx(tp / (1 + 0.15 * (tp - 1)))


def test_pipeline_keeps_latency_and_divides_the_stage(instance_of: Build) -> None:
    shape = BatchShape(chunks=(Chunk(0, 512),))
    one, four = (Roofline(instance_of(pipeline=pp)).iteration_seconds(shape) for pp in (1, 4))
    assert four.seconds == one.seconds
    assert one.stage_seconds == one.seconds
    assert four.stage_seconds == one.seconds / 4


def test_sm10_time_follows_the_configuration(instance_of: Build) -> None:
    base = instance_of()
    shape = BatchShape(decode_sequences=1, decode_context_tokens=512)
    memory = Roofline(base).iteration_seconds(shape).memory_seconds
    faster = replace(base, gpu=replace(base.gpu, memory_bandwidth=2 * base.gpu.memory_bandwidth))
    assert Roofline(faster).iteration_seconds(shape).memory_seconds == memory / 2
    wider = replace(base, model=replace(base.model, hidden=2 * base.model.hidden, layers=2 * base.model.layers))
    attention = Roofline(base).flop(shape) - 2 * 13e9
    assert Roofline(wider).flop(shape) - 2 * 13e9 == pytest.approx(4 * attention)


def test_chunks_cost_their_parts(opt13b: Roofline) -> None:
    """Attention of a prompt in two chunks is that of the whole: l·k + l²/2 adds up to L²/2."""
    whole = opt13b.flop(BatchShape(chunks=(Chunk(0, 1000),)))
    parts = opt13b.flop(BatchShape(chunks=(Chunk(0, 400),))) + opt13b.flop(BatchShape(chunks=(Chunk(400, 600),)))
    assert parts == pytest.approx(whole, rel=1e-12)


def test_decode_costs_like_a_chunk_of_one(opt13b: Roofline) -> None:
    as_decode = opt13b.iteration_seconds(BatchShape(decode_sequences=1, decode_context_tokens=700))
    as_chunk = opt13b.iteration_seconds(BatchShape(chunks=(Chunk(700, 1),)))
    assert as_decode == as_chunk


def test_empty_batch_is_refused(opt13b: Roofline) -> None:
    with pytest.raises(SettingError, match="new token"):
        opt13b.iteration_seconds(BatchShape())
