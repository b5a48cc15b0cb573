"""Measured tables: exact at their points, straight between and beyond them, and what is put together from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.profile import Profile
from disagg_engine.batching import BatchingConfig, Role
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.profile import compute_profile
from disagg_engine.timemodel import BatchShape, Chunk, DecodeRow, PrefillRow, Roofline, Tabulated, time_model
from disagg_engine.timemodel.curves import Curve

Build = Callable[..., Instance]

PROMPTS = [PrefillRow(tokens=t, seconds=s) for t, s in ((100, 0.02), (200, 0.03), (400, 0.07))]
STEPS = [
    DecodeRow(sequences=b, context_tokens=c, seconds=s)
    for b, c, s in (
        (1, 100, 0.010),
        (9, 100, 0.018),
        (1, 300, 0.012),
        (9, 300, 0.028),
        (1, 1300, 0.022),  # a batch of 9 does not fit there
    )
]


@pytest.fixture
def table(instance_of: Build) -> Tabulated:
    return Tabulated(instance_of(), prefill=PROMPTS, decode=STEPS)


def prompt(model: Tabulated, *chunks: tuple[int, int]) -> float:
    return model.iteration_seconds(BatchShape(chunks=tuple(Chunk(held, new) for held, new in chunks))).seconds


def step(model: Tabulated, sequences: int, context: float) -> float:
    shape = BatchShape(decode_sequences=sequences, decode_context_tokens=round(sequences * context))
    return model.iteration_seconds(shape).seconds


def test_points_come_back_as_measured(table: Tabulated) -> None:
    for row in PROMPTS:
        assert prompt(table, (0, row.tokens)) == pytest.approx(row.seconds, rel=1e-12)
    for cell in STEPS:
        assert step(table, cell.sequences, cell.context_tokens) == pytest.approx(cell.seconds, rel=1e-12)


def test_between_points_it_is_straight(table: Tabulated) -> None:
    assert prompt(table, (0, 150)) == pytest.approx(0.025)
    assert step(table, 5, 100) == pytest.approx(0.014)
    assert step(table, 5, 200) == pytest.approx((0.014 + 0.020) / 2)


def test_beyond_points_it_goes_on_straight(table: Tabulated) -> None:
    assert prompt(table, (0, 600)) == pytest.approx(0.07 + 200 * 2e-4)
    assert prompt(table, (0, 50)) == pytest.approx(0.015)
    assert step(table, 17, 100) == pytest.approx(0.026), "batches beyond the last of a context"
    assert step(table, 9, 500) == pytest.approx(0.028 + (0.022 - 0.028) * 200 / 1000)
    assert step(table, 1, 2300) == pytest.approx(0.032), "contexts beyond the last"
    assert step(table, 1, 20) == pytest.approx(0.0092)


@pytest.mark.parametrize(
    ("points", "at", "value"),
    [
        ([(10, 2.0), (20, 1.0)], 30, 1.0),  # falls at its end: noise
        ([(10, 2.0), (20, 1.0)], 5, 2.0),
        ([(10, 2.0), (20, 1.0)], 15, 1.5),
        ([(10, 1.0), (11, 2.0)], 5, 0.5),  # too steep at its start to reach 0 above 0
        ([(10, 1.0)], 99, 1.0),
        ([(10, 1.0)], 0, 1.0),
    ],
)
def test_ends_of_a_curve_never_fall_with_load_nor_below_zero(
    points: Iterable[tuple[float, float]], at: float, value: float
) -> None:
    assert Curve(points, field="x")(at) == pytest.approx(value)


def test_prompts_together_cost_one_of_their_tokens(table: Tabulated) -> None:
    assert prompt(table, (0, 100), (0, 100)) == pytest.approx(0.03)


def test_chunks_of_a_prompt_cost_the_whole_and_a_start_each(instance_of: Build) -> None:
    def law(tokens: int) -> float:
        return 0.005 + 1e-4 * tokens + 2e-8 * tokens**2

    rows = [PrefillRow(tokens=tokens, seconds=law(tokens)) for tokens in range(50, 2001, 50)]
    model = Tabulated(instance_of(), prefill=rows)
    parts = prompt(model, (0, 600)) + prompt(model, (600, 400)) + prompt(model, (1000, 1000))
    assert parts == pytest.approx(law(2000) + 2 * 0.005)


def test_measured_chunks_count_more_than_the_rule(instance_of: Build) -> None:
    after = [PrefillRow(tokens=t, cached_tokens=1000, seconds=s) for t, s in ((100, 0.04), (200, 0.06))]
    model = Tabulated(instance_of(), prefill=[*PROMPTS, *after])
    assert prompt(model, (1000, 100)) == pytest.approx(0.04)
    assert prompt(model, (500, 150)) == pytest.approx((0.025 + 0.05) / 2)
    assert prompt(model, (0, 100)) == pytest.approx(0.02)
    assert prompt(model, (1500, 100)) == pytest.approx(prompt(Tabulated(instance_of(), prefill=PROMPTS), (1500, 100)))


def test_decodes_that_join_a_prompt_add_their_tokens_and_their_context(table: Tabulated) -> None:
    mixed = table.iteration_seconds(BatchShape(chunks=(Chunk(0, 191),), decode_sequences=9, decode_context_tokens=2700))
    context = step(table, 9, 300) - step(table, 9, 0)
    assert mixed.seconds == pytest.approx(0.03 + context)
    few = table.iteration_seconds(BatchShape(chunks=(Chunk(0, 1),), decode_sequences=9, decode_context_tokens=2700))
    assert few.seconds == pytest.approx(step(table, 9, 300)), "never less than the decodes alone"
    assert mixed.bound == "compute"


@given(sequences=st.integers(1, 40), context=st.integers(0, 1600), steps=st.integers(0, 300))
def test_window_of_decodes_equals_stepping_across_cells(
    sequences: int, context: int, steps: int, instance_of: Build
) -> None:
    table = Tabulated(instance_of(), decode=STEPS)
    stepped = sum(step(table, sequences, context + i) for i in range(steps))
    assert table.decode_window(sequences, sequences * context, steps) == pytest.approx(stepped, abs=1e-9)


def profile_of(instance: Instance, decode: Instance | None = None) -> Profile:
    return compute_profile(
        prefill=instance,
        decode=decode or instance,
        prefill_batching=BatchingConfig(role=Role.PREFILL),
        decode_batching=BatchingConfig(role=Role.DECODE),
    )


def test_a_profile_of_the_roofline_gives_the_roofline_back(instance_of: Build) -> None:
    instance = instance_of("llama-3.1-8b", "h100")
    roofline, table = Roofline(instance), time_model("profile", instance, profile=profile_of(instance))
    for batch in (
        BatchShape(chunks=(Chunk(0, 700),)),
        BatchShape(chunks=(Chunk(0, 300), Chunk(0, 333))),
        BatchShape(chunks=(Chunk(2000, 512),)),
        BatchShape(decode_sequences=45, decode_context_tokens=45 * 3333),
        BatchShape(decode_sequences=3, decode_context_tokens=3 * 40_000),
    ):
        expected = roofline.iteration_seconds(batch).seconds
        assert table.iteration_seconds(batch).seconds == pytest.approx(expected, rel=0.06), batch


def test_pipeline_stages_split_the_profiles_batches(instance_of: Build) -> None:
    instance = instance_of("opt-66b", pipeline=3)
    table = Tabulated.from_profile(profile_of(instance), instance)
    batch = BatchShape(decode_sequences=8, decode_context_tokens=8 * 512)
    cost = table.iteration_seconds(batch)
    assert cost.seconds == pytest.approx(Roofline(instance).iteration_seconds(batch).seconds, rel=0.05)
    assert cost.stage_seconds == cost.seconds / 3
    assert table.decode_window(8, 4096, 10) is None


def test_each_leg_of_a_profile_answers_for_its_own_instance(instance_of: Build) -> None:
    prefill, decode = instance_of("opt-66b", tensor=2), instance_of("opt-66b", tensor=4)
    profile = profile_of(prefill, decode)
    first, second = Tabulated.from_profile(profile, prefill), Tabulated.from_profile(profile, decode)
    assert prompt(first, (0, 512)) > 0
    assert step(second, 8, 512) > 0
    with pytest.raises(SettingError, match="the profile has no decode steps"):
        step(first, 8, 512)
    with pytest.raises(SettingError, match="the profile has no prompts"):
        prompt(second, (0, 512))


def test_profiles_of_something_else_are_refused(instance_of: Build) -> None:
    instance = instance_of()
    profile = profile_of(instance)
    with pytest.raises(SettingError, match=r"profile\.model is 'opt-13b'"):
        Tabulated.from_profile(profile, instance_of("opt-66b", tensor=2))
    with pytest.raises(SettingError, match="GPU, tensor and pipeline of the instance"):
        Tabulated.from_profile(profile, instance_of(tensor=2))
    with pytest.raises(SettingError, match="profile is 'empty'"):
        Tabulated.from_profile(replace(profile, prefill=(), decode=()), instance)
    with pytest.raises(SettingError, match="profile is missing"):
        time_model("profile", instance)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([PrefillRow(tokens=5, seconds=0.0)], "times above 0"),
        ([PrefillRow(tokens=5, seconds=float("nan"))], "times above 0"),
        ([PrefillRow(tokens=-5, seconds=1.0)], "sizes of 0 or more"),
        ([PrefillRow(tokens=5, seconds=1.0), PrefillRow(tokens=5, seconds=2.0)], "prefill is 5; it must be there once"),
        ([PrefillRow(tokens=5, seconds=1.0, cached_tokens=7)], "rows without cached tokens as well"),
    ],
)
def test_wrong_rows_are_refused(rows: list[PrefillRow], problem: str, instance_of: Build) -> None:
    with pytest.raises(SettingError, match=problem):
        Tabulated(instance_of(), prefill=rows)
