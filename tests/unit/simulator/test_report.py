"""From recordings written by hand to the figures of a result."""

import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_load.report import Distribution, Slo
from disagg_simulator.deployment import Deployment, Group, Ledger, Link, Mode
from disagg_simulator.recording import Gaps, InstanceRecord, Outcome, Recording
from disagg_simulator.report import SCHEMA, Result, build_result
from disagg_simulator.statistics import distribution, share_interval, weighted_distribution, wilson

NAN = float("nan")
SLO = Slo(ttft_seconds=0.5, tpot_seconds=0.1)


def group(role: Role, replicas: int = 1, gpu: str = "a100-80gb") -> Group:
    instance = Instance(model=default().model("opt-13b"), gpu=default().gpu(gpu))
    return Group(
        instance=instance, time_model=Roofline(instance), batching=BatchingConfig(role=role), replicas=replicas
    )


COLOCATED = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER),))
PAIR = Deployment(
    mode=Mode.DISAGGREGATED,
    prefill=(group(Role.PREFILL, 2),),
    decode=(group(Role.DECODE),),
    link=Link(bytes_per_second=300e9),
)

Row = tuple[float, float, float, float, float, int, Outcome]
"""arrival, prefill start, prefill end, first token, finish, tokens, outcome."""


def recording(
    rows: Sequence[Row], deployment: Deployment = COLOCATED, *, end_seconds: float | None = None
) -> Recording:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    requests = Columns(
        name="by hand",
        arrival_seconds=array("d", columns[0]),
        input_tokens=array("i", [100] * len(rows)),
        output_tokens=array("i", [10] * len(rows)),
    )
    made = Recording.empty(deployment, requests, seed=7)
    made.prefill_start = array("d", columns[1])
    made.prefill_end = array("d", columns[2])
    made.first_token = array("d", columns[3])
    made.finish = array("d", columns[4])
    made.tokens = array("i", columns[5])
    made.outcome = bytearray(columns[6])
    ends = [time for time in columns[4] if not isnan(time)]
    made.end_seconds = max(ends, default=0.0) if end_seconds is None else end_seconds
    return made


DONE = Outcome.COMPLETED
TWO: list[Row] = [
    (0.0, 0.1, 0.3, 0.35, 1.25, 10, DONE),
    (1.0, 1.2, 1.8, 1.8, 2.0, 2, DONE),
]


def test_a_request_is_split_on_one_clock() -> None:
    result = build_result(recording(TWO, PAIR), SLO)
    assert result.ttft_seconds is not None
    assert result.ttft_parts_seconds is not None
    assert result.ttft_seconds.mean == pytest.approx((0.35 + 0.8) / 2)
    assert result.ttft_parts_seconds.queueing.mean == pytest.approx((0.1 + 0.2) / 2)
    assert result.ttft_parts_seconds.prefill.mean == pytest.approx((0.2 + 0.6) / 2)
    assert result.ttft_parts_seconds.transfer.mean == pytest.approx(0.05 / 2)
    assert result.tpot_seconds is not None
    assert result.tpot_seconds.max == pytest.approx(0.2)
    assert result.tpot_seconds.mean == pytest.approx((0.1 + 0.2) / 2)
    assert result.e2e_seconds is not None
    assert result.e2e_seconds.max == 1.25


def test_counts_and_rates() -> None:
    result = build_result(recording(TWO, PAIR), Slo(ttft_seconds=0.5, tpot_seconds=0.11))
    assert (result.requests, result.completed, result.gpus) == (2, 2, 3)
    assert result.duration_seconds == 2.0
    assert result.throughput_requests_per_second == 1.0
    assert result.throughput_tokens_per_second == 6.0
    assert result.attainment is not None
    assert (result.attainment.ttft, result.attainment.tpot, result.attainment.both) == (0.5, 0.5, 0.5)
    assert result.good_requests_per_second == 0.5
    shown = result.to_json()
    assert shown["good_requests_per_second_per_gpu"] == pytest.approx(0.5 / 3)


def test_whoever_got_no_answer_missed_everything() -> None:
    lost = [
        (0.1, NAN, NAN, NAN, NAN, 0, Outcome.REFUSED),
        (0.2, 0.2, 0.3, 0.3, NAN, 4, Outcome.FAILED),
        (0.3, 0.3, 0.4, 0.4, NAN, 4, Outcome.UNFINISHED),
    ]
    rows: list[Row] = [(0.0, 0.0, 0.1, 0.1, 0.5, 5, DONE), *lost]
    result = build_result(recording(rows, end_seconds=10.0), Slo(ttft_seconds=100.0, tpot_seconds=100.0))
    assert (result.completed, result.refused, result.failed, result.unfinished) == (1, 1, 1, 1)
    assert result.attainment is not None
    assert result.attainment == replace(result.attainment, ttft=0.25, tpot=0.25, both=0.25)
    assert result.ttft_seconds is not None
    assert result.ttft_seconds.max == pytest.approx(0.1)
    assert result.duration_seconds == 10.0


