"""Settings of the engine as they show in a cluster, and links by name."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from disagg_contract.config import BatchPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.errors import SettingError, UnknownNameError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import Roofline
from disagg_load.columns import Columns
from disagg_simulator.cluster import link_named, simulate_cluster
from disagg_simulator.deployment import Deployment, Group, Ledger, Link, Mode, Sharing
from disagg_simulator.errors import DeploymentError


def on(gpu, model="opt-13b", *, role=Role.WORKER, **rest):
    instance = Instance(model=default().model(model), gpu=default().gpu(gpu))
    return Group(instance=instance, time_model=Roofline(instance), batching=BatchingConfig(role=role), **rest)


def test_a_link_is_as_fast_as_the_slowest_gpu_that_uses_it():
    a100, h100 = on("a100").instance, on("h100").instance
    assert link_named("nvlink", prefill=[h100], decode=[h100]).bytes_per_second == 450e9
    assert link_named("nvlink", prefill=[h100], decode=[h100, a100]).bytes_per_second == 300e9
    assert link_named("ib-800", prefill=[h100], decode=[a100]).bytes_per_second == 100e9
    assert link_named("eth-25", prefill=[a100], decode=[a100], sharing=Sharing.ALL).sharing is Sharing.ALL
    assert link_named("ethernet", prefill=[a100], decode=[a100], latency_seconds=1e-4).latency_seconds == 1e-4


def test_a_link_that_nobody_knows_or_a_gpu_lacks_is_refused():
    a100 = on("a100").instance
    with pytest.raises(UnknownNameError, match="carrier-pigeon"):
        link_named("carrier-pigeon", prefill=[a100], decode=[a100])
    with pytest.raises(SettingError, match="no NVLink"):
        link_named("nvlink", prefill=[a100], decode=[on("l40s").instance])


def test_sm3_crossed_parameters_prefill_and_decode_gpus_are_their_own(columns):
    """Another decode GPU changes TPOT and no TTFT, another prefill GPU the reverse."""

    def run(prefill, decode):
        deployment = Deployment(
            mode=Mode.DISAGGREGATED,
            prefill=(on(prefill, role=Role.PREFILL),),
            decode=(on(decode, role=Role.DECODE),),
        )
        recording = simulate_cluster(deployment, columns([0.0, 1.0], 512, 64), seed=0)
        return recording.first_token[0], recording.finish[0] - recording.first_token[0]

    (ttft, answer), other_decode, other_prefill = run("a100", "a100"), run("a100", "h100"), run("h100", "a100")
    assert other_decode[0] == ttft
    assert other_decode[1] < answer
    assert other_prefill[0] < ttft
    assert other_prefill[1] == pytest.approx(answer)


def test_gpu_types_mix_within_a_role(columns):
    deployment = Deployment(
        mode=Mode.COLOCATED,
        workers=(on("a100", replicas=1), on("h100", replicas=2)),
    )
    recording = simulate_cluster(deployment, columns([0.0] * 6, 512, 8), seed=0)
    assert [one.name for one in recording.instances] == ["worker-0", "worker-1", "worker-2"]
    assert sorted(recording.decode_instance) == [0, 0, 1, 1, 2, 2]
    spans = {number: [] for number in range(3)}
    for index, number in enumerate(recording.decode_instance):
        spans[number].append(recording.finish[index])
    assert max(spans[1]) < min(spans[0])


def test_sm10_twice_the_kv_a_token_is_half_the_slots_and_twice_the_transfer(columns, instance):
    def run(model):
        grown = replace(instance, model=model)
        link = Link(bytes_per_second=1e9)
        time_model = Roofline(instance)
        groups = {
            role: (Group(instance=grown, time_model=time_model, batching=BatchingConfig(role=role)),)
            for role in (Role.PREFILL, Role.DECODE)
        }
        deployment = Deployment(
            mode=Mode.DISAGGREGATED, prefill=groups[Role.PREFILL], decode=groups[Role.DECODE], link=link
        )
        recording = simulate_cluster(deployment, columns([0.0], 512, 2), seed=0)
        return recording.instances[1].capacity_tokens, recording.finish[0] - recording.first_token[0]

    double = replace(instance.model, kv_bytes_per_token=2 * instance.model.kv_bytes_per_token)
    (room, seconds), (half, longer) = run(instance.model), run(double)
    assert half == room // 2
    assert longer - seconds == pytest.approx(512 * instance.model.kv_bytes_per_token / 1e9)


def test_prefixes_that_are_held_are_neither_computed_nor_pulled_again(group):
    ledger = {"ledger": Ledger.BLOCKS, "block_tokens": 256}
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(replace(group(Role.PREFILL, steady=(0.5, 0.1)), **ledger),),
        decode=(replace(group(Role.DECODE, steady=(0.5, 0.1)), **ledger),),
    )
    requests = Columns(
        name="twice",
        arrival_seconds=array("d", [0.0, 10.0]),
        input_tokens=array("i", [1100, 1100]),
        output_tokens=array("i", [3, 3]),
        hash_ids=[(1, 2, 3), (1, 2, 4)],
        block_tokens=512,
    )
    recording = simulate_cluster(deployment, requests, seed=0)
    assert recording.instances[0].prefix_hit_tokens == 1024
    assert recording.instances[0].prompt_tokens == 1100 + 76
    assert recording.transfer_tokens == 1100 + 76
    odd = replace(deployment, decode=(replace(deployment.decode[0], block_tokens=100),))
    with pytest.raises(DeploymentError, match=r"decode\.block_tokens is 100; .* a divisor of the workload's 512"):
        simulate_cluster(odd, requests, seed=0)


def test_higher_priorities_are_served_first(group, columns):
    deployment = Deployment(mode=Mode.PREFILL_ONLY, prefill=(group(Role.PREFILL, steady=(0.5, 0.1)),))
    requests = replace(columns([0.0, 0.1, 0.2], 512, 1), priorities=array("i", [0, 0, 5]))
    assert list(simulate_cluster(deployment, requests, seed=0).finish) == pytest.approx([0.5, 1.5, 1.0])


def test_sm12_an_overhead_is_part_of_ttft_once_a_request(columns):
    def run(seconds):
        groups = [on("a100", role=role) for role in (Role.PREFILL, Role.DECODE)]
        prefill, decode = (
            replace(one, batching=replace(one.batching, scheduling_overhead_seconds=seconds)) for one in groups
        )
        deployment = Deployment(mode=Mode.DISAGGREGATED, prefill=(prefill,), decode=(decode,))
        recording = simulate_cluster(deployment, columns([0.0, 5.0], 512, 8), seed=0)
        arrivals = recording.requests.arrival_seconds
        ttft = [first - arrival for first, arrival in zip(recording.first_token, arrivals, strict=True)]
        return ttft, [last - first for first, last in zip(recording.first_token, recording.finish, strict=True)]

    (ttft, answers), (later, same) = run(0.0), run(0.002)
    assert later == pytest.approx([seconds + 0.002 for seconds in ttft])
    assert same == pytest.approx(answers)


@pytest.mark.parametrize("policy", [BatchPolicy.STATIC, BatchPolicy.ITERATION])
def test_other_policies_run_here_too(group, columns, policy):
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, 2, policy=policy),))
    recording = simulate_cluster(deployment, columns([0.05 * n for n in range(40)], 512, [1, 20, 60, 7] * 10), seed=0)
    assert list(recording.tokens) == [1, 20, 60, 7] * 10
