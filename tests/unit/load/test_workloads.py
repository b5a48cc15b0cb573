"""Generators: their statistics, their seeds, and the sentences about wrong options."""

import subprocess
import sys
from math import sqrt

import numpy as np
import pytest

from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_load.requests import WorkloadStatistics, describe
from disagg_load.traces.own import write
from disagg_load.workloads.arrivals import (
    Arrivals,
    ClockArrivals,
    EmpiricalArrivals,
    GammaArrivals,
    PoissonArrivals,
    TickedArrivals,
)
from disagg_load.workloads.builtin import RECIPES, builtin_columns, builtin_workload, parse_load
from disagg_load.workloads.drawing import draw
from disagg_load.workloads.lengths import EmpiricalLengths, FixedLengths, LognormalLengths
from disagg_load.workloads.quantiles import QuantileTable
from disagg_load.workloads.streams import Stream

TABLE = QuantileTable(((0, 10), (50, 20), (100, 100)))


def statistics(spec: str) -> WorkloadStatistics:
    """Over many requests, so that the figures of the distribution and not of the sample are seen."""
    return builtin_columns(spec, seed=7).statistics()


def test_quantile_table() -> None:
    assert TABLE.at(np.array([0.0, 25, 50, 75, 100])).tolist() == [10, 15, 20, 60, 100]
    assert TABLE.mean() == pytest.approx(0.5 * 15 + 0.5 * 60)


@pytest.mark.parametrize("points", [((0, 1),), ((0, 1), (99, 2)), ((0, 2), (100, 1)), ((0, 1), (0, 2), (100, 3))])
def test_a_quantile_table_must_be_one(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="points"):
        QuantileTable(points)


@pytest.mark.parametrize(
    ("process", "cv"),
    [
        (ClockArrivals(4.0), 0.0),
        (PoissonArrivals(4.0), 1.0),
        (GammaArrivals(4.0, 0.5), 0.5),
        (GammaArrivals(4.0, 3.0), 3.0),
        (EmpiricalArrivals(4.0, QuantileTable(((0, 0), (100, 1)))), 1 / sqrt(3)),
        (TickedArrivals(4.0, 3.0), sqrt(12 - 1)),
    ],
)
def test_arrivals_have_their_rate_and_burstiness(process: Arrivals, cv: float) -> None:
    times = draw(process, FixedLengths(1), FixedLengths(1), requests=60_000, seed=3).arrival_seconds
    gaps = np.diff(np.array(times))
    assert times[0] == 0
    assert gaps.min() >= 0
    assert 1 / gaps.mean() == pytest.approx(process.rate, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03, abs=1e-9)


def test_lengths() -> None:
    uniforms = Stream("lengths").uniforms(50_000)
    nowhen = np.zeros(50_000)
    assert set(FixedLengths(755).tokens(uniforms, nowhen)) == {755}
    drawn = LognormalLengths(755, 0.4).tokens(uniforms, nowhen)
    assert drawn.mean() == pytest.approx(755, rel=0.01)
    assert np.median(drawn) == pytest.approx(755 * 2.718281828 ** (-0.08), rel=0.01)
    assert LognormalLengths(1, 3).tokens(uniforms, nowhen).min() == 1
    assert LognormalLengths(2, 1, least_tokens=2).tokens(uniforms, nowhen).min() == 2
    assert EmpiricalLengths(TABLE).tokens(uniforms, nowhen).mean() == pytest.approx(TABLE.mean(), rel=0.01)


def test_the_conversation_trace_has_its_published_statistics() -> None:
    found = statistics("azure-conv?requests=60000")
    assert found.requests_per_second == pytest.approx(5.5, rel=0.02)
    assert found.interarrival_cv == pytest.approx(1.1, rel=0.03)
    assert found.input_tokens_mean == pytest.approx(1155, rel=0.02)
    assert found.input_tokens_p50 == pytest.approx(1020, rel=0.02)
    assert found.input_tokens_p99 == pytest.approx(4142, rel=0.05)
    assert found.output_tokens_mean == pytest.approx(211, rel=0.02)
    assert found.output_tokens_p50 == pytest.approx(129, rel=0.02)
    assert found.output_tokens_p99 == pytest.approx(601, rel=0.05)


def test_the_code_trace_has_its_published_statistics() -> None:
    found = statistics("azure-code?requests=400000")
    assert found.requests_per_second == pytest.approx(2.6, rel=0.1)
    assert found.interarrival_cv == pytest.approx(13, rel=0.1)
    assert found.input_tokens_mean == pytest.approx(2048, rel=0.02)
    assert found.input_tokens_p50 == pytest.approx(1469, rel=0.03)
    assert found.input_tokens_p99 == pytest.approx(7436, rel=0.02)
    assert found.output_tokens_mean == pytest.approx(28, rel=0.05)
    assert found.output_tokens_p50 == 13
    assert found.output_tokens_p99 == pytest.approx(251, rel=0.06)


