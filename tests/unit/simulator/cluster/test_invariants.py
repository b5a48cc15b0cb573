"""What holds for every deployment, load and fault: requests are conserved, parts add up, lanes agree."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from array import array
from dataclasses import replace
from itertools import pairwise
from math import isnan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_contract.config import Admission, BatchPolicy, QueueOrder, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig, FirstToken
from disagg_engine.batching.speculation import Speculation
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment, Group, Ledger, Link, Mode, Sharing, Transfer
from disagg_simulator.options import Fault, FaultKind, Lane, Options
from disagg_simulator.recording import Outcome

INSTANCES = {
    stages: Instance(model=default().model("opt-13b"), gpu=default().gpu("a100"), pipeline=stages) for stages in (1, 2)
}
COLUMNS = ("prefill_start", "prefill_end", "first_token", "finish")


def group(role, replicas, *, capacity, block=1, **batching):
    stages = batching.get("pipeline", 1)
    return Group(
        instance=INSTANCES[stages],
        time_model=Roofline(INSTANCES[stages]),
        batching=BatchingConfig(role=role, **batching),
        replicas=replicas,
        kv_capacity_tokens=capacity,
        block_tokens=block,
    )


@st.composite
def cases(draw):
    """(deployment, requests, faults): small pools, so that memory is short."""
    mode = draw(st.sampled_from(list(Mode)))
    rng = Random(draw(st.integers(0, 10**6)))
    capacity = draw(st.sampled_from([1200, 4000, 50_000]))
    block = draw(st.sampled_from([1, 16]))
    batching = {
        "admission": draw(st.sampled_from(list(Admission))),
        "policy": draw(st.sampled_from(list(BatchPolicy))),
        "queue_order": draw(st.sampled_from(list(QueueOrder))),
        "speculation": draw(st.sampled_from([None, None, Speculation(draft_tokens=3, acceptance=0.6)])),
        "pipeline": draw(st.sampled_from([1, 1, 2])),
        "prefill_burst": draw(st.sampled_from([None, 2])),
    }

    def some(role):
        return (group(role, draw(st.integers(1, 3)), capacity=capacity, block=block, **batching),)

    deployment = Deployment(
        mode=mode,
        workers=some(Role.WORKER) if mode is Mode.COLOCATED else (),
        prefill=some(Role.PREFILL) if mode in (Mode.DISAGGREGATED, Mode.PREFILL_ONLY) else (),
        decode=some(Role.DECODE) if mode in (Mode.DISAGGREGATED, Mode.DECODE_ONLY) else (),
        link=Link(
            bytes_per_second=draw(st.sampled_from([3e9, 3e11, float("inf")])),
            sharing=draw(st.sampled_from(list(Sharing))),
        ),
        transfer=draw(st.sampled_from(list(Transfer))),
        first_token=draw(st.sampled_from(list(FirstToken))),
        routing=draw(st.sampled_from([RoutingPolicy.LEAST_LOADED, RoutingPolicy.ROUND_ROBIN])),
    )
    count = draw(st.integers(1, 40))
    now, arrivals = 0.0, []
    for _ in range(count):
        arrivals.append(now)
        now += rng.choice((0.0, 0.01, rng.expovariate(5.0)))
    requests = Columns(
        name="drawn",
        arrival_seconds=array("d", arrivals),
        input_tokens=array("i", [rng.randint(1, 900) for _ in arrivals]),
        output_tokens=array("i", [rng.choice((1, 2, rng.randint(1, 300))) for _ in arrivals]),
    )
    faults = tuple(
        Fault(
            at_seconds=rng.uniform(0.0, now + 1.0),
            role=(roles := deployment.groups[rng.randrange(len(deployment.groups))]).role,
            index=rng.randrange(roles.replicas),
            kind=rng.choice(list(FaultKind)),
            for_seconds=rng.choice((0.5, 2.0)),
            factor=2.0,
        )
        for _ in range(draw(st.integers(0, 2)))
    )
    return deployment, requests, faults


def check(recording, *, complete):
    """WB3, and what every column must satisfy."""
    requests = recording.requests
    assert len(recording.outcome) == len(requests)
    if complete:
        assert Outcome.UNFINISHED not in recording.outcome
    for index in range(len(requests)):
        outcome, arrival = recording.outcome[index], requests.arrival_seconds[index]
        wanted = requests.output_tokens[index]
        if recording.deployment.mode is Mode.PREFILL_ONLY:
            wanted = 1
        times = [arrival, *(getattr(recording, name)[index] for name in COLUMNS)]
        if outcome == Outcome.COMPLETED:
            assert times == sorted(times), (index, times)
            queueing, prefill, transfer = (later - sooner for sooner, later in pairwise(times[:4]))
            assert queueing + prefill + transfer == pytest.approx(times[3] - arrival, abs=1e-9)
            assert recording.tokens[index] == wanted
        else:
            assert isnan(recording.finish[index])
            assert 0 <= recording.tokens[index] < max(2, wanted)


@given(case=cases())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_wb3_requests_are_conserved_and_their_times_are_in_order(case):
    deployment, requests, faults = case
    check(simulate_cluster(deployment, requests, seed=5, options=Options(faults=faults)), complete=True)


@given(case=cases())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_windows_and_steps_give_the_same_times(case):
    deployment, requests, faults = case
    options = Options(faults=faults, gaps=True)
    skipped = simulate_cluster(deployment, requests, seed=5, options=options)
    stepped = simulate_cluster(deployment, requests, seed=5, options=replace(options, lane=Lane.STEPPER))
    for name in COLUMNS:
        assert list(getattr(skipped, name)) == pytest.approx(list(getattr(stepped, name)), abs=1e-9, nan_ok=True)
    assert list(skipped.tokens) == list(stepped.tokens)
    assert skipped.outcome == stepped.outcome
    for one, other in zip(skipped.instances, stepped.instances, strict=True):
        assert one.busy_seconds == pytest.approx(other.busy_seconds, abs=1e-9)
        assert (one.iterations, one.output_tokens) == (other.iterations, other.output_tokens)
    assert skipped.gaps is not None
    assert stepped.gaps is not None
    if not skipped.retries:  # gaps of the window that an instance is lost in are not told
        assert sum(skipped.gaps.count) == sum(stepped.gaps.count)


@given(case=cases(), share=st.floats(0.1, 0.9))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_run_cut_short_is_the_beginning_of_the_whole(case, share):
    deployment, requests, _ = case
    whole = simulate_cluster(deployment, requests, seed=5)
    until = max(whole.end_seconds * share, 1e-6)
    short = simulate_cluster(deployment, requests, seed=5, options=Options(until_seconds=until))
    check(short, complete=False)
    for name in ("first_token", "finish"):
        for one, other in zip(getattr(short, name), getattr(whole, name), strict=True):
            assert one == pytest.approx(other, abs=1e-9) if other <= until - 1e-9 else isnan(one) or one <= until


@given(case=cases())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_gaps_are_the_time_from_first_to_last_token(case):
    deployment, requests, _ = case
    recording = simulate_cluster(deployment, requests, seed=5, options=Options(gaps=True))
    assert recording.gaps is not None
    done = [index for index in range(len(requests)) if recording.outcome[index] == Outcome.COMPLETED]
    assert sum(recording.gaps.count) == sum(recording.tokens[index] - 1 for index in done)
    total = sum(seconds * count for seconds, count in zip(recording.gaps.seconds, recording.gaps.count, strict=True))
    assert total == pytest.approx(
        sum(recording.finish[index] - recording.first_token[index] for index in done), abs=1e-6
    )


@given(case=cases())
@settings(max_examples=30, deadline=None, derandomize=True)
def test_gaps_are_one_fewer_than_tokens_whatever_is_lost(case):
    deployment, requests, faults = case
    options = Options(gaps=True, faults=faults, lane=Lane.STEPPER)
    recording = simulate_cluster(deployment, requests, seed=5, options=options)
    assert recording.gaps is not None
    assert sum(recording.gaps.count) == sum(max(0, tokens - 1) for tokens in recording.tokens)


def fingerprint():
    """A digest of everything a run leaves behind."""
    rng, now, arrivals = Random(1), 0.0, []
    for _ in range(400):
        arrivals.append(now)
        now += rng.expovariate(20.0)
    requests = Columns(
        name="mixed",
        arrival_seconds=array("d", arrivals),
        input_tokens=array("i", [rng.randint(1, 900) for _ in arrivals]),
        output_tokens=array("i", [rng.randint(1, 200) for _ in arrivals]),
    )
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, 3, capacity=5000),),
        decode=(group(Role.DECODE, 2, capacity=20_000),),
        link=Link(bytes_per_second=1e11),
    )
    faults = (Fault(at_seconds=5.0, role=Role.DECODE, for_seconds=3.0),)
    options = Options(gaps=True, series=True, faults=faults)
    recording = simulate_cluster(deployment, requests, seed=7, options=options)
    digest = hashlib.sha256()
    for name in (*COLUMNS, "prefill_instance", "decode_instance", "tokens"):
        digest.update(getattr(recording, name).tobytes())
    assert recording.gaps is not None
    digest.update(recording.gaps.seconds.tobytes())
    for instance in recording.instances:
        digest.update(instance.series_kv_tokens.tobytes())
        digest.update(repr(instance.busy_seconds).encode())
    return digest.hexdigest()


def test_sm6_the_same_seed_gives_the_same_bytes_whatever_the_hash_seed():
    seen = {fingerprint()}
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", f"import runpy; print(runpy.run_path({__file__!r})['fingerprint']())"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout.strip())
    assert len(seen) == 1


@pytest.mark.parametrize("arrivals", [[0.0, 2.0, 1.0], [0.0, float("nan"), 3.0]])
def test_sm7_arrivals_that_do_not_ascend_are_refused_by_their_row(arrivals):
    requests = Columns(
        name="given",
        arrival_seconds=array("d", arrivals),
        input_tokens=array("i", [10] * 3),
        output_tokens=array("i", [2] * 3),
    )
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, 1, capacity=1000),))
    with pytest.raises(WorkloadError, match=r"request [12] arrives at"):
        simulate_cluster(deployment, requests, seed=0)


def test_blocks_and_counts_give_the_same_schedule_where_nothing_is_reused():
    rng = Random(3)
    requests = Columns(
        name="given",
        arrival_seconds=array("d", sorted(rng.uniform(0, 10) for _ in range(60))),
        input_tokens=array("i", [rng.randint(1, 900) for _ in range(60)]),
        output_tokens=array("i", [rng.randint(1, 200) for _ in range(60)]),
    )
    counted = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, 2, capacity=6400, block=16),))
    blocks = replace(counted, workers=(replace(counted.workers[0], ledger=Ledger.BLOCKS),))
    one, other = simulate_cluster(counted, requests, seed=0), simulate_cluster(blocks, requests, seed=0)
    for name in COLUMNS:
        assert list(getattr(one, name)) == list(getattr(other, name))
