"""Which loads a deployment is said to keep up with, judged on queues whose load is known."""

from itertools import pairwise

import numpy as np
import pytest

from disagg_simulator.stability import assess, grows
from disagg_simulator.statistics import Floats


def queue(arrival: Floats, service: Floats, servers: int = 1) -> Floats:
    """Ends of requests that `servers` serve first come, first served."""
    free = [0.0] * servers
    ends = []
    for time, work in zip(arrival.tolist(), service.tolist(), strict=True):
        first = min(range(servers), key=free.__getitem__)
        free[first] = max(free[first], time) + work
        ends.append(free[first])
    return np.array(ends)


def arrivals(rng: np.random.Generator, *, load: float, count: int, cv: float = 1.0) -> Floats:
    """Arrivals of gamma gaps for a server of one request a second."""
    shape = cv**-2
    times = np.cumsum(rng.gamma(shape, 1 / (shape * load), count))
    return times - times[0]


def judged(arrival: Floats, finish: Floats) -> bool | None:
    return assess(arrival, finish).stable


@pytest.mark.parametrize("count", [500, 3000])
@pytest.mark.parametrize("load", [0.3, 0.8, 0.95])
def test_poisson_arrivals_below_capacity_are_no_alarm(load: float, count: int) -> None:
    alarms = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        arrival = arrivals(rng, load=load, count=count)
        alarms += judged(arrival, queue(arrival, np.ones(count))) is False
    assert alarms == 0


@pytest.mark.parametrize("cv", [2.0, 4.0])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_bursts_below_capacity_are_no_alarm(load: float, cv: float) -> None:
    alarms = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        arrival = arrivals(rng, load=load, count=3000, cv=cv)
        alarms += judged(arrival, queue(arrival, rng.lognormal(-0.08, 0.4, 3000))) is False
    assert alarms == 0


@pytest.mark.parametrize("servers", [1, 4])
@pytest.mark.parametrize(("load", "count"), [(1.2, 3000), (1.3, 1000), (2.0, 300), (20.0, 60)])
def test_more_than_capacity_is_unstable(load: float, count: int, servers: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        arrival = arrivals(rng, load=load * servers, count=count)
        finish = queue(arrival, rng.lognormal(-0.08, 0.4, count), servers)
        found = assess(arrival, finish)
        assert found.unstable
        assert found.load is not None
        assert found.load > 1
        assert found.capacity_requests_per_second == pytest.approx(servers, rel=0.2)


def test_the_verdict_does_not_depend_on_the_length_of_the_run() -> None:
    rng = np.random.default_rng(7)
    arrival = arrivals(rng, load=1.2, count=20_000)
    finish = queue(arrival, np.ones(20_000))
    found = [assess(arrival[:n], finish[:n]) for n in (1000, 3000, 20_000)]
    assert all(result.unstable for result in found)
    capacities = [result.capacity_requests_per_second for result in found]
    assert capacities == pytest.approx([1.0] * 3, rel=0.01)


def test_a_burst_at_the_end_of_a_bearable_load_is_no_alarm() -> None:
    calm = np.arange(900) * 2.0
    burst = calm[-1] + np.arange(1, 101) * 0.1
    arrival = np.concatenate((calm, burst))
    assert judged(arrival, queue(arrival, np.ones(1000))) is True


def test_many_requests_in_service_at_once_are_no_alarm() -> None:
    """Long answers on a large deployment: the start-up takes a good part of the run, and so does the end."""
    arrival = arrivals(np.random.default_rng(1), load=30.0, count=3000)
    serving = 10 + 20 * np.minimum(1, arrival / 30)
    assert judged(arrival, arrival + serving) is True


def test_a_run_that_is_cut_off_is_judged_by_its_second_half() -> None:
    rng = np.random.default_rng(3)
    for load, stable in ((1.5, False), (0.7, True)):
        arrival = arrivals(rng, load=load, count=2000)
        finish = queue(arrival, np.ones(2000))
        end = float(arrival[-1])
        cut = np.where(finish <= end, finish, np.nan)
        assert assess(arrival, cut).stable is stable


def test_a_queue_that_recovered_is_no_alarm() -> None:
    """An hour's outage: the delays rise, and fall again."""
    arrival = np.arange(3000) * 1.25
    service = np.ones(3000)
    service[500] = 300.0
    assert judged(arrival, queue(arrival, service)) is True


def test_a_run_that_is_all_start_up_says_nothing() -> None:
    """Everything is in service at once: whether the rate can be kept up is seen by nobody before the first ends."""
    arrival = np.arange(300) * 0.01
    assert assess(arrival, arrival + 8.0).stable is None
    assert assess(arrival * 10, arrival * 10 + 8.0).stable is True


@pytest.mark.parametrize("count", [0, 1, 29])
def test_few_requests_say_nothing(count: int) -> None:
    arrival = np.arange(count) * 1.0
    assert assess(arrival, arrival + 5).stable is None


def test_requests_that_come_all_at_once_have_no_rate() -> None:
    found = assess(np.zeros(100), np.arange(1, 101) * 1.0)
    assert found.stable is None
    assert found.offered_requests_per_second is None


def test_growth_is_more_than_noise() -> None:
    rng = np.random.default_rng(5)
    assert not grows(rng.exponential(1.0, 3000))
    assert not grows(np.linspace(10, 10.5, 3000))
    assert grows(np.linspace(1, 100, 300))
    assert all(grows(np.linspace(a, b, 300)) for a, b in pairwise((0.0, 1.0, 3.0)))
