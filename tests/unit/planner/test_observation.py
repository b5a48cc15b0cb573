"""What of a reading may enter a decision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_planner.core import signals
from disagg_planner.core.observation import Observation, observe
from disagg_planner.core.signals import Problem, ProblemKind, Reading

FULL = {signal.key: 60.0 for signal in signals.SCALARS}


def read(values: dict[str, float], *, time_scale: float = 1.0, **more: Any) -> Observation:
    reading = replace(Reading(at_seconds=100.0, window_seconds=30.0, increases=values), **more)
    return observe(
        reading, time_scale=time_scale, slo_ttft_seconds=0.25, slo_tpot_seconds=0.1, attainment=0.9, stale_seconds=120.0
    )


def kind(observation: Observation) -> ProblemKind | None:
    return observation.problem.kind if observation.problem is not None else None


def test_a_whole_reading() -> None:
    seen = read({**FULL, signals.INPUT_SUM.key: 6000.0, signals.TTFT_SUM.key: 12.0, signals.CACHED.key: 1500.0})
    assert (seen.rate, seen.input_tokens, seen.output_tokens, seen.hit_rate) == (2.0, 100.0, 1.0, 0.25)
    assert seen.ttft is not None
    assert seen.ttft.mean_seconds == pytest.approx(0.2)
    assert seen.prefill_work is not None
    assert seen.decode_work is not None


def test_rates_are_per_engine_second() -> None:
    assert read(FULL, time_scale=4.0).rate == pytest.approx(0.5)


def test_pl1_a_present_zero_is_idle_and_averages_over_nothing_are_unknown() -> None:
    seen = read(dict.fromkeys(FULL, 0.0))
    assert (seen.idle, seen.problem) == (True, None)
    assert (seen.input_tokens, seen.ttft, seen.transfer_seconds) == (None, None, None)


def test_missing_is_not_zero() -> None:
    seen = read({})
    assert kind(seen) is ProblemKind.MISSING
    assert not seen.idle


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -3.0])
def test_pm4_a_count_that_is_no_number_is_no_sample(value: float) -> None:
    seen = read({**FULL, signals.STARTED.key: value})
    assert kind(seen) is ProblemKind.NOT_FINITE
    assert not seen.idle


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_pm4_an_average_that_is_no_number_is_unknown(value: float) -> None:
    seen = read(
        {**FULL, signals.OUTPUT_SUM.key: value, signals.TRANSFER_SUM.key: value, signals.DECODE_BUSY.key: value}
    )
    assert seen.problem is None
    assert (seen.output_tokens, seen.transfer_seconds, seen.decode_work) == (None, None, None)


@pytest.mark.parametrize(("age", "expected"), [(10.0, None), (121.0, ProblemKind.STALE), (math.inf, ProblemKind.STALE)])
def test_old_samples_are_stale(age: float, expected: ProblemKind | None) -> None:
    assert kind(read(FULL, age_seconds=age)) is expected


def test_a_problem_of_the_source_is_passed_on() -> None:
    seen = read(FULL, problem=Problem(ProblemKind.UNREACHABLE, "no route"))
    assert kind(seen) is ProblemKind.UNREACHABLE


def test_the_slo_is_judged_by_the_share_within_it() -> None:
    buckets = {signals.TTFT_BUCKET.key: ((0.1, 20.0), (0.25, 51.0), (math.inf, 60.0))}
    ttft = read({**FULL, signals.TTFT_SUM.key: 9.0}, buckets=buckets).ttft
    assert ttft is not None
    assert ttft.mean_seconds < 0.25
    assert ttft.share == pytest.approx(0.85)
    assert ttft.misses(slo_seconds=0.25, attainment=0.9)
    assert not ttft.misses(slo_seconds=0.25, attainment=0.8)


@given(st.dictionaries(st.sampled_from(sorted(FULL)), st.floats(allow_nan=True, allow_infinity=True)))
def test_pm4_whatever_is_read_nothing_infinite_comes_out(values: dict[str, float]) -> None:
    seen = read(values)
    numbers = [seen.started, seen.hit_rate, seen.input_tokens, seen.output_tokens, seen.transfer_seconds]
    numbers += [latency.mean_seconds for latency in (seen.ttft, seen.tpot) if latency is not None]
    assert all(number is None or math.isfinite(number) for number in numbers)