def test_the_mooncake_trace_has_its_published_statistics() -> None:
    found = statistics("mooncake?requests=12000")
    assert found.requests_per_second == pytest.approx(3.4, rel=0.03)
    assert found.interarrival_cv == pytest.approx(3.0, rel=0.05)
    assert found.input_tokens_mean == pytest.approx(12035, rel=0.05)
    assert found.input_tokens_p50 == pytest.approx(6909, rel=0.05)
    assert found.input_tokens_p99 == pytest.approx(85400, rel=0.05)
    assert found.output_tokens_mean == pytest.approx(343, rel=0.03)
    assert found.output_tokens_p50 == pytest.approx(350, rel=0.03)
    assert found.infinite_cache_hit_rate == pytest.approx(0.366, abs=0.03)


@pytest.mark.parametrize(
    ("name", "lengths"), [("chat", (755, 200)), ("code", (171, 98)), ("summarisation", (1738, 91))]
)
def test_the_applications_have_their_published_mean_lengths(name: str, lengths: tuple[int, int]) -> None:
    found = statistics(f"{name}?requests=40000")
    assert (found.input_tokens_mean, found.output_tokens_mean) == pytest.approx(lengths, rel=0.01)
    fixed = builtin_workload(f"builtin:{name}?lengths=fixed", seed=1)
    assert {(request.input_tokens, request.output_tokens) for request in fixed.requests} == {lengths}


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_sm6_the_same_seed_gives_the_same_bytes_in_every_process(name: str) -> None:
    code = (
        "import hashlib; from disagg_load.workloads.builtin import builtin_workload as b; from disagg_load.traces.own "
        f"import write; print(hashlib.sha256(''.join(write(b('{name}?seconds=20', seed=5))).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1
    assert "".join(write(builtin_workload(name, seed=5))) != "".join(write(builtin_workload(name, seed=6)))


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_columns_and_objects_are_the_same_requests(name: str) -> None:
    columns = builtin_columns(name, seed=4)
    workload = builtin_workload(name, seed=4)
    assert columns.workload() == workload
    again = Columns.of(workload)
    assert again.arrival_seconds == columns.arrival_seconds
    assert again.input_tokens == columns.input_tokens
    assert again.output_tokens == columns.output_tokens
    assert again.hash_ids == columns.hash_ids
    assert columns.statistics() == describe(workload.requests)


def test_the_rate_changes_no_lengths() -> None:
    slow = builtin_workload("chat?rate=1&requests=50", seed=2).requests
    fast = builtin_workload("chat?rate=100&requests=50", seed=2).requests
    assert [(r.input_tokens, r.output_tokens) for r in slow] == [(r.input_tokens, r.output_tokens) for r in fast]
    assert fast[-1].arrival_seconds == pytest.approx(slow[-1].arrival_seconds / 100, rel=1e-3)


def test_seconds_requests_and_limit_bound_the_load() -> None:
    assert builtin_workload("chat?rate=10&seconds=5", seed=1).requests[-1].arrival_seconds < 5
    assert len(builtin_workload("chat?requests=17", seed=1).requests) == 17
    limited = builtin_workload("chat?requests=17", seed=1, limit=5)
    assert limited.requests == builtin_workload("chat?requests=17", seed=1).first(5).requests


def test_options_replace_what_a_trace_would_say() -> None:
    found = statistics("azure-conv?requests=5000&input=100&output=50&lengths=lognormal:0.2&cv=2&rate=50")
    assert found.input_tokens_mean == pytest.approx(100, rel=0.02)
    assert found.output_tokens_mean == pytest.approx(50, rel=0.02)
    assert found.requests_per_second == pytest.approx(50, rel=0.1)
    assert found.interarrival_cv == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("builtin:chta", "did you mean chat? known are chat, code"),
        ("builtin:", "no built-in load is called ''"),
        ("chat?colour=red", "unknown option 'colour' in 'chat?colour=red'; known are rate, seconds"),
        ("chat?rate", "is not a list of options like"),
        ("chat?rate=", "rate is '', a number is needed"),
        ("chat?rate=fast", "rate is 'fast'"),
        ("chat?rate=0", "rate is 0, a number above 0"),
        ("chat?rate=-1", "rate is -1, a number above 0"),
        ("chat?rate=nan", "rate is nan, a number above 0"),
        ("chat?seconds=inf", "seconds is inf, a number above 0"),
        ("chat?requests=1.5", "requests is 1.5, a whole number"),
        ("chat?requests=5&seconds=5", "both seconds and requests"),
        ("chat?lengths=long", "lengths is 'long'; known are fixed"),
        ("chat?lengths=fixed:3", "lengths is 'fixed:3'"),
        ("chat?lengths=lognormal:x", "the sigma of lengths is 'x'"),
        ("chat?lengths=lognormal:9", "a lognormal sigma of 9.0"),
        ("chat?input=0.2", "a mean length of 0.2 tokens"),
        ("chat?input=0.2&lengths=fixed", "a length of 0 tokens"),
    ],
)
def test_wrong_loads_are_named(spec: str, problem: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_load(spec)
    assert problem in str(caught.value)
