"""Overload, pressure on memory, and fairness."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from disagg_contract.config import Admission
from disagg_contract.labels import Role
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment, Link, Mode
from disagg_simulator.options import Options
from disagg_simulator.recording import Outcome


def test_sm8_after_a_preemption_the_figures_are_what_the_client_saw(group, columns):
    """Two requests outgrow the pool: the later one is thrown out, computed again, and its wait counts."""
    worker = group(Role.WORKER, steady=(0.5, 0.1), kv_capacity_tokens=230, admission=Admission.PREEMPT, watermark=0.0)
    deployment = Deployment(mode=Mode.COLOCATED, workers=(worker,))
    recording = simulate_cluster(deployment, columns([0.0, 0.0], 100, [30, 30]), seed=0)
    assert recording.instances[0].preemptions == 1
    # Both prompts fit one iteration: first tokens at 1.0. The pool is full when both hold 115 tokens, after 15 steps;
    # the first goes on alone for 14 more and ends at 3.9; the second is computed again until 4.4 and goes on.
    assert list(recording.first_token) == pytest.approx([1.0, 1.0])
    assert recording.finish[0] == pytest.approx(3.9)
    assert recording.finish[1] == pytest.approx(3.9 + 0.5 + 13 * 0.1)
    assert list(recording.tokens) == [30, 30]


def test_sm9_at_three_times_the_capacity_throughput_plateaus_and_the_queue_grows_evenly(group, columns):
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, kv_capacity_tokens=20_000),))
    rng = Random(1)
    outputs = [rng.randint(32, 96) for _ in range(2400)]
    saturated = simulate_cluster(deployment, columns([0.0] * 2400, 512, outputs), seed=0)
    ends = sorted(saturated.finish)
    capacity = 1800 / (ends[2100] - ends[300])
    arrivals = [number / (3 * capacity) for number in range(2400)]
    recording = simulate_cluster(
        deployment, columns(arrivals, 512, outputs), seed=0, options=Options(series=True, until_seconds=arrivals[-1])
    )
    end = recording.end_seconds
    ends = [finish for finish in recording.finish if finish == finish]
    throughput = [
        sum(low < finish <= high for finish in ends) / (high - low)
        for low, high in pairwise([end * share for share in (0.2, 0.4, 0.6, 0.8, 1.0)])
    ]
    assert throughput == pytest.approx([capacity] * 4, rel=0.05)
    series = recording.instances[0]

    def mean(values, low, high):
        return fmean(v for v, t in zip(values, series.series_seconds, strict=True) if low * end < t <= high * end)

    waiting = [mean(series.series_waiting, low, low + 0.1) for low in (0.2, 0.4, 0.6, 0.8)]
    growth = [later - earlier for earlier, later in pairwise(waiting)]
    assert growth == pytest.approx([0.2 * end * 2 * capacity] * 3, rel=0.1)
    running = [mean(series.series_running, low, low + 0.2) for low in (0.2, 0.4, 0.6, 0.8)]
    assert running == pytest.approx([fmean(running)] * 4, rel=0.05)


@pytest.mark.parametrize("burst", [1, 3])
def test_wb9_a_running_decode_waits_for_a_bounded_number_of_prompts(group, columns, burst):
    prompt, step = 0.5, 0.1
    deployment = Deployment(
        mode=Mode.COLOCATED, workers=(group(Role.WORKER, steady=(prompt, step), prefill_burst=burst),)
    )
    arrivals = [0.0] + [0.4 * number for number in range(60)]
    requests = columns(arrivals, [512] + [2048] * 60, [30] + [1] * 60)
    recording = simulate_cluster(deployment, requests, seed=0, options=Options(gaps=True))
    assert recording.gaps is not None
    assert max(recording.gaps.seconds) <= burst * prompt + step + 1e-9


def test_wb9_on_a_disaggregated_decode_instance_prompts_change_nothing(group, columns):
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.5, 0.1)),),
        decode=(group(Role.DECODE, steady=(0.5, 0.1)),),
    )
    arrivals = [0.0] + [0.4 * number for number in range(60)]
    requests = columns(arrivals, [512] + [2048] * 60, [30] + [1] * 60)
    recording = simulate_cluster(deployment, requests, seed=0, options=Options(gaps=True))
    assert recording.gaps is not None
    assert max(recording.gaps.seconds) == pytest.approx(0.1)


def test_kv7_a_tight_prefill_pool_and_a_slow_link_hold_prompts_back_instead_of_losing_kv(group, columns, instance):
    link = Link(bytes_per_second=512 * instance.model.kv_bytes_per_token / 2.0)  # 2 s a prompt
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.1, 0.1), kv_capacity_tokens=1100),),
        decode=(group(Role.DECODE, steady=(0.1, 0.1)),),
        link=link,
    )
    recording = simulate_cluster(deployment, columns([0.0] * 20, 512, 3), seed=0)
    assert set(recording.outcome) == {Outcome.COMPLETED}
    # Two prompts fit; from the third on each waits for the pull of the one two before it.
    starts = list(recording.prefill_start)
    assert starts[2:] == pytest.approx([0.1 + 2.0 * number for number in range(1, 19)])


def test_kv11_queueing_for_a_decode_window_is_no_failure(group, columns):
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.1, 0.1)),),
        decode=(group(Role.DECODE, steady=(0.1, 0.1), max_sequences=4),),
    )
    recording = simulate_cluster(deployment, columns([0.0] * 32, 512, 101), seed=0)
    assert set(recording.outcome) == {Outcome.COMPLETED}
    assert recording.end_seconds == pytest.approx(8 * 10.0, rel=0.02)
