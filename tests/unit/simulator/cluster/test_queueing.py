"""The cluster against arithmetic: queueing theory, ratios of instances, and sums of steps."""

from __future__ import annotations

from dataclasses import replace
from math import log
from random import Random
from statistics import fmean

import pytest

from disagg_contract.config import BatchPolicy, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.timemodel import BatchShape, IterationCost
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment, Mode

SERVICE = 0.4
GAIN = 1.6


class Stages:
    """A prompt takes `seconds`; with stages another may start after its share of that."""

    def __init__(self, seconds, stages):
        self.seconds, self.stages = seconds, stages

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        return IterationCost(
            seconds=self.seconds,
            compute_seconds=self.seconds,
            memory_seconds=0.0,
            stage_seconds=self.seconds / self.stages,
            bound="compute",
        )

    def decode_window(self, sequences, context_tokens, steps, /):
        return None

    def decode_lines(self, sequences, /):
        return ()


def even_poisson(rate, count, seed):
    """Exponential gaps, one from each of `count` equally likely spans: the mean is exact, the order by chance."""
    rng = Random(seed)
    gaps = [-log(1.0 - (place + rng.random()) / count) / rate for place in range(count)]
    rng.shuffle(gaps)
    now, arrivals = 0.0, []
    for gap in gaps:
        now += gap
        arrivals.append(now)
    return arrivals


def mean_ttft(deployment, requests):
    recording = simulate_cluster(deployment, requests, seed=0)
    return fmean(
        first - arrival for first, arrival in zip(recording.first_token, requests.arrival_seconds, strict=True)
    )


@pytest.fixture
def queue(group, columns):
    """`queue(rate, seconds, stages)`: mean TTFT of a prefill instance that serves one prompt at a time."""

    def measure(rate, seconds, stages=1, *, count=12_000, seed=4):
        model = Stages(seconds, stages)
        one = replace(group(Role.PREFILL, pipeline=stages), time_model=model)
        deployment = Deployment(mode=Mode.PREFILL_ONLY, prefill=(one,))
        return mean_ttft(deployment, columns(even_poisson(rate, count, seed), 512, 1))

    return measure


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_row_10_one_instance_is_an_m_d_1_queue(queue, load):
    rate = load / SERVICE
    expected = SERVICE + rate * SERVICE**2 / (2 * (1 - rate * SERVICE))
    assert queue(rate, SERVICE) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("load", [0.4, 0.8])
def test_row_10_two_stages(queue, load):
    rate = load * 2 / SERVICE
    expected = SERVICE + rate * SERVICE**2 / (4 * (2 - rate * SERVICE))
    assert queue(rate, SERVICE, 2) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("load", [0.4, 0.8])
def test_row_10_tensor_parallel(queue, load):
    rate = load * GAIN / SERVICE
    expected = SERVICE / GAIN + rate * SERVICE**2 / (2 * GAIN * (GAIN - rate * SERVICE))
    assert queue(rate, SERVICE / GAIN) == pytest.approx(expected, rel=0.02)


def test_row_10_tensor_parallel_wins_below_the_crossing_and_stages_above(queue):
    below, above = 2.737 * 0.9, 2.737 * 1.1
    assert queue(below, SERVICE / GAIN, count=4000) < queue(below, SERVICE, 2, count=4000)
    assert queue(above, SERVICE / GAIN, count=4000) > queue(above, SERVICE, 2, count=4000)


class PerSequence:
    """Prompts and decode steps cost the same for each sequence that takes part."""

    def __init__(self, *, prompt_seconds, decode_seconds):
        self.prompt_seconds, self.decode_seconds = prompt_seconds, decode_seconds

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        seconds = len(batch.chunks) * self.prompt_seconds + batch.decode_sequences * self.decode_seconds
        return IterationCost(
            seconds=seconds, compute_seconds=seconds, memory_seconds=0.0, stage_seconds=seconds, bound="compute"
        )

    def decode_window(self, sequences, context_tokens, steps, /):
        return None

    def decode_lines(self, sequences, /):
        return ()


@pytest.mark.parametrize(
    ("prefill", "decode", "rates", "per_gpu"),
    [
        (5, 2, (6.0, 15.0), 30 / 7),
        (2, 1, (6.0, 15.0), 4.0),
        (3, 1, (6.0, 15.0), 3.75),
        (2, 1, (5.6, 10.0), 10 / 3),
    ],
)
def test_row_12_throughput_of_xpyd_is_that_of_the_narrower_role(group, columns, prefill, decode, rates, per_gpu):
    model = PerSequence(prompt_seconds=1 / rates[0], decode_seconds=1 / rates[1])
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(replace(group(Role.PREFILL, prefill), time_model=model),),
        decode=(replace(group(Role.DECODE, decode, max_sequences=4), time_model=model),),
        routing=RoutingPolicy.ROUND_ROBIN,
    )
    count = 3000
    recording = simulate_cluster(deployment, columns([0.0] * count, 512, 2), seed=0)
    ends = sorted(recording.finish)
    rate = (count // 2) / (ends[3 * count // 4] - ends[count // 4])
    assert rate / (prefill + decode) == pytest.approx(per_gpu, rel=0.005)


def test_row_28_a_request_takes_its_ttft_and_its_steps(group, columns):
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, steady=(0.2, 0.04)),))
    recording = simulate_cluster(deployment, columns([0.0], 512, 300), seed=0)
    assert recording.finish[0] == pytest.approx(12.16, abs=1e-9)


def test_row_28_a_twentieth_of_slow_steps_misses_a_mean_of_50_ms(group, columns):
    """A chunk of another prompt makes 15 of 300 steps last 0.3 s."""
    deployment = Deployment(
        mode=Mode.COLOCATED, workers=(group(Role.WORKER, steady=(0.26, 0.04), policy=BatchPolicy.CHUNKED),)
    )
    others = [1.0 + 0.5 * number for number in range(15)]
    recording = simulate_cluster(deployment, columns([0.0, *others], 128, [301] + [1] * 15), seed=0)
    tpot = (recording.finish[0] - recording.first_token[0]) / 300
    assert tpot == pytest.approx(0.053, abs=1e-9)
