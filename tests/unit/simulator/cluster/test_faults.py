"""Instances that are lost, slow, or drained."""

from __future__ import annotations

import pytest

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import FirstToken
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.cluster.faults import schedule_faults
from disagg_simulator.cluster.run import ClusterRun
from disagg_simulator.deployment import Deployment, Link, Mode
from disagg_simulator.errors import OptionError
from disagg_simulator.options import Fault, FaultKind, Lane, Options
from disagg_simulator.recording import Outcome
from disagg_simulator.simulate import simulate


@pytest.fixture
def pair(group):
    """`pair(prefill, decode, **rest)`: prompts 0.5 s, steps 0.1 s."""

    def make(prefill=1, decode=1, **rest):
        return Deployment(
            mode=Mode.DISAGGREGATED,
            prefill=(group(Role.PREFILL, prefill, steady=(0.5, 0.1)),),
            decode=(group(Role.DECODE, decode, steady=(0.5, 0.1)),),
            routing=RoutingPolicy.ROUND_ROBIN,
            **rest,
        )

    return make


def test_a_lost_decode_instance_costs_one_longer_prefill(pair, columns):
    """Ten tokens were sent at 1.45; prompt and those are prefilled again, which gives the eleventh at 1.95."""
    options = Options(faults=(Fault(at_seconds=1.45, role=Role.DECODE, index=0),))
    recording = simulate_cluster(pair(1, 2), columns([0.0], 512, 21), seed=0, options=options)
    assert recording.first_token[0] == 0.5
    assert recording.finish[0] == pytest.approx(1.95 + 10 * 0.1)
    assert recording.decode_instance[0] == 2
    assert recording.retries == 1
    assert recording.instances[1].stopped_seconds == 1.45
    assert recording.instances[1].output_tokens == 9


def test_without_a_second_try_its_requests_have_failed(pair, columns):
    options = Options(faults=(Fault(at_seconds=1.45, role=Role.DECODE, index=0),), retry=False)
    recording = simulate_cluster(pair(1, 2), columns([0.0], 512, 21), seed=0, options=options)
    assert recording.outcome[0] == Outcome.FAILED
    assert recording.tokens[0] == 10


def test_a_prefill_lost_before_its_token_leaves_no_trace_but_the_wait(pair, columns):
    options = Options(faults=(Fault(at_seconds=0.2, role=Role.PREFILL, index=0),))
    recording = simulate_cluster(pair(2, 1), columns([0.0], 512, 3), seed=0, options=options)
    assert (recording.prefill_start[0], recording.first_token[0]) == (0.2, 0.7)
    assert recording.finish[0] == pytest.approx(0.9)


@pytest.mark.parametrize("first_token", [FirstToken.PREFILL, FirstToken.LOGITS])
def test_kv3_a_prefill_lost_while_its_kv_is_pulled_frees_the_decode_instance(pair, columns, instance, first_token):
    link = Link(bytes_per_second=512 * instance.model.kv_bytes_per_token)  # a second a prompt
    deployment = pair(2, 1, link=link, first_token=first_token)
    options = Options(faults=(Fault(at_seconds=1.0, role=Role.PREFILL, index=0),))
    run = ClusterRun(deployment, columns([0.0], 512, 5), seed=0, options=options)
    schedule_faults(run)
    recording = run.run()
    again = 1.0 + 0.5  # the second prefill, and then its pull of 512 or 513 tokens
    pulled = again + (513 / 512 if first_token is FirstToken.PREFILL else 1.0)
    assert recording.finish[0] == pytest.approx(pulled + (3 if first_token is FirstToken.PREFILL else 4) * 0.1)
    assert recording.first_token[0] == pytest.approx(0.5 if first_token is FirstToken.PREFILL else pulled)
    assert all(member.ledger.used_tokens == 0 or not member.live for member in run.fleet.members)
    assert all(not member.live for member in run.fleet.members)


def test_requests_wait_while_nobody_serves_and_go_on_when_somebody_does(pair, columns):
    fault = Fault(at_seconds=0.1, role=Role.DECODE, for_seconds=3.0)
    recording = simulate_cluster(pair(), columns([0.0], 512, 3), seed=0, options=Options(faults=(fault,)))
    assert recording.first_token[0] == 0.5
    assert recording.finish[0] == pytest.approx(3.1 + 0.2)