def test_an_answer_of_one_token_has_no_tpot_and_meets_it() -> None:
    result = build_result(recording([(0.0, 0.0, 0.1, 0.1, 0.1, 1, DONE)]), SLO)
    assert result.tpot_seconds is None
    assert result.attainment is not None
    assert result.attainment.both == 1.0


def test_an_objective_is_met_exactly_at_it() -> None:
    result = build_result(recording([(0.0, 0.0, 0.5, 0.5, 0.75, 3, DONE)]), Slo(ttft_seconds=0.5, tpot_seconds=0.125))
    assert result.attainment is not None
    assert result.attainment.both == 1.0


def test_requests_after_the_end_of_the_run_were_never_there() -> None:
    rows: list[Row] = [*TWO, (50.0, NAN, NAN, NAN, NAN, 0, Outcome.UNFINISHED)]
    assert build_result(recording(rows, end_seconds=10.0), SLO).requests == 2


def test_whoever_arrived_in_the_very_moment_of_the_end_was_there() -> None:
    """A fleet that was lost ends a run with the last arrival."""
    rows: list[Row] = [*TWO, (10.0, NAN, NAN, NAN, NAN, 0, Outcome.UNFINISHED)]
    result = build_result(recording(rows, end_seconds=10.0), SLO)
    assert (result.requests, result.unfinished) == (3, 1)


def test_requests_longer_than_the_context_are_counted_and_served() -> None:
    """OPT-13B knows 2,048 positions: 2,000 + 48 tokens are the longest request."""
    made = recording(TWO)
    made.requests.input_tokens[0], made.requests.output_tokens[0] = 2000, 48
    assert build_result(made, SLO).requests_over_context == 0
    made.requests.output_tokens[0] = 49
    shown = build_result(made, SLO).to_json()
    assert (shown["requests_over_context"], shown["completed"], shown["refused"]) == (1, 2, 0)


def test_an_empty_run_has_no_figures_and_no_nan() -> None:
    shown = build_result(recording([]), SLO).to_json()
    assert shown["attainment"] is None
    assert shown["throughput_requests_per_second"] is None
    assert shown["ttft_seconds"] is None
    json.dumps(shown, allow_nan=False)


def test_only_unfinished_requests_leave_no_latency() -> None:
    rows: list[Row] = [(0.0, NAN, NAN, NAN, NAN, 0, Outcome.UNFINISHED)]
    result = build_result(recording(rows, end_seconds=3.0), SLO)
    assert result.ttft_seconds is None
    assert result.attainment is not None
    assert result.attainment.both == 0.0
    json.dumps(result.to_json(), allow_nan=False)


def overloaded(count: int) -> list[Row]:
    """Two requests a second to a server of one a second; the time per token stays as it is."""
    rows: list[Row] = []
    for number in range(count):
        start = float(number)
        rows.append((number / 2, start, start + 0.5, start + 0.5, start + 1.0, 6, DONE))
    return rows


@pytest.mark.parametrize("count", [100, 1000])
def test_beyond_capacity_no_figure_depends_on_the_length_of_the_run(count: int) -> None:
    result = build_result(recording(overloaded(count)), SLO)
    assert result.stability.stable is False
    assert result.stability.load == pytest.approx(2.0, rel=0.02)
    assert result.ttft_seconds is None
    assert result.ttft_parts_seconds is None
    assert result.e2e_seconds is None
    assert result.tpot_seconds is not None
    assert result.tpot_seconds.mean == pytest.approx(0.1)
    assert result.throughput_requests_per_second == pytest.approx(1.0, rel=0.02)
    shown = result.to_json()
    assert shown["stable"] is False
    assert shown["stability"]["capacity_requests_per_second"] == pytest.approx(1.0, rel=0.02)


def test_times_between_tokens_are_weighed() -> None:
    made = recording(TWO)
    made.gaps = Gaps()
    made.gaps.add(0.02, 97)
    made.gaps.add(1.0, 3)
    tbt = build_result(made, SLO).tbt_seconds
    assert tbt is not None
    assert (tbt.p50, tbt.p90, tbt.p99, tbt.max) == (0.02, 0.02, 1.0, 1.0)
    assert tbt.mean == pytest.approx(0.97 * 0.02 + 0.03)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5)), min_size=1, max_size=30))
