"""The state machine of one request, told as scripts of events and commands."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_contract.metrics import Leg, Outcome
from disagg_contract.openai import Endpoint
from disagg_router.core.bodies import parse_inbound
from disagg_router.core.exchange import PAUSE, RELAY, STOP, WAIT, Break, Exchange, Failure, Refuse, Send, State
from disagg_router.core.policies import make_policy
from disagg_router.core.prompt import EstimatingReader

PREFILL_ANSWER = b'{"kv_transfer_params":{"remote_host":"10.0.0.6"},"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}'  # noqa: E501
MODEL = "opt-13b"


def nothing(worker, transfer_id):
    """Whoever does not ask does not mind."""


def exchange(fleet, request=None, *, attempts=3, policy="least-loaded", model=MODEL, on_abandoned=nothing):
    if request is None:
        request = parse_inbound(Endpoint.COMPLETIONS, json.dumps({"model": model, "prompt": "hi"}).encode())
    chooser = make_policy(RoutingPolicy(policy), rng=random.Random(1), overlap_weight=1.0)
    return Exchange(
        request,
        fleet=fleet,
        policy=chooser,
        reader=EstimatingReader(),
        attempts=attempts,
        on_abandoned=on_abandoned,
    )


def loads(fleet):
    return [worker.requests for worker in fleet.workers]


def test_ap2_prefill_then_decode_then_relay(made):
    prefill, decode = made.worker(Role.PREFILL), made.worker(Role.DECODE)
    it = exchange(made.fleet)
    first = it.begin()
    assert (first.leg, first.worker) == (Leg.PREFILL, prefill)
    assert loads(made.fleet) == [1, 0]
    second = it.prefill_answered(200, PREFILL_ANSWER)
    assert (second.leg, second.worker) == (Leg.DECODE, decode)
    assert json.loads(second.body)["kv_transfer_params"] == {"remote_host": "10.0.0.6"}
    assert loads(made.fleet) == [0, 1]
    assert it.cached_tokens == 3
    assert it.answer_began(200) is RELAY
    it.relaying()
    it.relayed()
    assert (it.outcome, it.state) == (Outcome.COMPLETED, State.ENDED)
    assert loads(made.fleet) == [0, 0]


def test_a_colocated_worker_gets_a_single_leg(made):
    worker = made.worker(Role.WORKER)
    it = exchange(made.fleet)
    command = it.begin()
    assert (command.leg, command.worker, command.body) == (Leg.DECODE, worker, it.request.raw)
    assert it.cached_tokens is None


def test_decode_is_chosen_by_the_load_when_prefill_is_done(made):
    made.worker(Role.PREFILL)
    one, two = made.worker(Role.DECODE), made.worker(Role.DECODE)
    it = exchange(made.fleet)
    it.begin()
    made.fleet.charge(one, tokens=0, blocks=10)
    assert it.prefill_answered(200, PREFILL_ANSWER).worker is two


def test_several_prompts_go_to_a_decode_worker_alone(made):
    made.worker(Role.PREFILL)
    decode = made.worker(Role.DECODE)
    request = parse_inbound(Endpoint.COMPLETIONS, b'{"model":"opt-13b","prompt":["a","b"]}')
    command = exchange(made.fleet, request).begin()
    assert (command.leg, command.worker) == (Leg.DECODE, decode)
    assert "kv_transfer_params" not in json.loads(command.body)


@pytest.mark.parametrize("failure", [Failure.CONNECT, Failure.TIMEOUT, Failure.RESET])
def test_rt17_a_dead_worker_is_left_out_and_the_leg_tried_elsewhere(made, failure):
    workers = {made.worker(Role.PREFILL), made.worker(Role.PREFILL)}
    made.worker(Role.DECODE)
    it = exchange(made.fleet)
    dead = it.begin().worker
    second = it.leg_failed(failure)
    assert second.worker in workers - {dead}
    assert dead.suspect
    assert it.retries == it.leg_errors == [Leg.PREFILL]
    assert dead.requests == 0


def test_rt10_a_busy_worker_is_not_held_against_it(made):
    for _ in range(2):
        made.worker(Role.WORKER)
    it = exchange(made.fleet)
    busy = it.begin().worker
    other = it.answer_began(503).worker
    assert other is not busy
    assert busy.eligible
    assert it.answer_began(200) is RELAY


def test_all_busy_is_503_with_retry_after(made):
    for _ in range(2):
        made.worker(Role.WORKER)
    it = exchange(made.fleet)
    it.begin()
    it.answer_began(503)
    command = it.answer_began(429)
    assert (command.error.status, command.error.retry_after_seconds) == (503, 1.0)
    assert it.outcome is Outcome.UNAVAILABLE
    assert loads(made.fleet) == [0, 0]


def test_kv5_attempts_are_bounded(made):
    for _ in range(5):
        made.worker(Role.WORKER)
    it = exchange(made.fleet, attempts=3)
    tried = {it.begin().worker, it.answer_began(500).worker, it.answer_began(500).worker}
    assert len(tried) == 3
    command = it.answer_began(500)
    assert isinstance(command, Refuse)
    assert command.error.status == 502
    assert it.outcome is Outcome.FAILED


def test_kv6_a_failed_decode_leg_begins_with_a_new_prefill(made):
    made.worker(Role.PREFILL)
    decodes = {made.worker(Role.DECODE), made.worker(Role.DECODE)}
    it = exchange(made.fleet)
    it.begin()
    failed = it.prefill_answered(200, PREFILL_ANSWER).worker
    again = it.leg_failed(Failure.RESET)
    assert again.leg is Leg.PREFILL
    decode = it.prefill_answered(200, PREFILL_ANSWER.replace(b"10.0.0.6", b"10.0.0.7"))
    assert decode.worker in decodes - {failed}
    assert b"10.0.0.7" in decode.body


def holding(made):
    """An exchange whose prefill was answered with our extension, its prefill worker, and what it abandons."""
    prefill = made.worker(Role.PREFILL)
    abandoned = []
    it = exchange(made.fleet, on_abandoned=lambda worker, name: abandoned.append((worker, name)))
    return it, prefill, abandoned


def held(name):
    return json.dumps({"kv_transfer_params": {"remote_host": "x", "disagg": {"transfer_id": name}}}).encode()


@pytest.mark.parametrize("end", ["client_gone", "shut_down"])
def test_ap7_kv_of_a_request_that_ends_before_its_answer_is_given_back(made, end):
    it, prefill, abandoned = holding(made)
    made.worker(Role.DECODE)
    it.begin()
    it.prefill_answered(200, held("t-1"))
    assert abandoned == []
    getattr(it, end)()
    assert abandoned == [(prefill, "t-1")]
    getattr(it, end)()
    assert len(abandoned) == 1


@pytest.mark.parametrize("status", [400, 422])
def test_ap7_kv_of_a_refused_decode_leg_is_given_back(made, status):
    it, prefill, abandoned = holding(made)
    made.worker(Role.DECODE)
    it.begin()
    it.prefill_answered(200, held("t-1"))
    assert it.answer_began(status) is RELAY
    it.relayed()
    assert abandoned == [(prefill, "t-1")]


def test_ap7_every_attempt_gives_back_its_own_kv(made):
    it, prefill, abandoned = holding(made)
    for _ in range(2):
        made.worker(Role.DECODE)
    it.begin()
    it.prefill_answered(200, held("t-1"))
    it.leg_failed(Failure.CONNECT)
    assert abandoned == [(prefill, "t-1")]
    it.prefill_answered(200, held("t-2"))
    it.answer_began(503)
    assert abandoned == [(prefill, "t-1"), (prefill, "t-2")]


def test_ap7_kv_is_given_back_when_no_decode_worker_is_left(made):
    it, prefill, abandoned = holding(made)
    decode = made.worker(Role.DECODE)
    it.begin()
    made.fleet.leave(decode.key.uid)
    assert it.prefill_answered(200, held("t-1")) is WAIT
    assert abandoned == [(prefill, "t-1")]
    it.queue_expired()
    assert len(abandoned) == 1


@pytest.mark.parametrize("whole", [True, False])
def test_kv_that_was_pulled_is_not_given_back(made, whole):
    it, _, abandoned = holding(made)
    made.worker(Role.DECODE)
    it.begin()
    it.prefill_answered(200, held("t-1"))
    it.answer_began(200)
    if whole:
        it.relayed()
    else:
        it.relaying()
        it.client_gone()
    assert it.state is State.ENDED
    assert abandoned == []


@pytest.mark.parametrize("extension", ['"disagg":null', '"disagg":7', '"disagg":{}', '"remote_port":5600'])
def test_engines_without_our_extension_are_sent_nothing(made, extension):
    it, _, abandoned = holding(made)
    made.worker(Role.DECODE)
    it.begin()
    it.prefill_answered(200, b'{"kv_transfer_params":{%b}}' % extension.encode())
    it.client_gone()
    assert abandoned == []


def test_a_prefill_answer_without_parameters_is_a_failure(made):
    made.worker(Role.PREFILL)
    made.worker(Role.PREFILL)
    made.worker(Role.DECODE)
    it = exchange(made.fleet)
    it.begin()
    assert it.prefill_answered(200, b'{"kv_transfer_params":null}').leg is Leg.PREFILL
    command = it.prefill_answered(200, b"<html>")
    assert isinstance(command, Refuse)
    assert command.error.status == 502


def test_what_is_wrong_with_the_request_is_passed_on(made):
    made.worker(Role.PREFILL)
    made.worker(Role.DECODE)
    it = exchange(made.fleet)
    it.begin()
    assert it.prefill_answered(400, b'{"error":{}}') is RELAY
    it.relayed()
    assert it.outcome is Outcome.REJECTED
    assert it.leg_errors == []


def test_ap3_after_the_first_byte_nothing_is_sent_twice(made):
    for _ in range(3):
        made.worker(Role.WORKER)
    it = exchange(made.fleet)
    it.begin()
    it.answer_began(200)
    it.relaying()
    command = it.leg_failed(Failure.RESET)
    assert isinstance(command, Break)
    assert json.loads(command.event.removeprefix(b"data: "))["error"]["code"] == "worker_failed"
    assert it.outcome is Outcome.FAILED
    assert it.leg_failed(Failure.RESET) is PAUSE
    assert it.client_gone() is PAUSE


def test_ap9_unknown_model_and_known_model_without_worker(made):
    worker = made.worker(Role.WORKER)
    unknown = exchange(made.fleet, model="other").begin()
    assert (unknown.error.status, unknown.error.code) == (404, "model_not_found")
    made.fleet.leave(worker.key.uid)
    it = exchange(made.fleet)
    assert it.begin() is WAIT
    command = it.queue_expired()
    assert (command.error.status, command.error.retry_after_seconds) == (503, 1.0)
    assert it.outcome is Outcome.UNAVAILABLE


def test_a_request_without_model_gets_the_only_one(made):
    it = exchange(made.fleet, parse_inbound(Endpoint.COMPLETIONS, b'{"prompt":"x"}'))
    assert it.begin() is WAIT
    made.worker(Role.WORKER)
    assert isinstance(it.fleet_changed(), Send)
    assert it.request.model == MODEL
    made.worker(Role.WORKER, model="second")
    command = exchange(made.fleet, parse_inbound(Endpoint.COMPLETIONS, b'{"prompt":"x"}')).begin()
    assert (command.error.status, command.error.param) == (400, "model")


def test_a_queued_request_goes_out_when_a_worker_comes(made):
    it = exchange(made.fleet)
    assert it.begin() is WAIT
    made.worker(Role.PREFILL)
    assert it.fleet_changed() is WAIT
    made.worker(Role.DECODE)
    assert it.fleet_changed().leg is Leg.PREFILL
    assert it.fleet_changed() is PAUSE
    assert it.queue_expired() is PAUSE


def test_the_only_worker_is_tried_again_once_it_answered_a_probe(made):
    row, info = made.row(), made.info()
    worker = made.fleet.join(row, info)
    it = exchange(made.fleet)
    it.begin()
    assert it.leg_failed(Failure.RESET) is WAIT
    made.fleet.join(row, info)
    assert it.fleet_changed().worker is worker


def test_decode_gone_meanwhile_waits_and_begins_anew(made):
    made.worker(Role.PREFILL)
    decode = made.worker(Role.DECODE)
    it = exchange(made.fleet)
    it.begin()
    made.fleet.leave(decode.key.uid)
    assert it.prefill_answered(200, PREFILL_ANSWER) is WAIT
    assert loads(made.fleet) == [0]
    made.worker(Role.DECODE)
    assert it.fleet_changed().leg is Leg.PREFILL


@pytest.mark.parametrize("at", ["queued", "prefill", "answer", "relaying"])
def test_ap7_a_client_that_leaves_frees_everything(made, at):
    it = exchange(made.fleet)
    if at != "queued":
        made.worker(Role.PREFILL)
        made.worker(Role.DECODE)
    it.begin()
    if at in ("answer", "relaying"):
        it.prefill_answered(200, PREFILL_ANSWER)
    if at == "relaying":
        it.answer_began(200)
        it.relaying()
    assert it.client_gone() is STOP
    assert it.outcome is Outcome.CANCELLED
    assert sum(loads(made.fleet)) == 0
    assert it.client_gone() is PAUSE


EVENTS = st.sampled_from(
    [
        "prefilled",
        "bad-prefill",
        "began",
        "busy",
        "relaying",
        "relayed",
        "reset",
        "gone",
        "stop",
        "expired",
        "changed",
        "join",
        "leave",
    ]
)


@given(script=st.lists(EVENTS, max_size=30), policy=st.sampled_from(["kv", "least-loaded", "round-robin"]))
def test_whatever_happens_there_is_one_outcome_and_no_load_left(make_made, script, policy):
    made = make_made()
    for role in (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE):
        made.worker(role)
    it = exchange(made.fleet, policy=policy)
    it.begin()
    relayed_from = None
    for event in script:
        state = it.state
        if event == "prefilled" and state is State.PREFILL:
            it.prefill_answered(200, PREFILL_ANSWER)
        elif event == "bad-prefill" and state is State.PREFILL:
            it.prefill_answered(500, b"")
        elif event == "began" and state is State.ANSWER:
            assert it.answer_began(200) is RELAY
        elif event == "busy" and state is State.ANSWER:
            it.answer_began(503)
        elif event == "relaying" and state is State.ANSWER:
            it.relaying()
            assert relayed_from is None, "output of two attempts"
            relayed_from = it.worker
        elif event == "relayed" and state is State.RELAYING:
            it.relayed()
        elif event == "reset":
            it.leg_failed(Failure.RESET)
        elif event == "gone":
            it.client_gone()
        elif event == "stop":
            it.shut_down()
        elif event == "expired":
            it.queue_expired()
        elif event == "changed":
            it.fleet_changed()
        elif event == "join":
            made.worker(Role.DECODE)
        elif event == "leave":
            uid = next((w.key.uid for w in made.fleet.workers), "")
            made.fleet.leave(uid)
        out = it.state in (State.PREFILL, State.ANSWER, State.RELAYING)
        assert (it._charge is not None) is out
        assert sum(loads(made.fleet)) <= int(out)
    it.client_gone()
    assert it.state is State.ENDED
    assert it.outcome is not None
    assert sum(loads(made.fleet)) == 0
