"""Who is computed when: batching policies, orders of the queue, priorities, and what scheduling costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_engine.batching import (
    Admission,
    BatchingConfig,
    BatchingLoop,
    BatchPolicy,
    FirstToken,
    QueueOrder,
    Request,
    Role,
)
from disagg_engine.errors import SettingError
from disagg_engine.kv import CountingLedger
from disagg_engine.timemodel import BatchShape, Chunk, Roofline

Make = Callable[..., BatchingLoop]


def request(name: str, prompt: int = 100, output: int = 10, **more: object) -> Request:
    return Request(request_id=name, prompt_tokens=prompt, max_tokens=output, **more)  # type: ignore[arg-type]


@pytest.fixture
def loop_of(linear_time: type) -> Make:
    def build(capacity: int = 100_000, per_token: float = 0.001, **config: object) -> BatchingLoop:
        return BatchingLoop(
            config=BatchingConfig(**config),  # type: ignore[arg-type]
            time_model=linear_time(per_token=per_token),
            ledger=CountingLedger(capacity_tokens=capacity),
        )

    return build


# ---- static and iteration-level ------------------------------------------------------------------------------------


def test_static_batch_runs_until_all_of_it_are_done(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(policy=BatchPolicy.STATIC))
    run.submit_all([request("short", 100, 5), request("long", 200, 50)])
    run.submit(request("late", 50, 5), at=0.35)
    run.run()
    assert run.tokens["late"][0] > run.tokens["long"][-1]
    first = run.iterations[0].shape
    assert first == BatchShape(chunks=(Chunk(0, 100), Chunk(0, 200)))
    padded = [i.decode_sequences for i in run.iterations[1:50]]
    assert padded == [2] * 49, "the short one is computed along until the long one is done"
    contexts = [i.decode_context_tokens for i in run.iterations[1:50]]
    assert contexts == [300 + 2 * n for n in range(49)]
    assert run.iterations[50].shape == BatchShape(chunks=(Chunk(0, 50),)), "a new batch starts without ballast"
    assert run.iterations[51].shape == BatchShape(decode_sequences=1, decode_context_tokens=50)


def test_static_batch_that_is_cancelled_to_the_last_makes_way(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(policy=BatchPolicy.STATIC))
    run.submit_all([request("a", 100, 500), request("b", 100, 500)])
    run.submit(request("c", 100, 5), at=0.1)
    for name in "ab":
        run.at(1.0, lambda now, name=name: run.loop.cancel(name, now=now))
    run.run()
    assert 1.0 < run.tokens["c"][0] < 1.2
    assert run.iterations[-1].decode_sequences == 1


def test_iteration_level_takes_whole_prompts_beside_the_decodes(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(policy=BatchPolicy.ITERATION, chunk_tokens=16, max_batched_tokens=16))
    run.submit(request("runs", 100, 20))
    run.submit_all([request("joins", 3000, 5), request("too", 500, 5)], at=0.15)
    run.run()
    mixed = [i for i in run.iterations if i.chunks and i.decode_sequences]
    assert [i.chunks for i in mixed] == [(Chunk(0, 3000), Chunk(0, 500))], "no budget cuts or holds them"
    gaps = [after - before for before, after in pairwise(run.tokens["runs"])]
    assert len(gaps) == 19, "the decode is part of it, however long it gets"
    assert max(gaps) == pytest.approx(0.01 + 3.501)


def test_iteration_level_beats_static_and_static_wastes_what_it_pads(opt13b: Roofline, driver: type) -> None:
    """ORCA's point: requests of unlike length leave a static batch idle long before it ends."""
    ends = {}
    for policy in (BatchPolicy.STATIC, BatchPolicy.ITERATION):
        loop = BatchingLoop(
            config=BatchingConfig(policy=policy), time_model=opt13b, ledger=CountingLedger(capacity_tokens=58_594)
        )
        run = driver(loop)
        run.submit_all((request(str(n), 512, 8 if n % 8 else 400) for n in range(400)), every=0.01)
        run.run()
        ends[policy] = run.clock
    assert ends[BatchPolicy.STATIC] > 1.5 * ends[BatchPolicy.ITERATION]


@pytest.mark.parametrize("policy", [BatchPolicy.ITERATION, BatchPolicy.CHUNKED])
def test_wb9_policies_that_mix_leave_no_decode_out(policy: BatchPolicy, loop_of: Make, driver: type) -> None:
    run = driver(loop_of(capacity=10**9, per_token=0.0001, policy=policy, max_sequences=1000))
    run.submit(request("victim", 100, 20))
    run.submit_all([request(str(n), 2048, 2) for n in range(60)], at=0.05, every=0.5)
    run.run(until=100)
    times = run.tokens["victim"]
    longest = max(i.end_seconds - i.start_seconds for i in run.iterations)
    assert len(times) == 20
    assert max(after - before for before, after in pairwise(times)) <= longest + 1e-9


# ---- orders of the queue -------------------------------------------------------------------------------------------


