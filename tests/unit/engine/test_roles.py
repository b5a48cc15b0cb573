"""Prefill and decode roles: pinned KV, pulls, who emits the first token."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from disagg_engine.batching import (
    Admission,
    BatchingConfig,
    BatchingLoop,
    FirstToken,
    Request,
    Role,
    Transfer,
)
from disagg_engine.errors import UnknownRequestError
from disagg_engine.kv import BlockLedger, CountingLedger
from disagg_engine.timemodel import BatchShape, Chunk

Make = Callable[..., BatchingLoop]


def prompt(name: str, tokens: int = 100, **more: object) -> Request:
    return Request(request_id=name, prompt_tokens=tokens, max_tokens=1, keep_kv=True, **more)  # type: ignore[arg-type]


def pulled(name: str, tokens: int = 100, output: int = 10, **more: object) -> Request:
    return Request(request_id=name, prompt_tokens=tokens, max_tokens=output, remote_kv=True, **more)  # type: ignore[arg-type]


@pytest.fixture
def loop_of(linear_time: type) -> Make:
    def build(role: Role, capacity: int = 10_000, block: int = 1, **config: object) -> BatchingLoop:
        return BatchingLoop(
            config=BatchingConfig(role=role, **config),  # type: ignore[arg-type]
            time_model=linear_time(),
            ledger=BlockLedger(capacity_tokens=capacity, block_tokens=block)
            if block > 1
            else CountingLedger(capacity_tokens=capacity),
        )

    return build


def test_prefill_role_batches_short_prompts_up_to_the_fill_target(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(Role.PREFILL))
    run.submit_all([prompt(str(n), 200) for n in range(4)] + [prompt("long", 1500), prompt("last", 100)])
    run.run()
    assert [len(i.shape.chunks) for i in run.iterations] == [2, 2, 1, 1]


def test_kv7_finished_prompts_stay_pinned_until_released(loop_of: Make, driver: type) -> None:
    """A full pool makes new prompts wait; no pinned block changes hands before its release."""
    loop = loop_of(Role.PREFILL, capacity=10 * 16, block=16)
    run = driver(loop)
    run.submit_all([prompt("a", 79), prompt("b", 79), prompt("flood", 79)])
    run.run()
    assert set(run.tokens) == {"a", "b"}
    assert (loop.counts().finished, loop.counts().holding, loop.counts().waiting) == (2, 2, 1)
    pinned = {name: tuple(loop.block_ids(name)) for name in ("a", "b")}
    assert loop.next_seconds() is None, "nothing to do but wait for a release"
    assert loop.holds("a")
    run.at(100.0, lambda now: loop.release("a", now=now))
    run.run()
    assert run.iterations[-1].start_seconds == 100.0
    assert tuple(loop.block_ids("b")) == pinned["b"]
    assert not set(loop.block_ids("flood")) & set(pinned["b"])
    assert not loop.holds("a")
    assert loop.release("a", now=101.0) is False, "acknowledgement and lease may both come"


def test_kv7_pinned_prefix_is_shared_not_evicted(loop_of: Make, driver: type) -> None:
    loop = loop_of(Role.PREFILL, capacity=10 * 16, block=16)
    run = driver(loop)
    keys = tuple(f"k{n}" for n in range(4))
    run.submit(prompt("a", 64, block_keys=keys))
    run.submit(prompt("b", 64, block_keys=keys), at=1.0)
    run.run()
    shared = set(loop.block_ids("a")) & set(loop.block_ids("b"))
    assert len(shared) == 3
    loop.release("a", now=2.0)
    assert shared <= set(loop.block_ids("b"))


def test_wb5_both_roles_end_empty(loop_of: Make, driver: type) -> None:
    prefill, decode = loop_of(Role.PREFILL, capacity=1600, block=16), loop_of(Role.DECODE, capacity=1600, block=16)
    run = driver(prefill)
    run.on_emission = lambda name, index, seconds: run.at(seconds + 0.5, lambda now: prefill.release(name, now=now))
    sizes = (15, 16, 17, 31, 32, 33)
    run.submit_all([prompt(str(n), sizes[n % 6]) for n in range(500)], every=0.05)
    run.run()
    other = driver(decode, pull_seconds=lambda transfer: 0.01)
    other.submit_all([pulled(str(n), sizes[n % 6], 1 + n % 18) for n in range(500)], every=0.05)
    other.run()
    assert prefill.ledger.used_tokens == decode.ledger.used_tokens == 0
    assert prefill.counts().finished == decode.counts().finished == 500
    assert [len(other.tokens[str(n)]) for n in range(500)] == [1 + n % 18 for n in range(500)]


@pytest.mark.parametrize(
    ("first_token", "steps", "first_at"),
    [(FirstToken.LOGITS, 9, 0.5), (FirstToken.STEP, 10, 0.511), (FirstToken.PREFILL, 9, None)],
)
def test_who_emits_the_first_token(
    first_token: FirstToken, steps: int, first_at: float | None, loop_of: Make, driver: type
) -> None:
    """Own logits: the first token costs nothing. Foreign KV: one step. Emitted by prefill: the second is next."""
    run = driver(loop_of(Role.DECODE), pull_seconds=lambda transfer: 0.5, first_token=first_token)
    run.submit(pulled("a", 100, 10))
    times = run.run().tokens["a"]
    assert len(times) == 10
    assert len(run.iterations) == steps
    if first_at is not None:
        assert times[0] == pytest.approx(first_at)
    assert run.iterations[0].start_seconds == 0.5
    context = 99 if first_token is FirstToken.STEP else 100
    assert run.iterations[0].shape == BatchShape(decode_sequences=1, decode_context_tokens=context)


@pytest.mark.parametrize("first_token", [FirstToken.LOGITS, FirstToken.STEP])
@pytest.mark.parametrize("tokens", [1, 16, 17])
def test_one_token_answers_end_after_the_pull(
    first_token: FirstToken, tokens: int, loop_of: Make, driver: type
) -> None:
    run = driver(loop_of(Role.DECODE, block=16), pull_seconds=lambda transfer: 0.1, first_token=first_token)
    run.submit(pulled("a", tokens, 1))
    run.run()
    assert len(run.tokens["a"]) == 1
    assert run.loop.counts().finished == 1
    assert run.loop.ledger.used_tokens == 0


def test_room_is_reserved_before_the_pull_and_queueing_is_no_failure(loop_of: Make, driver: type) -> None:
    """KV11's engine side: a burst larger than the decode window queues; each pull starts when it has room."""
    run = driver(loop_of(Role.DECODE, max_sequences=4), pull_seconds=lambda transfer: 0.2)
    run.submit_all([pulled(str(n), 100, 50) for n in range(32)])
    run.run(until=0.1)
    assert len(run.transfers) == 4
    run.run()
    assert len(run.transfers) == 32
    assert run.loop.counts().finished == 32


