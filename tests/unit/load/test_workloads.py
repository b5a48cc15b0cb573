"""Generators: their statistics, their seeds, and the sentences about wrong options."""

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_load.requests import WorkloadStatistics, describe
from disagg_load.traces.columns import read_columns
from disagg_load.workloads.arrivals import (
    Arrivals,
    ClockArrivals,
    EmpiricalArrivals,
    GammaArrivals,
    PoissonArrivals,
    TickedArrivals,
)
from disagg_load.workloads.builtin import OPTIONS, RECIPES, builtin_columns, builtin_workload, parse_load
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
    found = statistics("mooncake?requests=12031")
    assert found.requests_per_second == pytest.approx(3.4, rel=0.03)
    assert found.interarrival_cv == pytest.approx(3.0, rel=0.05)
    assert found.input_tokens_mean == pytest.approx(12035, rel=0.05)
    assert found.input_tokens_p50 == pytest.approx(6909, rel=0.05)
    assert found.input_tokens_p99 == pytest.approx(85400, rel=0.05)
    assert found.output_tokens_mean == pytest.approx(343, rel=0.03)
    assert found.output_tokens_p50 == pytest.approx(350, rel=0.03)
    assert found.infinite_cache_hit_rate == pytest.approx(0.366, abs=0.015)