def first_tokens(run: object, prefix: str) -> list[float]:
    return [times[0] for name, times in run.tokens.items() if name.startswith(prefix)]  # type: ignore[attr-defined]


def test_fcfs_makes_a_convoy_behind_a_long_prompt(loop_of: Make, driver: type) -> None:
    """One prompt of 30 s holds up a hundred of 0.1 s; shortest first lets them by, and the long one hardly waits."""
    means, longs = {}, {}
    for order in (QueueOrder.FCFS, QueueOrder.SHORTEST_FIRST):
        run = driver(loop_of(role=Role.PREFILL, queue_order=order, ageing_seconds_per_token=0.01))
        run.submit(request("head", 200, 1))
        run.submit(request("long", 30_000, 1), at=0.01)
        run.submit_all([request(f"short{n}", 100, 1) for n in range(100)], at=0.02, every=0.001)
        run.run()
        means[order] = mean(first_tokens(run, "short"))
        longs[order] = run.tokens["long"][0]
    assert means[QueueOrder.FCFS] > 30
    assert means[QueueOrder.SHORTEST_FIRST] < 10
    assert longs[QueueOrder.SHORTEST_FIRST] < longs[QueueOrder.FCFS] + 12


def test_ageing_starves_nobody_where_pure_shortest_first_would(loop_of: Make, driver: type) -> None:
    """Short prompts come faster than they can be computed, for ever; the long one's turn comes all the same."""
    run = driver(loop_of(role=Role.PREFILL, queue_order=QueueOrder.SHORTEST_FIRST, ageing_seconds_per_token=0.01))
    run.submit(request("long", 2_000, 1), at=0.05)
    run.submit_all([request(f"short{n}", 500, 1) for n in range(400)], every=0.25)  # each takes 0.51 s
    run.run(until=60.0)
    # Overtaken by those of (2,000 − 500) · 0.01 = 15 s, some sixty, which take half a second each.
    assert 15.0 < run.tokens["long"][0] < 15.0 / 0.25 * 0.51 + 2.6


@settings(max_examples=60)
@given(
    prompts=st.lists(st.tuples(st.integers(1, 400), st.integers(0, 100)), min_size=2, max_size=30),
    ageing=st.sampled_from([0.0, 0.001, 0.01]),
    order=st.sampled_from([QueueOrder.SHORTEST_FIRST, QueueOrder.PREEMPTIVE]),
)
def test_nobody_is_overtaken_from_beyond_the_ageing_span(
    prompts: list[tuple[int, int]], ageing: float, order: QueueOrder, linear_time: type, driver: type
) -> None:
    """Whoever came more than ageing · (my tokens − theirs) after me starts after me."""
    loop = BatchingLoop(
        config=BatchingConfig(role=Role.PREFILL, queue_order=order, ageing_seconds_per_token=ageing, fill_tokens=1),
        time_model=linear_time(),
        ledger=CountingLedger(capacity_tokens=100_000),
    )
    run = driver(loop)
    clock, arrivals = 0.0, []
    for number, (tokens, gap) in enumerate(prompts):
        clock += gap * 0.00137
        arrivals.append(clock)
        run.submit(request(str(number), tokens, 1), at=clock)
    run.run()
    for mine, (my_tokens, _) in enumerate(prompts):
        for other in range(mine + 1, len(prompts)):
            allowed = ageing * (my_tokens - prompts[other][0])
            if arrivals[other] - arrivals[mine] > allowed + 1e-9:
                assert run.tokens[str(mine)][0] < run.tokens[str(other)][0]


def test_preemptive_order_interrupts_a_long_prompt_between_its_chunks(loop_of: Make, driver: type) -> None:
    """The interrupted one keeps its KV: nothing is computed twice."""
    waits = {}
    for order in (QueueOrder.SHORTEST_FIRST, QueueOrder.PREEMPTIVE):
        run = driver(loop_of(policy=BatchPolicy.CHUNKED, queue_order=order, ageing_seconds_per_token=0.01))
        run.submit(request("long", 8_192, 1))
        run.submit(request("short", 100, 1), at=1.0)
        run.run()
        waits[order] = run.tokens["short"][0] - 1.0
        assert sum(work.new_tokens for work in run.works) == 8_292
        assert run.preempted == []
    assert waits[QueueOrder.SHORTEST_FIRST] > 7.0, "admission order alone does not interrupt"
    assert waits[QueueOrder.PREEMPTIVE] < 2 * 0.522 + 1e-9, "at most the chunk under way and its own"


def test_preemptive_order_ages_as_well(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(policy=BatchPolicy.CHUNKED, queue_order=QueueOrder.PREEMPTIVE, ageing_seconds_per_token=0.001))
    run.submit(request("long", 4_096, 1))
    run.submit_all([request(f"short{n}", 500, 1) for n in range(100)], at=0.1, every=0.4)
    run.run()
    assert run.tokens["long"][0] < 20.0 < run.tokens["short99"][0]


