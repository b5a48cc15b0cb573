"""Quantiles and shares from buckets."""

from __future__ import annotations

import math

import pytest

from disagg_planner.core.histogram import Quantile, quantile, share_within

INF = math.inf


def test_pm5_a_quantile_of_nothing_is_none() -> None:
    assert quantile((), 0.9) is None
    assert quantile(((0.1, 0.0), (0.5, 0.0), (INF, 0.0)), 0.9) is None
    assert share_within(((0.1, 0.0), (INF, 0.0)), 0.1) is None


def test_pm4_a_bucket_that_is_no_number_spoils_the_histogram() -> None:
    assert quantile(((0.1, math.nan), (INF, 5.0)), 0.9) is None
    assert share_within(((0.1, 1.0), (INF, math.nan)), 0.1) is None


def test_pm5_beyond_the_last_bound_is_saturated() -> None:
    assert quantile(((0.1, 0.0), (0.5, 0.0), (INF, 7.0)), 0.9) == Quantile(0.5, saturated=True)


def test_inside_a_bucket_observations_are_spread_evenly() -> None:
    buckets = ((0.1, 50.0), (0.2, 100.0), (INF, 100.0))
    assert quantile(buckets, 0.9) == Quantile(pytest.approx(0.18))
    assert share_within(buckets, 0.15) == pytest.approx(0.75)


def test_the_share_is_exact_at_a_bound() -> None:
    buckets = ((0.1, 50.0), (0.25, 93.0), (INF, 100.0))
    assert share_within(buckets, 0.25) == pytest.approx(0.93)
    assert share_within(buckets, 60.0) == pytest.approx(0.93)
    assert share_within(buckets, 0.0) == 0.0
