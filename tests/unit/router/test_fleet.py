"""The fleet: who may be chosen, and load that always comes back to zero."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.labels import Role
from disagg_router.core.fleet import Fleet
from disagg_router.errors import RegistrationRefusedError

MODEL = "opt-13b"


def test_a_model_is_servable_with_a_pair_or_a_colocated_worker(made):
    assert made.fleet.servable_models == ()
    prefill = made.worker(Role.PREFILL)
    assert made.fleet.known_models == (MODEL,)
    assert made.fleet.servable_models == ()
    decode = made.worker(Role.DECODE)
    assert made.fleet.servable_models == (MODEL,)
    assert made.fleet.pools(MODEL).prefill == (prefill,)
    assert made.fleet.pools(MODEL).pairs[""].decode == (decode,)
    made.fleet.leave(prefill.key.uid)
    assert made.fleet.servable_models == ()
    made.worker(Role.WORKER)
    assert made.fleet.servable_models == (MODEL,)


def test_prefill_and_decode_of_different_revisions_are_not_paired(made):
    made.worker(Role.PREFILL, revision="a")
    made.worker(Role.DECODE, revision="b")
    assert not made.fleet.pools(MODEL).servable
    new = made.worker(Role.DECODE, revision="a")
    assert made.fleet.pools(MODEL).pairs["a"].decode == (new,)
    assert "b" not in made.fleet.pools(MODEL).pairs


def test_rt4_a_worker_that_is_not_ready_or_draining_is_not_eligible(made):
    row, info = made.row(), made.info()
    worker = made.fleet.join(row, info)
    assert worker.eligible
    made.fleet.mark(row.uid, ready=False, draining=False)
    assert made.fleet.pools(MODEL).colocated == ()
    made.fleet.mark(row.uid, ready=True, draining=False)
    assert not worker.eligible, "it must answer a probe first: it may be another process now"
    assert made.fleet.join(row, info) is worker
    assert worker.eligible
    made.fleet.mark(row.uid, ready=True, draining=True)
    assert not worker.eligible
    made.fleet.mark(row.uid, ready=True, draining=False)
    assert worker.eligible, "taking the mark away cancels the drain"
    made.fleet.join(row, replace(info, draining=True))
    assert not worker.eligible, "a worker may say itself that it drains"


def test_rt5_health_rounds_keep_load(made):
    row, info = made.row(), made.info()
    worker = made.fleet.join(row, info)
    charges = [made.fleet.charge(worker, tokens=10, blocks=1) for _ in range(10)]
    for _ in range(50):
        assert made.fleet.join(row, info) is worker
    made.fleet.mark(row.uid, ready=False, draining=False)
    made.fleet.join(row, info)
    made.fleet.suspect(worker)
    made.fleet.join(row, info)
    assert (worker.requests, worker.tokens, worker.blocks) == (10, 100, 10)
    for charge in charges:
        charge.release()
        charge.release()
    assert (worker.requests, worker.tokens, worker.blocks) == (0, 0, 0)


def test_rt5_a_prompt_leaves_the_queue_with_its_first_token(made):
    worker = made.worker()
    charge = made.fleet.charge(worker, tokens=10, blocks=1)
    charge.prefilled()
    charge.prefilled()
    assert (worker.requests, worker.tokens, worker.blocks) == (1, 0, 1)
    charge.release()
    charge.prefilled()
    assert (worker.requests, worker.tokens, worker.blocks) == (0, 0, 0)


def test_rt5_a_worker_that_comes_back_keeps_its_load(made):
    row, info = made.row(), made.info()
    worker = made.fleet.join(row, info)
    charge = made.fleet.charge(worker, tokens=10, blocks=1)
    made.fleet.leave(row.uid)
    assert made.fleet.join(row, info) is worker
    assert worker.requests == 1
    charge.release()
    made.fleet.leave(row.uid)
    assert made.fleet.join(row, info).requests == 0


def test_rt5_a_worker_that_comes_back_under_load_is_chosen_again(made):
    row, info = made.row(), made.info()
    worker = made.fleet.join(row, info)
    made.fleet.charge(worker, tokens=10, blocks=1)
    made.fleet.leave(row.uid)
    assert made.fleet.pools(worker.model).colocated == ()
    made.fleet.join(row, info)
    assert made.fleet.pools(worker.model).colocated == (worker,)


def test_rt14_a_restarted_process_is_another_worker(made):
    row = made.row()
    left = []
    made.fleet.on_leave = left.append
    first = made.fleet.join(row, made.info(engine_id="one"))
    charge = made.fleet.charge(first, tokens=1, blocks=1)
    second = made.fleet.join(row, made.info(engine_id="two"))
    assert second is not first
    assert left == [first]
    assert second.requests == 0
    charge.release()
    assert (first.requests, second.requests) == (0, 0)
    assert list(made.fleet.workers) == [second]


def test_a_suspect_worker_comes_back_with_its_next_answer(made):
    row, info = made.row(), made.info()
    worker = made.fleet.join(row, info)
    suspected = []
    made.fleet.on_suspect = suspected.append
    made.fleet.suspect(worker)
    made.fleet.suspect(worker)
    assert suspected == [worker]
    assert not worker.eligible
    made.fleet.join(row, info)
    assert worker.eligible


@pytest.mark.parametrize("name", ["block_tokens", "tokenizer_digest", "template_digest", "hash_digest"])
def test_rt11_a_worker_that_hashes_otherwise_is_refused(made, name):
    made.worker()
    other = replace(made.info(), **{name: 64 if name == "block_tokens" else "another"})
    with pytest.raises(RegistrationRefusedError, match=rf"{name} is (64|another), but w1 has") as caught:
        made.fleet.join(made.row(), other)
    assert caught.value.reason == name
    assert len(list(made.fleet.workers)) == 1
    made.fleet.join(made.row(), replace(other, model="another model"))
    made.fleet.join(made.row(), replace(other, revision="the next one"))


def test_rt11_the_last_worker_takes_its_settings_along(made):
    worker = made.worker()
    made.fleet.leave(worker.key.uid)
    assert made.worker(block_tokens=64).eligible


def test_a_worker_of_another_role_than_discovery_says_is_refused(made):
    with pytest.raises(RegistrationRefusedError, match="says it is decode, discovery says prefill"):
        made.fleet.join(made.row(Role.PREFILL), made.info(Role.DECODE))


def test_rt16_churn_leaves_nothing_behind(made):
    fleet = made.fleet
    empty = sizes(fleet)
    for _ in range(500):
        worker = made.worker()
        fleet.pools(MODEL)
        charge = fleet.charge(worker, tokens=1, blocks=1)
        fleet.leave(worker.key.uid)
        charge.release()
    assert sizes(fleet)["_workers"] == 0
    assert sizes(fleet)["_parked"] == 0
    assert sum(sizes(fleet).values()) - sum(empty.values()) <= 2  # the model's name, and its empty pools


def sizes(fleet):
    return {name: len(value) for name, value in vars(fleet).items() if hasattr(value, "__len__")}


STEPS = st.sampled_from(["charge", "release", "leave", "join", "restart", "suspect", "unready"])


@given(steps=st.lists(st.tuples(STEPS, st.integers(0, 3))))
def test_load_equals_what_is_out_whatever_happens(make_made, steps):
    made = make_made()
    fleet: Fleet = made.fleet
    rows = [made.row() for _ in range(4)]
    infos = [made.info() for _ in range(4)]
    out = []
    for step, number in steps:
        row = rows[number]
        worker = fleet.get(row.uid)
        if step == "join":
            fleet.join(row, infos[number])
        elif step == "restart":
            infos[number] = made.info()
            fleet.join(row, infos[number])
        elif step == "leave":
            fleet.leave(row.uid)
        elif step == "release" and out:
            out.pop(number % len(out)).release()
        elif worker is not None and step == "charge":
            out.append(fleet.charge(worker, tokens=number, blocks=1))
        elif worker is not None and step == "suspect":
            fleet.suspect(worker)
        elif step == "unready":
            fleet.mark(row.uid, ready=False, draining=False)
        for known in fleet.workers:
            assert known.requests == sum(charge.worker is known for charge in out)
            assert known.tokens >= 0
        assert set(fleet.pools(MODEL).colocated) == {w for w in fleet.workers if w.eligible}
    for charge in out:
        charge.release()
    assert all((w.requests, w.tokens, w.blocks) == (0, 0, 0) for w in [*fleet.workers, *(c.worker for c in out)])
