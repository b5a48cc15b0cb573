"""What each mode does with a request, on times that can be worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import FirstToken
from disagg_engine.catalogue import Precision
from disagg_engine.timemodel import Roofline
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment, Link, Mode, Sharing
from disagg_simulator.errors import DeploymentError
from disagg_simulator.options import Lane, Options
from disagg_simulator.recording import Outcome
from disagg_simulator.simulate import simulate


def parts(recording, index):
    """Queueing, prefill and transfer seconds of a request."""
    arrival = recording.requests.arrival_seconds[index]
    return (
        recording.prefill_start[index] - arrival,
        recording.prefill_end[index] - recording.prefill_start[index],
        recording.first_token[index] - recording.prefill_end[index],
    )


def test_a_colocated_request_is_prefilled_and_decoded_in_one_place(group, columns):
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, steady=(0.5, 0.1)),))
    recording = simulate_cluster(deployment, columns([0.0], 512, 4), seed=0)
    assert parts(recording, 0) == (0.0, 0.5, 0.0)
    assert recording.finish[0] == pytest.approx(0.8)
    assert list(recording.tokens) == [4]
    assert recording.outcome[0] == Outcome.COMPLETED
    assert recording.prefill_instance[0] == recording.decode_instance[0] == 0


def test_a_pair_hands_the_kv_over_and_the_prefill_gives_the_first_token(group, columns, instance):
    seconds = 512 * instance.model.kv_bytes_per_token / 1e9
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.5, 0.1)),),
        decode=(group(Role.DECODE, steady=(0.5, 0.1)),),
        link=Link(bytes_per_second=1e9, latency_seconds=0.25),
    )
    recording = simulate_cluster(deployment, columns([0.0], 512, 4), seed=0)
    assert parts(recording, 0) == (0.0, 0.5, 0.0)
    assert recording.finish[0] == pytest.approx(0.5 + seconds + 0.25 + 3 * 0.1)
    assert recording.transfer_tokens == 512
    assert (recording.prefill_instance[0], recording.decode_instance[0]) == (0, 1)


def test_with_logits_the_first_token_comes_when_the_kv_has_arrived(group, columns, instance):
    seconds = 512 * instance.model.kv_bytes_per_token / 1e9
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.5, 0.1)),),
        decode=(group(Role.DECODE, steady=(0.5, 0.1)),),
        link=Link(bytes_per_second=1e9),
        first_token=FirstToken.LOGITS,
    )
    recording = simulate_cluster(deployment, columns([0.0], 512, 4), seed=0)
    assert parts(recording, 0) == pytest.approx((0.0, 0.5, seconds))
    assert recording.finish[0] == pytest.approx(0.5 + seconds + 3 * 0.1)


def test_a_one_token_answer_never_goes_to_decode(group, columns):
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.5, 0.1)),),
        decode=(group(Role.DECODE, steady=(0.5, 0.1)),),
    )
    recording = simulate_cluster(deployment, columns([0.0], 512, 1), seed=0)
    assert recording.finish[0] == recording.first_token[0] == 0.5
    assert recording.decode_instance[0] == -1
    assert recording.transfer_tokens == 0


def test_prefill_only_ends_with_the_first_token(group, columns):
    deployment = Deployment(mode=Mode.PREFILL_ONLY, prefill=(group(Role.PREFILL, steady=(0.5, 0.1)),))
    recording = simulate_cluster(deployment, columns([0.0, 0.0], 512, 8), seed=0)
    assert list(recording.finish) == [0.5, 1.0]
    assert list(recording.tokens) == [1, 1]


def test_decode_only_finds_kv_and_first_token_in_place(group, columns):
    deployment = Deployment(mode=Mode.DECODE_ONLY, decode=(group(Role.DECODE, steady=(0.5, 0.1)),))
    recording = simulate_cluster(deployment, columns([0.0, 1.0], 512, [4, 1]), seed=0)
    assert list(recording.first_token) == [0.0, 1.0]
    assert list(recording.finish) == pytest.approx([0.3, 1.0])


def test_what_does_not_fit_waits_in_the_prefill_instance_and_holds_new_prompts_back(group, columns):
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.5, 0.1), kv_capacity_tokens=600),),
        decode=(group(Role.DECODE, steady=(0.5, 0.1), kv_capacity_tokens=600),),
    )
    recording = simulate_cluster(deployment, columns([0.0, 0.0, 0.0], 512, 21), seed=0)
    # 20 decode steps of 0.1 s each: the second prompt's KV stays where it is until 2.5, and the third waits for it.
    assert list(recording.finish) == pytest.approx([2.5, 4.5, 6.5])
    assert list(recording.prefill_start) == pytest.approx([0.0, 0.5, 2.5])


def test_a_request_larger_than_the_pool_is_refused_and_the_next_one_served(group, columns):
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.5, 0.1), kv_capacity_tokens=1000),),
        decode=(group(Role.DECODE, steady=(0.5, 0.1), kv_capacity_tokens=600),),
    )
    recording = simulate_cluster(deployment, columns([0.0] * 3, [2000, 600, 512], 21), seed=0)
    assert list(recording.outcome) == [Outcome.REFUSED, Outcome.REFUSED, Outcome.COMPLETED]


@pytest.mark.parametrize(
    ("sharing", "seconds"),
    [(Sharing.NONE, [1.0, 1.0]), (Sharing.SOURCE, [1.0, 2.0]), (Sharing.ALL, [1.0, 2.0])],
)
def test_transfers_queue_on_what_they_share(group, columns, instance, sharing, seconds):
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.0, 0.1)),),
        decode=(group(Role.DECODE, 2, steady=(0.5, 0.1)),),
        link=Link(bytes_per_second=256 * instance.model.kv_bytes_per_token, sharing=sharing),
        routing=RoutingPolicy.ROUND_ROBIN,
    )
    recording = simulate_cluster(deployment, columns([0.0, 0.0], 256, 2), seed=0)
    assert [finish - 0.1 for finish in recording.finish] == pytest.approx(seconds)


def test_pairs_do_not_wait_for_each_other(group, columns, instance):
    link = Link(bytes_per_second=256 * instance.model.kv_bytes_per_token, sharing=Sharing.PAIR)
    deployment = Deployment(
        mode=Mode.DISAGGREGATED,
        prefill=(group(Role.PREFILL, steady=(0.0, 0.1)),),
        decode=(group(Role.DECODE, 2, steady=(0.5, 0.1)),),
        link=link,
        routing=RoutingPolicy.ROUND_ROBIN,
    )
    recording = simulate_cluster(deployment, columns([0.0] * 4, 128, 2), seed=0)
    assert [finish - 0.1 for finish in recording.finish] == pytest.approx([0.5, 0.5, 1.0, 1.0], abs=0.11)


def test_closed_loop_sends_the_next_when_one_ends(group, columns):
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, steady=(0.5, 0.1)),))
    requests = columns([0.0] * 5, 512, 6)
    recording = simulate_cluster(deployment, requests, seed=0, options=Options(concurrency=1))
    assert list(recording.requests.arrival_seconds) == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0])
    assert list(requests.arrival_seconds) == [0.0] * 5


def test_time_up_leaves_the_rest_unfinished(group, columns):
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group(Role.WORKER, steady=(0.5, 0.1)),))
    recording = simulate_cluster(deployment, columns([0.0, 2.0], 512, 6), seed=0, options=Options(until_seconds=0.75))
    assert list(recording.outcome) == [Outcome.UNFINISHED, Outcome.UNFINISHED]
    assert list(recording.tokens) == [3, 0]
    assert recording.end_seconds == 0.75


def test_at_equal_times_what_has_ended_is_seen_by_the_choice_and_what_arrives_by_the_plan(group, columns):
    """The first request leaves its instance at 1.0; the one that arrives then goes there, and starts at once."""
    deployment = Deployment(
        mode=Mode.PREFILL_ONLY,
        prefill=(group(Role.PREFILL, 2, steady=(1.0, 0.1)),),
        routing=RoutingPolicy.LEAST_LOADED,
    )
    recording = simulate_cluster(deployment, columns([0.0, 0.5, 1.0, 1.5], 512, 1), seed=0)
    first, second, third, fourth = recording.prefill_instance
    assert first != second
    assert (third, fourth) == (first, second)
    assert list(recording.prefill_start) == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("lane", [Lane.FAST, Lane.CLUSTER])
def test_kv_travels_in_the_precision_it_is_kept_in(group, columns, instance, lane):
    """Half the bytes, half the time on the link."""

    def landed(precision: Precision) -> float:
        kept = dataclasses.replace(instance, kv_precision=precision)
        roles = {
            role.value: (dataclasses.replace(group(role), instance=kept, time_model=Roofline(instance)),)
            for role in (Role.PREFILL, Role.DECODE)
        }
        deployment = Deployment(mode=Mode.DISAGGREGATED, link=Link(bytes_per_second=1e9), **roles)
        recording = simulate(deployment, columns([0.0], 512, 2), seed=0, options=Options(lane=lane))
        return recording.finish[0]

    seconds = 512 * instance.model.kv_bytes_per_token / 1e9
    assert landed(Precision.FP16) - landed(Precision.FP8) == pytest.approx(seconds / 2)


def test_groups_that_keep_kv_differently_cannot_exchange_it(group, instance):
    half = dataclasses.replace(instance, kv_precision=Precision.FP8)
    with pytest.raises(DeploymentError, match=r"decode\.instance\.kv_precision is 'fp8'"):
        Deployment(
            mode=Mode.DISAGGREGATED,
            prefill=(group(Role.PREFILL),),
            decode=(dataclasses.replace(group(Role.DECODE), instance=half),),
        )
