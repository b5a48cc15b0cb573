"""Forecast rules, before and around the models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_planner.core.forecast import BestOf, Fit, LastValue, Source, jumped, since_jump

NOISY = [3.1, 2.8, 3.3, 2.9, 3.0, 3.2, 2.7]


def last(values: Sequence[float], steps: int) -> Fit:
    return Fit((values[-1],) * steps, score=1.0)


def better(values: Sequence[float], steps: int) -> Fit:
    return Fit((values[-1] * 1.1,) * steps, score=0.0)


def raising(values: Sequence[float], steps: int) -> Fit:
    raise ValueError("singular")


def not_a_number(values: Sequence[float], steps: int) -> Fit:
    return Fit((math.nan,) * steps, score=-100.0)


def test_empty_series_has_no_forecast() -> None:
    assert BestOf({"last": last}).forecast([]) is None
    assert LastValue().forecast([math.nan]) is None


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_pl16_fewer_than_five_points_give_the_last_value(count: int) -> None:
    forecast = BestOf({"better": better}).forecast(NOISY[:count])
    assert forecast is not None
    assert (forecast.value, forecast.source) == (NOISY[count - 1], Source.LAST_VALUE)


@pytest.mark.parametrize("value", [0.0, 7.5])
def test_pl16_constant_series_gives_the_constant(value: float) -> None:
    forecast = BestOf({"better": better}).forecast([value] * 9)
    assert forecast is not None
    assert (forecast.value, forecast.source) == (value, Source.CONSTANT)


def test_the_best_score_is_used_and_named() -> None:
    forecast = BestOf({"last": last, "better": better}).forecast(NOISY)
    assert forecast is not None
    assert forecast.model == "better"
    assert forecast.value == pytest.approx(2.7 * 1.1)


def test_pl14_a_raising_candidate_never_wins_and_is_reported() -> None:
    forecast = BestOf({"broken": raising, "last": last}).forecast(NOISY)
    assert forecast is not None
    assert (forecast.model, forecast.failed, forecast.source) == ("last", ("broken",), Source.MODEL)


def test_pl14_a_candidate_without_a_number_counts_as_failed_whatever_its_score() -> None:
    forecast = BestOf({"nan": not_a_number, "last": last}).forecast(NOISY)
    assert forecast is not None
    assert (forecast.model, forecast.failed) == ("last", ("nan",))


def test_pl16_when_all_fail_the_last_value_is_marked_as_fallback() -> None:
    forecast = BestOf({"broken": raising, "nan": not_a_number}).forecast(NOISY)
    assert forecast is not None
    assert (forecast.value, forecast.source) == (2.7, Source.FALLBACK)
    assert forecast.failed == ("broken", "nan")


def test_pl12_negative_paths_are_clipped_to_zero() -> None:
    forecast = BestOf({"falling": lambda values, steps: Fit((-0.5,) * steps, 0.0)}).forecast(NOISY)
    assert forecast is not None
    assert forecast.value == 0.0


def test_an_absurd_forecast_is_bounded_by_the_history() -> None:
    forecast = BestOf({"wild": lambda values, steps: Fit((1e9,) * steps, 0.0)}).forecast(NOISY)
    assert forecast is not None
    assert forecast.value == pytest.approx(1.5 * max(NOISY))


def test_looking_several_steps_ahead_takes_the_largest() -> None:
    forecast = BestOf({"hill": lambda values, steps: Fit((0.5, 0.9, 0.7), 0.0)}).forecast(NOISY, steps=3)
    assert forecast is not None
    assert forecast.value == pytest.approx(0.9 * max(NOISY))


def test_a_step_is_a_level_shift_also_when_a_window_saw_half_of_it() -> None:
    for step, level in (
        ([12.0], [12.0]),
        ([7.5, 12.0], [12.0]),
        ([7.5, 12.0, 12.3], [12.3]),
        ([12.0, 11.8, 12.4, 12.1], [11.8, 12.4, 12.1]),
    ):
        forecast = BestOf({"better": better}).forecast([*NOISY, *step])
        assert forecast is not None
        assert (forecast.source, forecast.points) == (Source.LEVEL_SHIFT, len(level))
        assert forecast.value == pytest.approx(sum(level) / len(level))


def test_models_see_only_what_came_after_a_jump() -> None:
    seen: list[int] = []

    def counting(values: Sequence[float], steps: int) -> Fit:
        seen.append(len(values))
        return last(values, steps)

    BestOf({"counting": counting}).forecast([*NOISY, 12.0, 11.8, 12.4, 12.1, 12.2, 11.9])
    assert seen == [5], "the value one interval after a jump still ends it"


def test_a_slope_is_no_jump() -> None:
    ramp = [10 + 0.8 * i + (0.5 if i % 2 else -0.5) for i in range(30)]
    assert not jumped(ramp)
    assert since_jump(ramp) == ramp


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30), st.integers(1, 5))
def test_pl13_any_series_gives_a_finite_forecast_or_none(values: list[float], steps: int) -> None:
    for predictor in (LastValue(), BestOf({"last": last})):
        forecast = predictor.forecast(values, steps=steps)
        if any(math.isfinite(value) for value in values):
            assert forecast is not None
            assert math.isfinite(forecast.value)
            assert forecast.value >= 0
        else:
            assert forecast is None
