"""The two fits of DistServe, against numbers worked out by hand from the published coefficients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_engine.catalogue import Precision
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import (
    Analytic,
    AnalyticCoefficients,
    BatchShape,
    Chunk,
    CountedTimeModel,
    Fitted,
    Roofline,
    TimeModel,
    time_model,
)

Build = Callable[..., Instance]
COEFFICIENTS = AnalyticCoefficients(c1=2e-14, c2=3e-13, c3=0.01, c4=5e-11, c5=4e-11, attention_block_tokens=16)


def milliseconds(model: TimeModel, **shape: object) -> float:
    return 1e3 * model.iteration_seconds(BatchShape(**shape)).seconds  # type: ignore[arg-type]


def test_published_prefill(instance_of: Build) -> None:
    two = milliseconds(Fitted(instance_of()), chunks=(Chunk(0, 512), Chunk(0, 100)))
    assert two == pytest.approx(18.1025 + 0.1019123 * 612 + 7.1223e-6 * (512**2 + 100**2) + 1 + 2 + 1e-4 * 612)


def test_published_decode_changes_its_coefficients_at_95(instance_of: Build) -> None:
    model = Fitted(instance_of("opt-66b", tensor=3))
    small = milliseconds(model, decode_sequences=94, decode_context_tokens=9400)
    large = milliseconds(model, decode_sequences=95, decode_context_tokens=9500)
    assert small == pytest.approx(35.8015 + 5.8450e-4 * 9400 + 0.0952670 * 94 + 2 + 1e-4 * 9400)
    assert large == pytest.approx(22.6539 + 5.3585e-4 * 9500 + 0.2085144 * 95 + 2 + 1e-4 * 9500)


def test_pipeline_stages_add_their_overhead(instance_of: Build) -> None:
    """A stage is (A + B Σl + C Σl²)/pp + pp ms; the latency is all stages and what the first one adds."""
    cost = Fitted(instance_of(pipeline=2)).iteration_seconds(BatchShape(chunks=(Chunk(0, 400),)))
    work, first = 18.1025 + 0.1019123 * 400 + 7.1223e-6 * 400**2, 2 + 1e-4 * 400
    assert 1e3 * cost.seconds == pytest.approx(work + 2 * 2 + first)
    assert 1e3 * cost.stage_seconds == pytest.approx(work / 2 + 2 + first)


def test_chunks_of_a_prompt_cost_its_square(instance_of: Build) -> None:
    model = Fitted(instance_of())
    whole = milliseconds(model, chunks=(Chunk(0, 1000),))
    parts = milliseconds(model, chunks=(Chunk(0, 600),)) + milliseconds(model, chunks=(Chunk(600, 400),))
    again = 18.1025 + 1 + 2 + 1e-4 * 600  # another iteration, whose context holds the first 600 tokens again
    assert parts == pytest.approx(whole + again)


def test_prompts_and_decodes_together_pay_the_larger_constant_once(instance_of: Build) -> None:
    model = Fitted(instance_of())
    mixed = milliseconds(model, chunks=(Chunk(0, 300),), decode_sequences=8, decode_context_tokens=4000)
    alone = milliseconds(model, chunks=(Chunk(0, 300),))
    assert mixed == pytest.approx(alone + 19.9347 - 18.1025 + 6.2694e-4 * 4000 + 0.0385070 * 8 + 1e-4 * 4000)


def test_fit_and_roofline_are_of_one_size(instance_of: Build) -> None:
    """Nothing makes them equal; a slip of a unit would show."""
    fitted, roofline = Fitted(instance_of()), Roofline(instance_of())
    for batch in (
        BatchShape(chunks=(Chunk(0, 512),)),
        BatchShape(decode_sequences=32, decode_context_tokens=32 * 512),
    ):
        ratio = fitted.iteration_seconds(batch).seconds / roofline.iteration_seconds(batch).seconds
        assert 0.7 < ratio < 1.6


def test_only_what_was_published_is_answered(instance_of: Build) -> None:
    with pytest.raises(SettingError, match="model is 'opt-175b'; it must be one of those fitted: opt-13b, opt-66b"):
        Fitted(instance_of("opt-175b", tensor=8))
    with pytest.raises(SettingError, match="tensor is 5; it must be one of those fitted: 2, 3, 4, 8"):
        Fitted(instance_of("opt-66b", tensor=5))
    with pytest.raises(SettingError, match="gpu is 'h100'"):
        Fitted(instance_of("opt-13b", "h100"))
    with pytest.raises(SettingError, match="backend is 'triton'; it must be one of distserve, vllm"):
        Fitted(instance_of(), backend="triton")
    narrow = Instance(
        model=instance_of().model, gpu=instance_of().gpu, kv_precision=Precision.FP8, weight_precision=Precision.FP16
    )
    with pytest.raises(SettingError, match="kv_precision is 'fp8'"):
        Fitted(narrow)
    assert milliseconds(Fitted(instance_of(), backend="vllm"), chunks=(Chunk(0, 100),)) > 0


def test_appendix_a_is_the_papers_form(instance_of: Build) -> None:
    """Prefill C1(4th² + 2thm) + C2·3ht₂/b + C3, decode C4(4h² + 2hm) + C5·3ht with h 5120 and m 20480."""
    h, m, c = 5120, 20480, COEFFICIENTS
    model = Analytic(instance_of(), coefficients=c)
    tokens, squares = 700, 600**2 + 100**2
    prefill = model.iteration_seconds(BatchShape(chunks=(Chunk(0, 600), Chunk(0, 100)))).seconds
    assert prefill == pytest.approx(
        c.c1 * (4 * tokens * h**2 + 2 * tokens * h * m) + c.c2 * 3 * h * squares / 16 + c.c3
    )
    decode = model.iteration_seconds(BatchShape(decode_sequences=10, decode_context_tokens=5000)).seconds
    assert decode == pytest.approx(c.c4 * (4 * h**2 + 2 * h * m) + c.c5 * 3 * h * 5000)
    halved = Analytic(instance_of(tensor=2), coefficients=c)
    assert halved.iteration_seconds(BatchShape(decode_sequences=1, decode_context_tokens=5000)).seconds == decode / 2
    staged = Analytic(instance_of(pipeline=4), coefficients=c).iteration_seconds(BatchShape(chunks=(Chunk(0, 64),)))
    assert staged.stage_seconds == staged.seconds / 4


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True])
def test_wrong_coefficients_are_refused_by_name(value: float) -> None:
    with pytest.raises(SettingError, match="c4 is"):
        AnalyticCoefficients(c1=0, c2=0, c3=0, c4=value, c5=0)
    with pytest.raises(SettingError, match="attention_block_tokens is 0"):
        AnalyticCoefficients(c1=0, c2=0, c3=0, c4=0, c5=0, attention_block_tokens=0)


def test_analytic_needs_coefficients(instance_of: Build) -> None:
    with pytest.raises(SettingError, match="coefficients is missing"):
        time_model("analytic", instance_of())
    assert isinstance(time_model("analytic", instance_of(), coefficients=COEFFICIENTS), Analytic)


@given(
    kind=st.sampled_from(["roofline", "fitted", "analytic"]),
    chunks=st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), max_size=4),
    sequences=st.integers(0, 300),
    context=st.integers(1, 2000),
)
def test_counted_seconds_are_the_iterations(
    kind: str, chunks: list[tuple[int, int]], sequences: int, context: int, instance_of: Build
) -> None:
    model = time_model(kind, instance_of(), coefficients=COEFFICIENTS)
    assert isinstance(model, CountedTimeModel)
    batch = BatchShape(
        chunks=tuple(Chunk(held, new) for held, new in chunks),
        decode_sequences=sequences,
        decode_context_tokens=sequences * context,
    )
    if batch.new_tokens:
        counted = model.counted_seconds(
            batch.prefill_tokens,
            sum(new * (held + new / 2) for held, new in chunks),
            sum(held for held, _ in chunks),
            sequences,
            sequences * context,
        )
        assert counted == pytest.approx(model.iteration_seconds(batch).seconds, rel=1e-12)


@given(
    kind=st.sampled_from(["fitted", "analytic"]),
    sequences=st.integers(1, 200),
    context=st.integers(0, 2000),
    steps=st.integers(0, 200),
)
def test_window_of_decodes_equals_stepping(
    kind: str, sequences: int, context: int, steps: int, instance_of: Build
) -> None:
    model = time_model(kind, instance_of(), coefficients=COEFFICIENTS)
    stepped = sum(
        model.iteration_seconds(
            BatchShape(decode_sequences=sequences, decode_context_tokens=sequences * (context + step))
        ).seconds
        for step in range(steps)
    )
    assert model.decode_window(sequences, sequences * context, steps) == pytest.approx(stepped, abs=1e-9)
