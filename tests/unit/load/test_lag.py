"""Lag of the workers' loops: read from real metrics, judged by the worst loop, shown in one line."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.metrics import LAG_BUCKETS
from disagg_engine.batching import Completed, Counts, Iteration
from disagg_load.lag import FEWEST_ITERATIONS, VOID_SHARE, LoopLag, is_void, show_lag, worst_loop
from disagg_workers.telemetry import Snapshot, Telemetry

IDLE = Counts(**dict.fromkeys(Counts.__dataclass_fields__, 0))


def loop(iterations: int, late: int) -> LoopLag:
    """Late iterations lagged by 7 ms, the others by 0.7 ms."""
    within = tuple(0 if b < 0.0007 else iterations - late if b < 0.007 else iterations for b in LAG_BUCKETS)
    return LoopLag(iterations=iterations, late=late, within=within)


def exposed(lags: list[float], *, step: float, time_scale: float = 1.0) -> str:
    """Metrics of a worker whose iterations of ``step`` engine seconds lagged by these engine seconds."""
    telemetry = Telemetry(model="m", kv_capacity_tokens=1, time_scale=time_scale)
    for number, lag in enumerate(lags):
        iteration = Iteration(number=number, start_seconds=0, end_seconds=step, free_seconds=step)
        telemetry.completed(Completed(iteration=iteration, works=(), emissions=()), lag_seconds=lag, prompt_tokens=0)
    return telemetry.expose(
        Snapshot(
            counts=IDLE,
            waiting_tokens=0,
            kv_usage=0,
            pinned_blocks=0,
            leases_expired=0,
            ready=True,
            draining=False,
        )
    ).decode()


def test_a_workers_metrics_are_read() -> None:
    found = LoopLag.from_metrics(exposed([0.0004, 0.004, 0.006, 0.006, 2.0], step=0.025))
    assert found is not None
    assert (found.iterations, found.late) == (5, 3)
    assert found.at_most(0.2) == 0.0005
    assert found.at_most(0.5) == 0.01
    assert found.at_most(1.0) == inf


def test_late_is_relative_to_the_step_and_the_lag_itself_is_wall_time() -> None:
    """At a time scale of 10 a step of 25 ms takes 2.5 ms of wall time; a lag of 10 engine ms is 1 ms of wall time."""
    found = LoopLag.from_metrics(exposed([0.01] * 4, step=0.025, time_scale=10))
    assert found is not None
    assert found.late == 4
    assert found.at_most(1.0) == 0.001
    on_time = LoopLag.from_metrics(exposed([0.01] * 4, step=0.1, time_scale=10))
    assert on_time is not None
    assert on_time.late == 0


def test_text_without_the_series_is_no_lag() -> None:
    assert LoopLag.from_metrics("# HELP up Up.\nup 1\n") is None


def test_a_worker_that_did_nothing_lagged_by_nothing() -> None:
    found = LoopLag.from_metrics(exposed([], step=1))
    assert found is not None
    assert found.late_share == 0
    assert not is_void({"a": found})
    assert show_lag({"a": found}) == "no iterations"


@pytest.mark.parametrize(("late", "void"), [(0, False), (50, False), (51, True), (1000, True)])
def test_a_run_is_void_above_one_late_iteration_in_twenty(late: int, void: bool) -> None:
    assert VOID_SHARE == 0.05
    assert is_void({"a": loop(1000, late)}) is void


def test_the_worst_loop_decides() -> None:
    loops = {"decode-a": loop(10_000, 0), "prefill-a": loop(100, 10)}
    assert is_void(loops)
    assert worst_loop(loops) == "prefill-a"
    assert show_lag(loops) == (
        "0.1% of 10100 iterations late by over a fifth of a step; lag p50 ≤ 1 ms, p99 ≤ 1 ms, worst ≤ 10 ms; "
        "worst loop prefill-a with 10.0%"
    )


def test_a_loop_that_hardly_ran_says_nothing() -> None:
    assert not is_void({"a": loop(FEWEST_ITERATIONS - 1, FEWEST_ITERATIONS - 1)})
    assert is_void({"a": loop(FEWEST_ITERATIONS, FEWEST_ITERATIONS)})
    assert not is_void({})


@given(st.lists(st.floats(0, 2), min_size=1, max_size=40), st.lists(st.floats(0, 2), min_size=1, max_size=40))
def test_loops_add_up(first: list[float], second: list[float]) -> None:
    a, b, both = (LoopLag.from_metrics(exposed(lags, step=0.1)) for lags in (first, second, first + second))
    assert a is not None
    assert b is not None
    assert a + b == both