def test_weighted_percentiles_are_those_of_the_long_list(pairs: list[tuple[float, int]]) -> None:
    values = np.array([value for value, _ in pairs])
    counts = np.array([count for _, count in pairs], dtype=np.int64)
    found = weighted_distribution(values, counts)
    long = np.repeat(values, counts)
    if not long.size:
        assert found is None
        return
    assert found is not None
    expected = np.percentile(long, (50, 90, 99), method="inverted_cdf")
    assert [found.p50, found.p90, found.p99] == pytest.approx(expected.tolist())
    assert found.mean == pytest.approx(float(long.mean()))


@given(st.lists(st.tuples(*[st.floats(0, 10)] * 5), min_size=1, max_size=40))
def test_sm8_parts_sum_to_the_whole_and_the_mean_is_that_of_the_list(steps: list[tuple[float, ...]]) -> None:
    rows: list[Row] = []
    now = 0.0
    for gap, queueing, prefill, transfer, decode in steps:
        now += gap
        first = now + queueing + prefill + transfer
        rows.append((now, now + queueing, now + queueing + prefill, first, first + decode, 3, DONE))
    result = build_result(recording(rows, PAIR), SLO)
    if result.stability.unstable:
        return
    assert result.ttft_seconds is not None
    assert result.ttft_parts_seconds is not None
    parts = result.ttft_parts_seconds
    whole = parts.queueing.mean + parts.prefill.mean + parts.transfer.mean
    assert whole == pytest.approx(result.ttft_seconds.mean, abs=1e-9)
    assert result.ttft_seconds.mean == pytest.approx(np.mean([row[3] - row[0] for row in rows]), abs=1e-9)


ROW = st.tuples(st.floats(0, 5), *[st.floats(0, 3)] * 4, st.integers(1, 9), st.sampled_from(list(Outcome)))


@given(st.lists(ROW, max_size=60), st.floats(0, 200))
@example([(0.0, 0.0, 0.0, 0.0, 0.0, 1, Outcome.UNFINISHED)], 5e-324)
@example([(gap, 0.0, 0.0, 0.0, 0.0, 1, Outcome.UNFINISHED) for gap in (0.0, 5e-324)], 5e-324)
def test_whatever_happened_the_result_adds_up_and_has_no_nan(steps: list[tuple[Any, ...]], end: float) -> None:
    rows: list[Row] = []
    now = 0.0
    for gap, queueing, prefill, transfer, decode, tokens, outcome in steps:
        now += gap
        start = now + queueing
        first = start + prefill + transfer
        done = outcome is Outcome.COMPLETED
        seen = outcome is not Outcome.REFUSED
        rows.append(
            (
                now,
                start if seen else NAN,
                start + prefill if seen else NAN,
                first if seen else NAN,
                first + decode if done else NAN,
                tokens if seen else 0,
                outcome,
            )
        )
    ends = [row[4] for row in rows if row[6] is Outcome.COMPLETED]
    result = build_result(recording(rows, PAIR, end_seconds=max([end, now, *ends])), SLO)
    shown = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert shown["requests"] == shown["completed"] + shown["refused"] + shown["failed"] + shown["unfinished"]
    if result.attainment is not None:
        assert 0 <= result.attainment.both <= min(result.attainment.ttft, result.attainment.tpot) <= 1
        assert result.good_requests == pytest.approx(result.attainment.both * result.requests)
        low, high = result.attainment_interval or (1, 0)
        assert low <= result.attainment.both <= high


def with_instance(**facts: object) -> Result:
    made = recording([(0.0, 0.0, 0.5, 0.5, 10.0, 20, DONE)])
    instance = InstanceRecord(name="worker-0", role=Role.WORKER, gpus=1, capacity_tokens=1000)
    for name, value in facts.items():
        setattr(instance, name, value)
    made.instances = [instance]
    return build_result(made, SLO)


def test_utilisation_is_over_the_life_of_the_instance() -> None:
    assert with_instance(busy_seconds=4.0).usage[0].utilisation == pytest.approx(0.4)
    late = with_instance(busy_seconds=4.0, started_seconds=2.0, stopped_seconds=7.0)
    assert late.usage[0].utilisation == pytest.approx(0.8)