def test_transfers_start_while_an_iteration_runs(loop_of: Make) -> None:
    loop = loop_of(Role.DECODE)
    loop.submit(Request(request_id="local", prompt_tokens=90, max_tokens=5), now=0.0)
    assert loop.plan(now=0.0).iteration is not None
    loop.submit(pulled("remote"), now=0.05)
    assert loop.start_transfers(now=0.05) == (Transfer(request_id="remote", prompt_tokens=100, cached_tokens=0),)
    assert loop.start_transfers(now=0.06) == (), "each is told once"


def test_late_driver_gives_no_room_to_a_pull_before_its_arrival(loop_of: Make) -> None:
    loop = loop_of(Role.DECODE)
    loop.submit(pulled("a"), now=5.0)
    assert loop.plan(now=2.0).transfers == ()
    assert loop.next_seconds() == 5.0
    assert len(loop.plan(now=5.0).transfers) == 1


def test_local_prefix_shortens_the_pull(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(Role.DECODE, block=16), pull_seconds=lambda transfer: 0.1)
    keys = ("a", "b", "c")
    run.submit(pulled("first", 60, 2, block_keys=keys))
    run.submit(pulled("again", 60, 2, block_keys=keys), at=1.0)
    run.run()
    assert [(t.cached_tokens, t.pull_tokens) for t in run.transfers] == [(0, 60), (48, 12)]