def test_when_nobody_comes_back_they_stay_unfinished(pair, columns):
    fault = Fault(at_seconds=0.1, role=Role.DECODE)
    recording = simulate_cluster(pair(), columns([0.0, 1.0], 512, 3), seed=0, options=Options(faults=(fault,)))
    assert list(recording.outcome) == [Outcome.UNFINISHED] * 2
    assert list(recording.tokens) == [1, 1]


def test_a_slow_instance_is_slow_until_it_is_not(pair, columns):
    """Steps of 0.1 s from 0.5 on; those planned from 1.0 to 2.0 take 0.3 s."""
    fault = Fault(at_seconds=1.0, role=Role.DECODE, kind=FaultKind.SLOW, factor=3.0, for_seconds=0.9)
    recording = simulate_cluster(pair(), columns([0.0], 512, 13), seed=0, options=Options(faults=(fault,)))
    # 12 steps: five by 1.0, three slow ones by 1.9 and, planned at 1.9 after the change, four more.
    assert recording.finish[0] == pytest.approx(1.9 + 4 * 0.1, abs=0.21)
    assert recording.finish[0] > 0.5 + 12 * 0.1 + 0.5


def test_a_drained_instance_finishes_what_it_has_and_gets_nothing_new(pair, columns):
    run = ClusterRun(pair(1, 2), columns([0.0, 1.0, 2.0], 512, 31), seed=0, options=Options())
    first = run.fleet.of(Role.DECODE)[0]
    run.at(0.7, lambda: run.fleet.drain(first, now=run.now))
    recording = run.run()
    assert list(recording.decode_instance) == [1, 2, 2]
    assert recording.instances[1].stopped_seconds == pytest.approx(recording.finish[0]) == pytest.approx(3.5)
    assert set(recording.outcome) == {Outcome.COMPLETED}


def test_a_fault_of_an_instance_that_is_not_there_is_refused(pair, columns):
    options = Options(faults=(Fault(at_seconds=0.1, role=Role.DECODE, index=1),))
    with pytest.raises(OptionError, match=r"fault\.index is 1; it must be below the number of decode instances, 1"):
        simulate_cluster(pair(), columns([0.0], 512, 3), seed=0, options=options)


def test_kv6_kv_of_a_lost_attempt_that_comes_late_is_dropped(pair, columns, instance):
    """The first pull would end at 1.5; its decode instance is lost at 1.0, and the second attempt has its own pull."""
    link = Link(bytes_per_second=512 * instance.model.kv_bytes_per_token)
    options = Options(faults=(Fault(at_seconds=1.0, role=Role.DECODE, for_seconds=0.2),))
    recording = simulate_cluster(pair(1, 1, link=link), columns([0.0], 512, 5), seed=0, options=options)
    # Prefilled again from 1.0 to 1.5 (513 tokens, the second token), pulled behind the first one on the same link.
    assert recording.finish[0] == pytest.approx(1.5 + 513 / 512 + 3 * 0.1)
    assert recording.tokens[0] == 5
    assert recording.transfer_tokens == 512 + 513


@pytest.mark.parametrize("at_seconds", [1.45, 1.0, 1.05])
@pytest.mark.parametrize("cut", ["fault", "until"])
def test_a_window_that_is_cut_short_leaves_its_gaps_and_tokens(pair, columns, cut, at_seconds):
    """The gaps between tokens that were sent count, whatever became of the instance afterwards."""
    if cut == "fault":
        told = {"faults": (Fault(at_seconds=at_seconds, role=Role.DECODE, for_seconds=1.0),), "retry": False}
    else:
        told = {"until_seconds": at_seconds}
    sent = {}
    for lane in (Lane.CLUSTER, Lane.STEPPER):
        options = Options(gaps=True, lane=lane, **told)
        recording = simulate(pair(), columns([0.0], 512, 21), seed=0, options=options)
        gaps = [seconds for seconds, n in zip(recording.gaps.seconds, recording.gaps.count, strict=True) if n == 1]
        sent[lane] = len(gaps), recording.tokens[0], recording.instances[1].output_tokens
        assert gaps == pytest.approx([0.1] * len(gaps))
        assert len(gaps) == recording.tokens[0] - 1
    assert sent[Lane.CLUSTER] == sent[Lane.STEPPER]
