"""The models of statsmodels, behind the rules."""

from __future__ import annotations

import math
import random

import pytest

from disagg_planner.core.arima import ORDERS, arima_predictor, fit_arima, fitters
from disagg_planner.core.forecast import BestOf, Forecast, Source

FALLING = [90.0, 70.0, 50.0, 30.0, 10.0, 0.0, 0.0, 0.0, 0.0]
MORE_ORDERS = ((0, 2, 1), (2, 0, 1), (2, 1, 2), (1, 1, 0))


def noise(count: int, *, level: float = 3.0, sigma: float = 0.3, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [level + draw.gauss(0, sigma) for _ in range(count)]


def forecast(values: list[float], steps: int = 1) -> Forecast:
    result = arima_predictor().forecast(values, steps=steps)
    assert result is not None
    return result


def test_noise_around_a_level_is_forecast_at_the_level() -> None:
    result = forecast(noise(40))
    assert result.source is Source.MODEL
    assert result.value == pytest.approx(3.0, abs=0.3)


def test_a_steady_slope_is_followed_ahead() -> None:
    ramp = [10 + 0.8 * i + n for i, n in enumerate(noise(40, level=0.0, sigma=0.05))]
    assert forecast(ramp, steps=1).value > ramp[-1] - 0.2


def test_pl12_falling_series_stay_finite_and_not_negative() -> None:
    predictors = [arima_predictor(), *(BestOf(fitters((order,))) for order in MORE_ORDERS)]
    for predictor in predictors:
        for count in range(1, len(FALLING) + 1):
            result = predictor.forecast(FALLING[:count])
            assert result is not None
            assert math.isfinite(result.value)
            assert result.value >= 0


def test_pl13_an_infinite_reading_changes_nothing() -> None:
    values = noise(30)
    assert forecast([*values[:10], math.inf, *values[10:]]) == forecast(values)


@pytest.mark.parametrize(
    "values",
    [
        *[[1.0, 4.0, 2.0, 5.0, 3.0, 6.0][:count] for count in range(1, 7)],
        [4.2] * 12,
        [0.0] * 12,
        [0.0] * 5 + noise(12, level=1.0),
        noise(19),
        [0.0, 0.0, 0.0, 0.0, 0.0, 1e-12, 0.0],
        [1e-9, 1e9] * 6,
    ],
)
def test_pl16_ordinary_short_series_give_a_number(values: list[float]) -> None:
    result = forecast(values)
    assert math.isfinite(result.value)
    assert result.value >= 0


def test_pl16_too_many_parameters_fall_back() -> None:
    result = BestOf(fitters(((0, 1, 5),))).forecast([3.0, 3.4, 2.9, 3.2, 3.1, 2.8, 3.3])
    assert result is not None
    assert (result.value, result.source, result.failed) == (3.3, Source.FALLBACK, ("arima(0,1,5)",))


def test_pl16_nineteen_noisy_points_with_a_long_moving_average() -> None:
    result = BestOf(fitters(((0, 1, 5),))).forecast(noise(19))
    assert result is not None
    assert math.isfinite(result.value)


@pytest.mark.parametrize("unit", [1e-6, 0.001, 7.3, 1e9])
def test_the_unit_of_a_series_does_not_matter(unit: float) -> None:
    values = noise(30)
    scaled = forecast([value * unit for value in values])
    assert scaled.value / unit == pytest.approx(forecast(values).value, rel=1e-9)
    assert scaled.model == forecast(values).model


def test_the_same_series_gives_the_same_forecast() -> None:
    assert forecast(noise(40)) == forecast(noise(40))


def test_every_order_fits_a_plain_series() -> None:
    for order in ORDERS:
        fit = fit_arima(order, [value / 4 for value in noise(40)], 3)
        assert len(fit.path) == 3
        assert math.isfinite(fit.score)