def test_wb11_failed_pull_is_computed_here_without_other_traffic(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(Role.DECODE), pull_seconds=lambda transfer: None)
    run.submit(pulled("a", 100, 3))
    run.at(0.7, lambda now: run.loop.kv_failed("a", now=now))
    run.run()
    assert run.iterations[0].start_seconds == 0.7
    assert run.iterations[0].shape == BatchShape(chunks=(Chunk(0, 100),))
    assert run.tokens["a"][0] == pytest.approx(0.7 + 0.11)
    assert len(run.tokens["a"]) == 3


def test_wb11_release_finish_and_cancel_wake_an_idle_loop(loop_of: Make) -> None:
    for wake in ("release", "cancel"):
        loop = loop_of(Role.PREFILL, capacity=150)
        loop.submit(prompt("a"), now=0.0)
        loop.submit(prompt("b"), now=0.0)
        end = loop.plan(now=0.0).iteration.end_seconds  # type: ignore[union-attr]
        loop.complete(now=end)
        assert loop.plan(now=end).iteration is None
        assert loop.next_seconds() is None
        getattr(loop, wake)("a", now=end + 1)
        assert loop.next_seconds() == end + 1
        assert loop.plan(now=end + 1).iteration is not None


def test_failed_pull_can_fail_the_request(loop_of: Make) -> None:
    loop = loop_of(Role.DECODE)
    loop.submit(pulled("a"), now=0.0)
    loop.start_transfers(now=0.0)
    loop.fail("a", now=0.5)
    assert (loop.counts().failed, loop.ledger.used_tokens) == (1, 0)
    with pytest.raises(UnknownRequestError):
        loop.kv_arrived("a", now=0.6, first_token=FirstToken.LOGITS)


def test_cancel_while_pulling_gives_the_room_back(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(Role.DECODE), pull_seconds=lambda transfer: 0.5)
    run.submit_all([pulled("a"), pulled("b")])
    run.at(0.2, lambda now: run.loop.cancel("a", now=now))
    run.run()
    assert "a" not in run.tokens
    assert len(run.tokens["b"]) == 10
    assert run.loop.ledger.used_tokens == 0


def test_wb9_pulls_leave_running_decodes_alone(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(Role.DECODE, capacity=10**6), pull_seconds=lambda transfer: 0.05)
    run.submit(pulled("victim", 100, 200))
    run.submit_all([pulled(str(n), 2048, 20) for n in range(200)], at=0.5, every=0.02)
    run.run()
    longest = max(i.end_seconds - i.start_seconds for i in run.iterations)
    gaps = [after - before for before, after in pairwise(run.tokens["victim"])]
    assert max(gaps) <= longest + 1e-9
    assert not any(i.shape.chunks for i in run.iterations)


def test_preempted_pulled_request_is_recomputed_here(loop_of: Make, driver: type) -> None:
    run = driver(
        loop_of(Role.DECODE, capacity=250, admission=Admission.PREEMPT, watermark=0.0),
        pull_seconds=lambda transfer: 0.1,
    )
    run.submit_all([pulled("old", 100, 40), pulled("young", 100, 40)])
    run.run()
    assert run.preempted == ["young"]
    assert len(run.transfers) == 2
    assert [len(run.tokens[name]) for name in ("old", "young")] == [40, 40]


def test_finish_of_a_kept_request_pins_it(loop_of: Make, driver: type) -> None:
    loop = loop_of(Role.PREFILL)
    run = driver(loop)
    run.on_emission = lambda name, index, seconds: loop.finish(name, now=seconds) if index == 2 else None
    run.submit(Request(request_id="a", prompt_tokens=50, max_tokens=5, keep_kv=True))
    run.run()
    assert len(run.tokens["a"]) == 2
    assert loop.holds("a")
    loop.cancel("a", now=9.0)
    assert not loop.holds("a")
    assert loop.ledger.used_tokens == 0
    assert loop.counts().finished == 1
