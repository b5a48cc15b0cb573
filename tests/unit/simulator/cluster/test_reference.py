"""Rows 15, 16 and 17 of the reference at single rates; whole searches are tested with the goodput search.

All: prefill-first iterations of at most 2,048 prompt tokens, room for input and output reserved, first token by the
prefill, 3,000 requests and more, Poisson arrivals. Lengths are fixed unless said; lognormal ones are set by their mean.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import log
from random import Random

import pytest

from disagg_contract.config import BatchPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_simulator.deployment import Deployment, Group, Link, Mode
from disagg_simulator.options import Lane, Options
from disagg_simulator.recording import Outcome
from disagg_simulator.simulate import simulate

COUNT = 3000
SEEDS = (1, 2)


def deployment_of(model, *, tensor=1, **batching):
    instance = Instance(model=default().model(model), gpu=default().gpu("a100"), tensor=tensor)
    worker = Group(
        instance=instance, time_model=Roofline(instance), batching=BatchingConfig(role=Role.WORKER, **batching)
    )
    return Deployment(mode=Mode.COLOCATED, workers=(worker,))


PREFILL_FIRST = deployment_of("opt-13b")
CHUNKED = deployment_of("opt-13b", policy=BatchPolicy.CHUNKED)
CHUNKED_1024 = deployment_of("opt-13b", policy=BatchPolicy.CHUNKED, chunk_tokens=1024)
WORKER = PREFILL_FIRST.workers[0]
PAIR = Deployment(
    mode=Mode.DISAGGREGATED,
    prefill=(replace(WORKER, batching=BatchingConfig(role=Role.PREFILL), replicas=2),),
    decode=(replace(WORKER, batching=BatchingConfig(role=Role.DECODE)),),
    link=Link(bytes_per_second=300e9),
)


def attainment(recording, ttft_seconds, tpot_seconds):
    """Share of all requests that met both SLOs."""
    requests, good = recording.requests, 0
    for index in range(len(requests)):
        if recording.outcome[index] == Outcome.COMPLETED:
            first, steps = recording.first_token[index], recording.tokens[index] - 1
            tpot = (recording.finish[index] - first) / steps if steps else 0.0
            good += first - requests.arrival_seconds[index] <= ttft_seconds and tpot <= tpot_seconds
    return good / len(requests)


def p99_gap(recording):
    """The 99th percentile of the times between tokens."""
    gaps = sorted(zip(recording.gaps.seconds, recording.gaps.count, strict=True))
    left = 0.99 * sum(recording.gaps.count)
    for seconds, count in gaps:
        left -= count
        if left <= 0:
            return seconds
    raise AssertionError("no gaps")


@pytest.fixture
def chat(poisson):
    """`chat(rate, seed, sigma=0, inputs=755, outputs=200)`."""

    def make(rate, seed, *, sigma=0.0, inputs=755, outputs=200):
        requests = poisson(rate, COUNT, inputs, outputs, seed=seed)
        if not sigma:
            return requests
        rng = Random(seed + 100)

        def lengths(mean):
            mu = log(mean) - sigma * sigma / 2
            return array("i", [max(1, round(rng.lognormvariate(mu, sigma))) for _ in range(COUNT)])

        return replace(requests, input_tokens=lengths(inputs), output_tokens=lengths(outputs))

    return make


@pytest.mark.parametrize("seed", SEEDS)
def test_row_15_attainment_of_a_colocated_a100_falls_between_3_5_and_4_5(chat, seed):
    def at(rate):
        return attainment(simulate(PREFILL_FIRST, chat(rate, seed), seed=0), 0.25, 0.1)

    assert at(3.5) > 0.85
    assert at(4.0) < 0.6
    assert at(4.5) < 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_row_15_at_8_it_carries_4_1_a_second_and_hardly_any_in_time(chat, seed):
    recording = simulate(PREFILL_FIRST, chat(8.0, seed), seed=0)
    assert COUNT / recording.end_seconds == pytest.approx(4.1, rel=0.08)
    assert attainment(recording, 0.25, 0.1) < 0.03


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("deployment", "sigma", "low", "high"),
    [
        (PREFILL_FIRST, 0.0, 0.1266 * 0.97, 0.1266 * 1.03),
        (PREFILL_FIRST, 0.4, 0.140, 0.160),
        (CHUNKED, 0.0, 0.075 * 0.97, 0.075 * 1.03),
        (CHUNKED, 0.4, 0.075 * 0.97, 0.075 * 1.03),
        (PAIR, 0.0, 0.022, 0.026),
        (PAIR, 0.4, 0.022, 0.026),
    ],
)
def test_row_16_p99_time_between_tokens_at_1_5_a_second(chat, seed, deployment, sigma, low, high):
    recording = simulate(deployment, chat(1.5, seed, sigma=sigma), seed=0, options=Options(gaps=True))
    assert low <= p99_gap(recording) <= high


def test_row_16_every_lane_gives_the_same_gaps(chat):
    requests = chat(1.5, 1, sigma=0.4)
    few = replace(
        requests,
        arrival_seconds=requests.arrival_seconds[:150],
        input_tokens=requests.input_tokens[:150],
        output_tokens=requests.output_tokens[:150],
    )
    p99s = [
        p99_gap(simulate(CHUNKED, few, seed=0, options=Options(gaps=True, lane=lane)))
        for lane in (Lane.FAST, Lane.CLUSTER, Lane.STEPPER)
    ]
    assert p99s == pytest.approx([p99s[0]] * 3, abs=1e-9)


def test_row_17_chunks_of_512_lose_in_chat_and_tie_at_1024(chat):
    def at(deployment, rate):
        return attainment(simulate(deployment, chat(rate, 1), seed=0), 0.25, 0.1)

    assert at(PREFILL_FIRST, 3.2) >= 0.9
    assert at(CHUNKED_1024, 3.2) >= 0.9
    assert at(CHUNKED, 2.2) >= 0.9
    assert at(CHUNKED, 2.6) < 0.9
    assert at(PREFILL_FIRST, 3.6) < 0.9
    assert at(CHUNKED_1024, 3.6) < 0.9


def test_row_17_chunks_of_512_win_in_summarisation(chat):
    """OPT-66B on tp4, 15 s and 0.15 s: between 1.9 / 1.3 and 2.1 / 1.2 times the rate."""
    first = deployment_of("opt-66b", tensor=4)
    chunked = deployment_of("opt-66b", tensor=4, policy=BatchPolicy.CHUNKED)

    def at(deployment, rate):
        return attainment(simulate(deployment, chat(rate, 1, inputs=1738, outputs=91), seed=0), 15.0, 0.15)

    assert at(first, 1.2) >= 0.9
    assert at(first, 1.3) < 0.9
    assert at(chunked, 1.9) >= 0.9
    assert at(chunked, 2.1) < 0.9
