"""The formulas of the literature, and what an instance takes within the SLO."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.profile import DecodePoint, PrefillPoint, Profile
from disagg_planner.core.capacity import Demand, ceil_instances, size_decode, size_prefill
from disagg_planner.core.interpolation import ProfileTable


def demand(rate: float, isl: float = 755.0, osl: float = 200.0, hit_rate: float = 0.0) -> Demand:
    return Demand(requests_per_second=rate, input_tokens=isl, output_tokens=osl, hit_rate=hit_rate)


def prefill(table: ProfileTable, rate: float, **values: float) -> int:
    return size_prefill(table, demand(rate), slo_seconds=0.25, attainment=0.9, **values).instances


def decode(table: ProfileTable, rate: float, *, slo: float = 0.1, k: float = 1.0) -> int:
    return size_decode(table, demand(rate), slo_seconds=slo, correction=k).instances


def test_reference_500_requests_in_60_seconds_need_2_decode(flat: Callable[..., ProfileTable]) -> None:
    load = demand(500 / 60, isl=1000, osl=150)
    assert size_decode(flat(decode=1000.0), load, slo_seconds=0.05).instances == 2


def test_rounding_noise_is_no_instance() -> None:
    assert ceil_instances(3.0000000000001, 1.0) == 3
    assert ceil_instances(3.001, 1.0) == 4
    assert ceil_instances(0.0, 1.0) == 0


@pytest.mark.parametrize(
    ("rate", "instances"), [(0.0, 0), (1.0, 1), (3.0, 1), (4.5, 1), (5.0, 2), (12.0, 2), (15.0, 3)]
)
def test_prefill_of_chat_13b(table: ProfileTable, rate: float, instances: int) -> None:
    """M/D/1 keeps 90 % within 0.25 s up to 4.6 req/s; two behind one queue take 13, more than twice as much."""
    assert prefill(table, rate) == instances


@pytest.mark.parametrize(("rate", "instances"), [(3.0, 1), (6.5, 1), (8.0, 2), (12.0, 2), (16.0, 3)])
def test_decode_of_chat_13b(table: ProfileTable, rate: float, instances: int) -> None:
    assert decode(table, rate) == instances


def test_slow_instances_need_more(table: ProfileTable) -> None:
    assert prefill(table, 3.0, correction=1.5) == 2
    assert decode(table, 6.0, k=1.5) == 2
    assert (decode(table, 3.0, slo=0.035), decode(table, 3.0, slo=0.035, k=1.5)) == (1, 2)


def test_transfers_eat_into_the_ttft(table: ProfileTable) -> None:
    assert (prefill(table, 4.0), prefill(table, 4.0, transfer_seconds=0.05)) == (1, 2)


def test_cached_prompt_tokens_need_no_prefill(table: ProfileTable) -> None:
    sizes = [
        size_prefill(table, demand(12.0, hit_rate=hit), slo_seconds=0.25, attainment=0.9).instances for hit in (0, 0.7)
    ]
    assert sizes == [2, 1]


def test_the_capacity_said_is_the_one_the_formula_divides_by(table: ProfileTable) -> None:
    for rate in (2.0, 6.0, 12.0, 20.0):
        size = size_prefill(table, demand(rate), slo_seconds=0.25, attainment=0.9)
        assert ceil_instances(size.load_tokens_per_second, size.tokens_per_second) <= size.instances
        at_limit = size.tokens_per_second * size.instances / 755
        assert prefill(table, at_limit * 0.999) == size.instances
        assert prefill(table, at_limit * 1.001) == size.instances + 1


def test_pl8_an_infeasible_ttft_is_bounded_by_throughput(table: ProfileTable) -> None:
    slo = table.ttft_seconds(755) / 2
    size = size_prefill(table, demand(0.1), slo_seconds=slo, attainment=0.9)
    assert (size.feasible, size.instances) == (False, 1)
    busy = size_prefill(table, demand(30.0), slo_seconds=slo, attainment=0.9)
    assert busy.instances == 4, "30 req/s x 0.104 s at 90 % utilisation"


def test_pl8_an_infeasible_tpot_is_bounded_by_throughput(table: ProfileTable) -> None:
    size = size_decode(table, demand(3.0), slo_seconds=0.005)
    assert (size.feasible, size.instances) == (False, 1)


def test_pl11_absurd_loads_stay_finite(table: ProfileTable) -> None:
    for rate in (1e9, 1e300):
        assert prefill(table, rate) == decode(table, rate) == 10_000


@given(rate=st.floats(0, 60), k=st.floats(0.5, 2), more=st.floats(0, 5))
def test_more_load_never_needs_fewer(rate: float, k: float, more: float) -> None:
    prompt, step = PrefillPoint(755, 0.1, 7550.0), DecodePoint(855, 20, 0.02, 1000.0)
    table = ProfileTable(Profile("flat", "gpu", "gpu", 1, 1, 1, 1, 100_000, 1.0, (prompt,), (step,)))
    assert prefill(table, rate, correction=k) <= prefill(table, rate + more, correction=k)
    assert decode(table, rate, k=k) <= decode(table, rate + more, k=k)