def test_a_late_driver_lets_nobody_in_before_it_came(linear_time: type) -> None:
    """The queue was asked about a later time already: a transfer was looked for when the short request came."""
    loop = BatchingLoop(
        config=BatchingConfig(
            queue_order=QueueOrder.SHORTEST_FIRST, max_batched_tokens=1, ageing_seconds_per_token=1.0
        ),
        time_model=linear_time(),
        ledger=CountingLedger(capacity_tokens=1_000),
    )
    loop.submit(request("a", 90, 1), now=0.0)
    end = loop.plan(now=0.0).iteration.end_seconds  # type: ignore[union-attr]
    loop.submit(request("long", 200, 1), now=end - 0.01)
    loop.submit(request("short", 10, 1), now=end + 0.01)
    loop.start_transfers(now=end + 0.01)
    order = []
    while (due := loop.next_seconds()) is not None:
        order.extend(emission.request_id for done in loop.complete(now=due) for emission in done.emissions)
        loop.plan(now=due)
    assert order == ["a", "long", "short"]


# ---- priorities ----------------------------------------------------------------------------------------------------


def test_higher_priority_goes_first_and_fcfs_within(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(role=Role.PREFILL, fill_tokens=1))
    run.submit(request("runs", 100, 1))
    for number, priority in enumerate((0, 5, 0, 5, -1)):
        run.submit(request(f"{priority}-{number}", 100, 1, priority=priority), at=0.01 * (number + 1))
    run.run()
    assert list(run.tokens) == ["runs", "5-1", "5-3", "0-0", "0-2", "-1-4"]


def test_priority_gets_in_first_but_throws_nobody_out_to_get_in(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(capacity=250))
    run.submit(request("low", 150, 50))
    run.submit(request("waits", 150, 50), at=0.2)
    run.submit(request("high", 150, 50, priority=1), at=0.3)
    run.run()
    assert run.preempted == []
    assert run.tokens["low"][-1] < run.tokens["high"][0] < run.tokens["high"][-1] < run.tokens["waits"][0]


def test_room_is_taken_from_the_lowest_priority_admitted_last(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(capacity=330, admission=Admission.PREEMPT, watermark=0.0))
    run.submit(request("low", 100, 60, priority=-1))
    run.submit(request("old", 100, 60), at=0.01)
    run.submit(request("young", 100, 60), at=0.02)
    run.run()
    assert run.preempted[0] == "low", "although it was admitted first"
    assert "old" not in run.preempted
    assert [len(run.tokens[name]) for name in ("low", "old", "young")] == [60, 60, 60]


def test_a_preempted_request_goes_ahead_of_its_own_priority_only(loop_of: Make, driver: type) -> None:
    run = driver(loop_of(capacity=260, admission=Admission.PREEMPT, watermark=0.0))
    run.submit_all([request("old", 100, 60), request("young", 100, 60)])
    run.submit(request("same", 100, 20), at=0.3)
    run.submit(request("higher", 100, 20, priority=1), at=0.4)
    run.run()
    assert run.preempted[0] == "young"
    second = run.tokens["young"][run.preempted.count("young") * 30 - 1 :]
    assert run.tokens["higher"][0] < second[-1]
    assert run.tokens["young"][-1] < run.tokens["same"][-1]


# ---- what scheduling costs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skipping", [False, True])
def test_sm12_overhead_is_paid_once_a_request(skipping: bool, opt13b: Roofline, driver: type) -> None:
    """0 is the documented default; 2 ms make each lone request's TTFT 2 ms longer and leave its TPOT alone."""
    assert BatchingConfig().scheduling_overhead_seconds == 0.0
    seen = []
    for overhead in (0.0, 0.002):
        loop = BatchingLoop(
            config=BatchingConfig(scheduling_overhead_seconds=overhead),
            time_model=opt13b,
            ledger=CountingLedger(capacity_tokens=58_594),
            event_skipping=skipping,
        )
        run = driver(loop)
        run.submit_all([request(str(n), 512, 20) for n in range(5)], every=10.0)
        run.run()
        seen.append(run.marks)
    for name in map(str, range(5)):
        plain, delayed = seen[0][name], seen[1][name]
        assert delayed[1] - plain[1] == pytest.approx(0.002)
        assert delayed[20] - delayed[1] == pytest.approx(plain[20] - plain[1])


def test_sm12_a_pulled_request_pays_on_its_prefill_instance_alone(loop_of: Make, driver: type) -> None:
    run = driver(
        loop_of(role=Role.DECODE, scheduling_overhead_seconds=0.5),
        pull_seconds=lambda transfer: 0.1,
        first_token=FirstToken.LOGITS,
    )
    run.submit(request("a", 100, 3, remote_kv=True), at=1.0)
    assert run.run().tokens["a"][0] == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ageing_seconds_per_token", -0.1),
        ("ageing_seconds_per_token", float("nan")),
        ("ageing_seconds_per_token", float("inf")),
        ("scheduling_overhead_seconds", -1.0),
        ("scheduling_overhead_seconds", float("nan")),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(SettingError, match=field):
        BatchingConfig(**{field: value})  # type: ignore[arg-type]