def test_occupancy_is_weighed_by_time() -> None:
    result = with_instance(
        series_seconds=array("d", [0.0, 2.0, 2.0, 6.0]), series_kv_tokens=array("q", [500, 1000, 250, 0])
    )
    occupancy = result.usage[0].kv_occupancy
    assert occupancy is not None
    assert occupancy.mean == pytest.approx((2 * 0.5 + 4 * 0.25) / 10)
    assert occupancy.max == pytest.approx(0.5)
    assert occupancy.shares[0] == pytest.approx(0.5)
    assert occupancy.shares[-1] == 0.0
    assert len(occupancy.shares) * occupancy.interval_seconds == pytest.approx(10.0)


def test_without_series_occupancy_is_unknown() -> None:
    assert with_instance().usage[0].kv_occupancy is None


def test_prefix_hits_and_preemptions() -> None:
    made = recording([(0.0, 0.0, 0.5, 0.5, 10.0, 20, DONE)])
    record = InstanceRecord(name="worker-0", role=Role.WORKER, gpus=1, capacity_tokens=1000)
    record.prefix_queried_tokens, record.prefix_hit_tokens, record.prompt_tokens, record.preemptions = 200, 50, 150, 3
    made.instances = [record]
    assert build_result(made, SLO).to_json()["prefix_hit_rate"] is None, "nothing is reused where tokens are counted"
    blocks = replace(group(Role.WORKER), ledger=Ledger.BLOCKS, block_tokens=16)
    made.deployment = Deployment(mode=Mode.COLOCATED, workers=(blocks,))
    shown = build_result(made, SLO).to_json()
    assert shown["prefix_hit_rate"] == 0.25
    assert shown["preemptions"] == 3


def test_cost_and_energy_per_good_request() -> None:
    gpu = default().gpu("a100-80gb")
    assert gpu.dollars_per_hour is not None
    assert gpu.watts is not None
    shown = with_instance(busy_seconds=4.0).to_json()
    assert shown["cost_dollars_per_good_request"] is None  # nobody met the TPOT objective
    assert shown["cost_dollars"] == pytest.approx(gpu.dollars_per_hour * 10 / 3600)
    assert shown["energy_joules"] == pytest.approx(gpu.watts * (4 + 6 * gpu.idle_share))


def test_cost_is_unknown_where_a_price_is() -> None:
    made = recording(TWO)
    made.instances = [InstanceRecord(name="worker-0", role=Role.WORKER, gpus=1, capacity_tokens=1000)]
    instance = Instance(
        model=default().model("opt-13b"),
        gpu=replace(default().gpu("a100-80gb"), dollars_per_hour=None, watts=None),
    )
    made.deployment = Deployment(mode=Mode.COLOCATED, workers=(replace(group(Role.WORKER), instance=instance),))
    shown = build_result(made, SLO).to_json()
    assert shown["cost_dollars"] is None
    assert shown["energy_joules"] is None


def test_every_result_says_how_it_came_about() -> None:
    shown = build_result(recording(TWO, PAIR), SLO).to_json()
    assert shown["schema"] == SCHEMA == "disagg.dev/simulation/v1"
    assert shown["seed"] == 7
    assert shown["first_token"] == "prefill"
    assert shown["versions"]["disagg"]
    assert shown["workload"] == "by hand"
    assert shown["deployment"]["link"]["bytes_per_second"] == 300e9
    assert [group["role"] for group in shown["deployment"]["groups"]] == ["prefill", "decode"]


def test_the_contract_of_the_fields() -> None:
    shown = build_result(recording(TWO), SLO).to_json()
    for name in (
        "requests",
        "completed",
        "duration_seconds",
        "throughput_requests_per_second",
        "throughput_tokens_per_second",
        "good_requests_per_second",
        "gpus",
    ):
        assert isinstance(shown[name], int | float)
    for name in ("ttft_seconds", "tpot_seconds"):
        assert list(shown[name]) == ["mean", "p50", "p90", "p99", "max"]
    assert "tbt_seconds" in shown
    assert list(shown["attainment"]) == ["ttft", "tpot", "both"]


def test_distribution_of_nothing_is_none() -> None:
    assert distribution(np.array([])) is None
    assert distribution(np.array([2.0])) == Distribution(mean=2.0, p50=2.0, p90=2.0, p99=2.0, max=2.0)


def test_wilson_is_the_textbooks() -> None:
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(0.3, 0) == (0.0, 1.0)


def test_neighbours_that_depend_on_each_other_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    alone = rng.random(5000) < 0.9
    blocks = np.repeat(rng.random(100) < 0.9, 50)
    narrow, wide = share_interval(alone), share_interval(blocks)
    assert narrow[1] - narrow[0] < 0.025
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])
    assert wide[0] < 0.9 < wide[1]
