"""Waiting times against closed forms and a simulated queue."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_planner.core.queueing import erlang_c, wait_quantile


def simulated_quantile(*, servers: int, offered: float, q: float, arrivals: int = 60_000, seed: int = 7) -> float:
    draw = random.Random(seed)
    free, now, waits = [0.0] * servers, 0.0, []
    for _ in range(arrivals):
        now += draw.expovariate(offered)
        index = min(range(servers), key=free.__getitem__)
        start = max(now, free[index])
        waits.append(start - now)
        free[index] = start + 1.0
    return sorted(waits)[int(q * arrivals)]


def test_erlang_c_of_one_server_is_its_utilisation() -> None:
    assert erlang_c(1, 0.37) == pytest.approx(0.37)


def test_erlang_c_of_a_textbook_case() -> None:
    # Gross et al., M/M/2 with a = 1.248: (a²/2) / ((1 - rho)(1 + a) + a²/2).
    assert erlang_c(2, 1.248) == pytest.approx(0.7788 / (0.376 * 2.248 + 0.7788), rel=1e-3)


@pytest.mark.parametrize(("servers", "rho"), [(1, 0.48), (1, 0.7), (2, 0.6), (2, 0.8), (4, 0.8), (8, 0.9)])
def test_ninety_percent_quantile_agrees_with_a_simulated_queue(servers: int, rho: float) -> None:
    computed = wait_quantile(servers=servers, offered=servers * rho, service_seconds=1.0, q=0.9)
    assert computed == pytest.approx(simulated_quantile(servers=servers, offered=servers * rho, q=0.9), rel=0.15)


def test_overload_waits_for_ever() -> None:
    assert wait_quantile(servers=2, offered=2.0, service_seconds=0.1, q=0.9) == math.inf


def test_no_load_waits_not() -> None:
    assert wait_quantile(servers=1, offered=0.0, service_seconds=0.1, q=0.9) == 0.0
    assert wait_quantile(servers=3, offered=0.1, service_seconds=0.1, q=0.9) == 0.0


@given(st.integers(1, 30), st.floats(0.05, 0.98), st.floats(0.5, 0.99))
def test_more_servers_never_wait_longer(servers: int, rho: float, q: float) -> None:
    offered = servers * rho
    few = wait_quantile(servers=servers, offered=offered, service_seconds=1.0, q=q)
    many = wait_quantile(servers=servers + 1, offered=offered, service_seconds=1.0, q=q)
    assert many <= few + 1e-9