def lru_hit_rate(prompts: Sequence[Sequence[int]], capacity_blocks: int) -> float:
    """The share of blocks that a cache of that size finds, which forgets what was used longest ago."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = blocks = 0
    for ids in prompts:
        hits += next((place for place, block in enumerate(ids) if block not in cache), len(ids))
        blocks += len(ids)
        for block in ids:
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity_blocks:
            cache.popitem(last=False)
    return hits / blocks


MOONCAKE_LRU = {1_000: 0.044, 10_000: 0.211, 30_000: 0.326}


def test_the_mooncake_trace_is_as_hard_to_cache_as_the_real_one(data: Path | None) -> None:
    """What caches of limited size find: of the built-in load, and with DISAGG_DATA of the real trace."""
    loads = {0.03: builtin_columns("mooncake?requests=12031", seed=7)}
    if data is not None:
        text = (data / "traces" / "mooncake_conversation_trace.jsonl").read_bytes()
        loads[0.0006] = read_columns(text, source="trace")
    for tolerance, load in loads.items():
        assert load.hash_ids is not None
        for capacity, rate in MOONCAKE_LRU.items():
            assert lru_hit_rate(load.hash_ids, capacity) == pytest.approx(rate, abs=tolerance)


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
    one, other = (builtin_columns(f"{name}?seconds=60", seed=seed).arrival_seconds for seed in (5, 6))
    assert one != other


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_columns_and_objects_are_the_same_requests(name: str) -> None:
    columns = builtin_columns(f"{name}?seconds=60", seed=4)
    workload = builtin_workload(f"{name}?seconds=60", seed=4)
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


@pytest.mark.parametrize("process", [PoissonArrivals, lambda rate: GammaArrivals(rate, 3.0), ClockArrivals])
def test_a_load_at_another_rate_is_the_same_load_stretched(process: Callable[[float], Arrivals]) -> None:
    lengths = LognormalLengths(100, 0.4)
    unit = draw(process(1.0), lengths, lengths, requests=5000, seed=8)
    fast = draw(process(3.7), lengths, lengths, requests=5000, seed=8)
    stretched = unit.at_rate(3.7)
    assert stretched.arrival_seconds == fast.arrival_seconds
    assert stretched.input_tokens == fast.input_tokens
    assert stretched.output_tokens == fast.output_tokens


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_longer_load_begins_like_a_shorter_one(name: str) -> None:
    long = builtin_columns(f"{name}?requests=3000", seed=8).first(1100)
    short = builtin_columns(f"{name}?requests=1100", seed=8)
    assert long.arrival_seconds == short.arrival_seconds
    assert long.input_tokens == short.input_tokens
    assert long.output_tokens == short.output_tokens
    assert long.hash_ids == short.hash_ids


@pytest.mark.parametrize("bounds", [{}, {"requests": 0}, {"seconds": 0}, {"seconds": float("nan")}])
def test_a_load_needs_a_bound(bounds: dict[str, float]) -> None:
    with pytest.raises(WorkloadError, match="needed"):
        draw(PoissonArrivals(1), FixedLengths(1), FixedLengths(1), seed=1, **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: PoissonArrivals(0), "a rate of 0"),
        (lambda: ClockArrivals(float("nan")), "a rate of nan"),
        (lambda: GammaArrivals(1, 0), "an inter-arrival CV of 0"),
        (lambda: TickedArrivals(1, -1), "a tick of -1"),
        (lambda: FixedLengths(2**31), "a length of 2147483648 tokens"),
        (lambda: LognormalLengths(9, 0.4, least_tokens=0), "lengths of at least 0 tokens"),
    ],
)
def test_distributions_that_are_none_are_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        make()


def test_slices_and_rates_of_columns() -> None:
    load = builtin_columns("sessions?requests=500&rate=10", seed=3)
    assert load.hash_ids is not None
    middle = load.between(10, 20)
    start = next(place for place, time in enumerate(load.arrival_seconds) if time >= 10)
    assert middle.arrival_seconds[0] == 0
    assert list(middle.arrival_seconds) == [
        time - load.arrival_seconds[start] for time in load.arrival_seconds if 10 <= time < 20
    ]
    assert middle.hash_ids == load.hash_ids[start : start + len(middle)]
    assert middle.sessions == load.sessions[start : start + len(middle)]  # type: ignore[index]
    assert len(load.first(7)) == 7
    assert len(load.first(9999)) == 500
    assert load.at_rate(2).span_seconds == load.span_seconds / 2
    with pytest.raises(WorkloadError, match=r"no request of builtin:sessions.* arrives from 900 to 950 s; the last"):
        load.between(900, 950)
    with pytest.raises(WorkloadError, match="a rate factor of 0"):
        load.at_rate(0)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_says_which_loads_have_it(option: str) -> None:
    for name in RECIPES:
        try:
            parse_load(f"{name}?{option}=")
            refused = False
        except WorkloadError as error:
            refused = "does not apply" in str(error)
        where = OPTIONS[option].rpartition("(")[2]
        listed = name in where.removeprefix("not ").removesuffix(")").removesuffix(" only").split(", ")
        if OPTIONS[option].endswith(" only)"):
            assert refused is not listed
        elif "(not " in OPTIONS[option]:
            assert refused is listed
        else:
            assert not refused


def test_sm6_the_loads_of_a_seed_are_these() -> None:
    """Pinned: they are the same on every machine, and change only where a load is meant to."""
    digest = sha256()
    for name in RECIPES:
        load = builtin_columns(f"{name}?requests=2000", seed=5)
        for column in (load.arrival_seconds, load.input_tokens, load.output_tokens):
            digest.update(np.array(column).astype("<f8").tobytes())
        digest.update(repr(load.hash_ids).encode())
    assert digest.hexdigest()[:16] == "1fa50cfb924573dd"


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
        ("chat?cv=2&burst=2:1:2", "both cv and burst"),
        ("sessions?sessions=5&think=5", "both sessions and think"),
        ("six-hours?cv=2", "cv in 'six-hours?cv=2' does not apply to six-hours, whose options are rate"),
        ("mooncake?noise=0.1", "noise in 'mooncake?noise=0.1' does not apply to mooncake"),
        ("chat?apps=2", "apps in 'chat?apps=2' does not apply to chat"),
        ("sessions?apps=0", "apps is 0, a number above 0"),
        ("sessions?turns=0.5", "a mean of 0.5 turns"),
        ("sessions?block=1.5", "block is 1.5, a whole number"),
        ("sessions?longest=2048", "longest_tokens is 2048, more than the 2048 tokens"),
        ("chat?cycle=2:3h", "a cycle's amplitude of 2 was asked for, a number from 0 to 1"),
        ("chat?cycle=0.5", "cycle is '0.5', AMPLITUDE:PERIOD"),
        ("chat?cycle=a:3h", "cycle has 'a' where a number"),
        ("chat?cycle=0.5:3 hours", "cycle has '3 hours' where a time"),
        ("chat?cycle=0.5:nan", "a cycle's period of nan was asked for"),
        ("chat?burst=2:10", "burst is '2:10', FACTOR:START:END or"),
        ("chat?burst=-2:10:20", "a factor on the rate of -2 was asked for"),
        ("chat?burst=2:20:10", "it must end after it starts"),
        ("chat?burst=2:10:20:6", "both ramps must fit in"),
        ("chat?ramp=2:20:20", "a ramp from 20 to 20 s"),
        ("chat?steps=10m", "steps is '10m', START:FACTOR"),
        ("chat?steps=10m:2,5m:1", "ascending ones are needed"),
        ("chat?noise=2", "noise with a sigma of 2 was asked for"),
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
