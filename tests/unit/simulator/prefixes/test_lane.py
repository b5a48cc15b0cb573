"""The lane of instances that reuse prefixes against the cluster lane, which drives the pods' own loops and ledgers."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_load.errors import WorkloadError
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Ledger
from disagg_simulator.options import DEFAULTS, Fault, Lane, Options
from disagg_simulator.prefixes import applies, simulate_prefixes
from disagg_simulator.recording import Outcome

TIMES = ("prefill_start", "prefill_end", "first_token", "finish")
GAPS = Options(gaps=True)
COUNTS = ("iterations", "prompt_tokens", "output_tokens", "prefix_queried_tokens", "prefix_hit_tokens")


def assert_equal(ours, theirs):
    for name in ("outcome", "tokens", "prefill_instance", "decode_instance"):
        assert list(getattr(ours, name)) == list(getattr(theirs, name)), name
    for name in TIMES:
        assert list(getattr(ours, name)) == pytest.approx(list(getattr(theirs, name)), abs=1e-9, rel=0, nan_ok=True)
    for here, there in zip(ours.instances, theirs.instances, strict=True):
        assert [getattr(here, name) for name in COUNTS] == [getattr(there, name) for name in COUNTS]
        assert here.busy_seconds == pytest.approx(there.busy_seconds, abs=1e-9)
        assert (here.name, here.role, here.gpus, here.capacity_tokens) == (
            there.name,
            there.role,
            there.gpus,
            there.capacity_tokens,
        )
    assert ours.end_seconds == pytest.approx(theirs.end_seconds, abs=1e-9)
    if theirs.gaps is not None:
        assert every_gap(ours) == pytest.approx(every_gap(theirs), abs=1e-9, rel=0)


def every_gap(run):
    """Seconds, shortest first."""
    return sorted(
        seconds for seconds, count in zip(run.gaps.seconds, run.gaps.count, strict=True) for _ in range(count)
    )


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(["kv", "least-loaded", "round-robin"]),
    replicas=st.integers(1, 3),
    capacity=st.sampled_from([160, 256, 400, 2048]),
    parts=st.sampled_from([1, 2]),
    limit=st.sampled_from([32, 100, 2048]),
    sequences=st.sampled_from([2, 256]),
    gap=st.sampled_from([0.002, 0.02, 0.2]),
)
def test_it_equals_the_cluster(fleet, shared_prefixes, seed, policy, replicas, capacity, parts, limit, sequences, gap):
    requests = shared_prefixes(seed, 40, block_tokens=16, gap=gap)
    deployment = fleet(
        policy,
        replicas=replicas,
        kv_capacity_tokens=capacity,
        block_tokens=16 // parts,
        max_batched_tokens=limit,
        max_sequences=sequences,
    )
    assert applies(deployment, requests, DEFAULTS)
    assert_equal(simulate_prefixes(deployment, requests, seed=seed), simulate_cluster(deployment, requests, seed=seed))


@pytest.mark.parametrize("policy", ["kv", "least-loaded", "round-robin"])
def test_it_equals_the_stepper_over_long_answers(fleet, shared_prefixes, policy):
    requests = shared_prefixes(3, 120, block_tokens=512, blocks=24, outputs=400, gap=0.3)
    deployment = fleet(policy, kv_capacity_tokens=120_000, block_tokens=512)
    stepped = simulate_cluster(deployment, requests, seed=5, options=Options(lane=Lane.STEPPER))
    ours = simulate_prefixes(deployment, requests, seed=5)
    assert ours.gaps is None
    assert_equal(ours, stepped)
    assert sum(instance.prefix_hit_tokens for instance in ours.instances) > 0


def test_a_window_over_the_bend_of_the_roofline_is_cut_right(fleet, columns):
    # At batch 1 arithmetic overtakes memory at a context of 132,320 tokens.
    deployment = fleet("round-robin", replicas=1, kv_capacity_tokens=400_000, block_tokens=512)
    bends = deployment.workers[0].time_model.decode_lines(1)
    assert 131_500 < bends[0].until_tokens < 133_500
    for seconds in (25.0, 30.0, 35.0, 40.0, 45.0):
        requests = columns([(0.0, 131_000, 3000, []), (seconds, 50, 5, [])], 512)
        ours = simulate_prefixes(deployment, requests, seed=0, options=GAPS)
        assert ours.first_token[0] < seconds < ours.finish[0]
        stepped = simulate_cluster(deployment, requests, seed=0, options=Options(lane=Lane.STEPPER, gaps=True))
        assert_equal(ours, stepped)


def test_requests_larger_than_the_pool_are_refused(fleet, columns):
    requests = columns([(0.0, 100, 10, [1, 2, 3, 4, 5, 6, 7]), (0.0, 100, 29, [1, 2, 3, 4, 5, 6, 7])], 16)
    recording = simulate_prefixes(fleet("kv", replicas=1, kv_capacity_tokens=128), requests, seed=0)
    assert list(recording.outcome) == [Outcome.COMPLETED, Outcome.REFUSED]


def test_the_same_seed_gives_the_same_run(fleet, shared_prefixes):
    requests = shared_prefixes(1, 60)
    deployment = fleet("least-loaded", kv_capacity_tokens=2048)
    runs = [simulate_prefixes(deployment, requests, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].finish == runs[1].finish
    assert runs[0].prefill_instance != runs[2].prefill_instance, "ties are settled by the seed"


@pytest.mark.parametrize(
    "options",
    [
        Options(series=True),
        Options(concurrency=4),
        Options(until_seconds=1.0),
        Options(lane=Lane.STEPPER),
        Options(lane=Lane.CLUSTER),
        Options(faults=(Fault(at_seconds=1.0, role="worker"),)),
    ],
)
def test_other_runs_are_left_to_the_cluster(fleet, shared_prefixes, options):
    requests = shared_prefixes(1, 5)
    assert applies(fleet("kv"), requests, DEFAULTS)
    assert applies(fleet("kv"), requests, Options(lane=Lane.FAST))
    assert applies(fleet("kv"), requests, GAPS)
    assert not applies(fleet("kv"), requests, options)


def test_other_instances_are_left_to_the_cluster(fleet, shared_prefixes):
    requests = shared_prefixes(1, 5)
    for other in (
        fleet("kv", ledger=Ledger.COUNTING),
        fleet("kv", policy="chunked"),
        fleet("kv", admission="preempt"),
        fleet("kv", prefill_burst=8),
        fleet("kv", pipeline=2),
    ):
        assert not applies(other, requests, DEFAULTS)
    assert not applies(fleet("kv"), replace(requests, priorities=array("i", range(5))), DEFAULTS)


@pytest.mark.parametrize(
    "times", [[0.0, 2.0, 1.0], [0.0, float("nan"), 1.0], [float("nan")], [0.0, float("inf")], [-1.0]]
)
def test_arrivals_that_do_not_ascend_are_named(fleet, columns, times):
    requests = columns([(time, 10, 5, [1]) for time in times], 16)
    with pytest.raises(WorkloadError, match="arrivals must be numbers that ascend"):
        simulate_prefixes(fleet("kv"), requests, seed=0)


@pytest.mark.parametrize(("tokens", "name"), [((0, 5), "input_tokens 0"), ((5, -1), "output_tokens -1")])
def test_a_request_without_tokens_is_named(fleet, columns, tokens, name):
    with pytest.raises(WorkloadError, match=f"request 1 has {name}"):
        simulate_prefixes(fleet("kv"), columns([(0.0, 5, 5, []), (0.0, *tokens, [])], 16), seed=0)


def test_a_run_without_requests_is_empty(fleet, columns):
    run = simulate_prefixes(fleet("kv"), columns([], 16), seed=0)
    assert (len(run.finish), run.end_seconds) == (0, 0.0)
