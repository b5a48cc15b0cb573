"""Both groups within the GPUs of a deployment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_planner.core.budget import Leg, fit


def leg(current: int, wanted: int, *, gpus: int = 1, minimum: int = 1) -> Leg:
    return Leg(current=current, wanted=wanted, gpus=gpus, minimum=minimum)


@pytest.mark.parametrize(
    ("prefill", "decode", "budget", "fitted"),
    [
        (leg(1, 3), leg(1, 4), 0, (3, 4)),
        (leg(1, 3), leg(1, 4), 8, (3, 4)),
        (leg(1, 6), leg(1, 6), 8, (4, 4)),
        (leg(4, 6), leg(4, 2), 8, (6, 2)),
        (leg(4, 6), leg(4, 6), 8, (4, 4)),
        (leg(1, 9), leg(1, 3), 8, (6, 2)),
        (leg(2, 4, gpus=2), leg(2, 4, gpus=4), 16, (2, 3)),
        (leg(9, 9), leg(4, 4), 8, (5, 3)),
    ],
)
def test_shrink_in_proportion(prefill: Leg, decode: Leg, budget: int, fitted: tuple[int, int]) -> None:
    assert fit(prefill, decode, budget) == fitted


def test_a_scale_up_is_never_turned_into_a_scale_down() -> None:
    # In proportion this would be (5, 3), which takes an instance from decode, which wants more.
    assert fit(leg(4, 10), leg(4, 5), 8) == (4, 4)


def test_a_growing_group_keeps_what_it_has_and_the_shrinking_one_gives() -> None:
    assert fit(leg(2, 16), leg(5, 6), 8) == (3, 5)


def test_the_minimum_holds() -> None:
    assert fit(leg(1, 20), leg(2, 2, minimum=2), 8) == (6, 2)


legs = st.builds(Leg, current=st.integers(0, 12), wanted=st.integers(1, 20), gpus=st.integers(1, 4), minimum=st.just(1))


@given(legs, legs, st.integers(8, 40))
def test_never_above_the_budget_never_against_the_direction(prefill: Leg, decode: Leg, budget: int) -> None:
    p, d = fit(prefill, decode, budget)
    assert p * prefill.gpus + d * decode.gpus <= budget
    assert p <= max(prefill.wanted, prefill.current)
    assert d <= max(decode.wanted, decode.current)
    if prefill.current * prefill.gpus + decode.current * decode.gpus <= budget:
        assert p >= min(prefill.current, prefill.wanted) or not prefill.grows
        assert d >= min(decode.current, decode.wanted) or not decode.grows
