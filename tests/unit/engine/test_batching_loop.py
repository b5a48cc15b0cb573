"""The batching loop on a colocated worker: composition, admission, ends, the clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from disagg_engine.batching import Admission, BatchingConfig, BatchingLoop, BatchPolicy, Request
from disagg_engine.errors import (
    ClockError,
    DuplicateRequestError,
    RequestTooLargeError,
    SettingError,
    UnknownRequestError,
)
from disagg_engine.kv import BlockLedger, CountingLedger, KvLedger
from disagg_engine.timemodel import BatchShape, Chunk


def request(name: str, prompt: int = 100, output: int = 10, **more: object) -> Request:
    return Request(request_id=name, prompt_tokens=prompt, max_tokens=output, **more)  # type: ignore[arg-type]


@pytest.fixture
def loop_of(linear_time: type) -> Callable[..., BatchingLoop]:
    def build(ledger: KvLedger | None = None, capacity: int = 10_000, **config: object) -> BatchingLoop:
        return BatchingLoop(
            config=BatchingConfig(**config),  # type: ignore[arg-type]
            time_model=linear_time(),
            ledger=ledger or CountingLedger(capacity_tokens=capacity),
        )

    return build


def test_wb2_request_that_can_never_fit_is_refused_and_blocks_nobody(
    loop_of: Callable[..., BatchingLoop], driver: type
) -> None:
    loop = loop_of(BlockLedger(capacity_tokens=50 * 16, block_tokens=16), admission=Admission.PREEMPT)
    for prompt, output in ((801, 1), (700, 200)):
        with pytest.raises(RequestTooLargeError) as caught:
            loop.submit(request("big", prompt, output), now=0.0)
        assert str(prompt + output - 1) in str(caught.value)
        assert "800" in str(caught.value)
    run = driver(loop)
    run.submit_all([request("a", 784, 17), request("b", 800, 1), request("c", 100, 20)])
    run.run()
    assert {name: len(times) for name, times in run.tokens.items()} == {"a": 17, "b": 1, "c": 20}
    assert (loop.counts().refused, loop.counts().submitted, loop.counts().finished) == (2, 5, 3)


def test_wb2_reserve_counts_prompt_and_output(loop_of: Callable[..., BatchingLoop]) -> None:
    loop = loop_of(capacity=800)
    loop.submit(request("fits", 784, 16), now=0.0)
    with pytest.raises(RequestTooLargeError):
        loop.submit(request("big", 784, 17), now=0.0)


def test_wb2_a_request_lies_on_one_data_parallel_rank(loop_of: Callable[..., BatchingLoop]) -> None:
    """Four ranks of 200 tokens each hold no request of 300, though the instance has room for 800."""
    loop = loop_of(capacity=800, ranks=4)
    with pytest.raises(RequestTooLargeError, match="holds 200 at most"):
        loop.submit(request("big", 284, 16), now=0.0)
    loop.submit(request("fits", 184, 16), now=0.0)
    assert (loop.counts().refused, loop.counts().waiting) == (1, 1)


@pytest.mark.parametrize(
    ("ranks", "prompts", "taken"),
    [
        (1, (4000, 4000), (4000,)),
        (4, (4000,) * 5, (4000,) * 4),
        (2, (300, 300, 200, 300), (300, 300, 200)),
        (2, (4000, 300, 200, 300), (4000, 300, 200)),
    ],
)
def test_each_data_parallel_rank_gets_prompts_up_to_the_limit(
    loop_of: Callable[..., BatchingLoop], ranks: int, prompts: tuple[int, ...], taken: tuple[int, ...]
) -> None:
    loop = loop_of(ranks=ranks, capacity=200_000, max_batched_tokens=512)
    for number, tokens in enumerate(prompts):
        loop.submit(request(str(number), tokens, 2), now=0.0)
    iteration = loop.plan(now=0.0).iteration
    assert iteration is not None
    assert tuple(chunk.new_tokens for chunk in iteration.chunks) == taken


def test_budget_and_sequences_are_those_of_a_rank(loop_of: Callable[..., BatchingLoop]) -> None:
    loop = loop_of(ranks=2, max_sequences=2, policy=BatchPolicy.CHUNKED, chunk_tokens=100, capacity=10_000)
    for number in range(5):
        loop.submit(request(str(number), 1000 if number < 2 else 20, 2), now=0.0)
    chunks = []
    for _ in range(11):
        iteration = loop.plan(now=loop.next_seconds() or 0.0).iteration
        assert iteration is not None
        chunks.append([chunk.new_tokens for chunk in iteration.chunks])
        loop.complete(now=iteration.end_seconds)
    assert chunks[:10] == [[100, 100]] * 10, "a prompt is on one rank, so it gets the budget of one"
    assert (chunks[10], loop.counts().waiting) == ([20, 20], 1), "four at a time, the fifth waits"


def test_prefill_first_never_mixes_and_fills_up_to_the_limit(
    loop_of: Callable[..., BatchingLoop], driver: type
) -> None:
    run = driver(loop_of(max_batched_tokens=2048))
    run.submit_all([request("a", 1000), request("b", 1000), request("c", 1000), request("long", 3000), request("d")])
    run.run()
    prefills = [i.shape.chunks for i in run.iterations if i.shape.chunks]
    assert prefills == [(Chunk(0, 1000), Chunk(0, 1000)), (Chunk(0, 1000),), (Chunk(0, 3000),), (Chunk(0, 100),)]
    assert all(not (i.shape.chunks and i.shape.decode_sequences) for i in run.iterations)


def test_chunked_keeps_to_the_budget_and_counts_decodes_in_it(
    loop_of: Callable[..., BatchingLoop], driver: type
) -> None:
    run = driver(loop_of(policy=BatchPolicy.CHUNKED, chunk_tokens=256))
    run.submit_all([request(str(n), 300, 20) for n in range(8)], every=0.1)
    run.run()
    assert max(i.shape.new_tokens for i in run.iterations) == 256
    mixed = [i for i in run.iterations if i.shape.chunks and i.shape.decode_sequences]
    assert mixed
    assert all(len(times) == 20 for times in run.tokens.values())


def test_sequences_are_limited(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    run = driver(loop_of(max_sequences=3))
    run.submit_all([request(str(n), 10, 5) for n in range(10)])
    run.run()
    assert max(len(c.works) for c in run.completed) == 3
    assert len(run.tokens) == 10


def test_first_come_first_served_nobody_overtakes_who_waits_for_room(
    loop_of: Callable[..., BatchingLoop], driver: type
) -> None:
    run = driver(loop_of(capacity=1000))
    run.submit_all([request("first", 500, 100), request("wide", 800, 100), request("small", 10, 5)])
    run.run()
    assert run.tokens["first"][-1] < run.tokens["wide"][0] <= run.tokens["small"][0]


def test_wb8_timing_does_not_depend_on_the_block_size(linear_time: type, opt13b: object, driver: type) -> None:
    ends = []
    for block in (1, 16, 64):
        loop = BatchingLoop(
            config=BatchingConfig(),
            time_model=opt13b,  # type: ignore[arg-type]
            ledger=BlockLedger(capacity_tokens=64 * 900, block_tokens=block),
        )
        run = driver(loop)
        run.submit_all([request(str(n), 700 + n, 50) for n in range(20)], every=0.05)
        ends.append(run.run().tokens)
    assert ends[0] == ends[1] == ends[2]


def test_wb8_n_tokens_cost_one_prefill_and_n_minus_one_decodes(
    loop_of: Callable[..., BatchingLoop], driver: type
) -> None:
    run = driver(loop_of())
    run.submit(request("a", 100, 17))
    run.run()
    shapes = [i.shape for i in run.iterations]
    assert shapes[0] == BatchShape(chunks=(Chunk(0, 100),))
    assert shapes[1:] == [BatchShape(decode_sequences=1, decode_context_tokens=100 + n) for n in range(16)]


@pytest.mark.parametrize("burst", [1, 2, 5])
def test_wb9_prefill_burst_bounds_the_gap_of_a_running_decode(
    burst: int, loop_of: Callable[..., BatchingLoop], driver: type
) -> None:
    run = driver(loop_of(capacity=10**9, prefill_burst=burst, max_sequences=1000))
    run.submit(request("victim", 100, 20))
    run.submit_all([request(str(n), 2048, 2) for n in range(300)], at=0.05, every=1.0)  # faster than it can prefill
    run.run(until=400)
    times = run.tokens["victim"]
    longest = max(i.end_seconds - i.start_seconds for i in run.iterations)
    assert len(times) == 20
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) <= (burst + 1) * longest
    assert max(gaps) > burst * 2.048, "the bound was needed"


def test_wb9_unbounded_prefill_first_starves_as_documented(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    run = driver(loop_of(capacity=10**9, max_sequences=1000))
    run.submit(request("victim", 100, 20))
    run.submit_all([request(str(n), 2048, 2) for n in range(100)], at=0.05, every=1.0)
    run.run(until=100)
    assert len(run.tokens["victim"]) == 1


def test_wb9_chunked_leaves_no_decode_out(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    run = driver(loop_of(capacity=10**9, policy=BatchPolicy.CHUNKED, max_sequences=1000))
    run.submit(request("victim", 100, 20))
    run.submit_all([request(str(n), 2048, 2) for n in range(100)], at=0.05, every=0.5)
    run.run(until=100)
    times = run.tokens["victim"]
    longest = max(i.end_seconds - i.start_seconds for i in run.iterations)
    assert len(times) == 20
    assert max(after - before for before, after in pairwise(times)) <= longest + 1e-9


@pytest.mark.parametrize("policy", list(BatchPolicy))
def test_sm8_preempted_request_keeps_its_first_token_and_pays_for_the_recomputation(
    policy: BatchPolicy, loop_of: Callable[..., BatchingLoop], driver: type
) -> None:
    run = driver(loop_of(capacity=260, admission=Admission.PREEMPT, policy=policy, watermark=0.0))
    run.submit_all([request("old", 100, 60), request("young", 100, 60)])
    run.run()
    assert run.preempted.count("young") == 1
    assert "old" not in run.preempted
    old, young = run.tokens["old"], run.tokens["young"]
    assert len(old) == len(young) == 60
    assert young[0] == old[0], "its first token was out before the preemption and stays"
    assert young[-1] > old[-1], "it waited"
    recomputed = [w for w in run.works if w.request_id == "young" and w.new_tokens > 100]
    assert len(recomputed) == 1, "prompt and output so far are computed again in one go"
    assert young == sorted(young)


def test_reserve_never_preempts(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    run = driver(loop_of(capacity=260))
    run.submit_all([request("old", 100, 60), request("young", 100, 60)])
    run.run()
    assert run.preempted == []
    assert run.tokens["young"][0] > run.tokens["old"][-1]


def test_watermark_leaves_room_for_those_who_run(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    tight, spare = (
        driver(loop_of(capacity=1000, admission=Admission.PREEMPT, watermark=watermark)) for watermark in (0.0, 0.1)
    )
    for run in (tight, spare):
        run.submit_all([request(str(n), 199, 100) for n in range(20)])
        run.run()
    assert len(spare.preempted) < len(tight.preempted)


def test_wb5_nothing_leaks_at_block_boundaries(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    loop = loop_of(BlockLedger(capacity_tokens=40 * 16, block_tokens=16))
    run = driver(loop)

    def end_early(request_id: str, index: int, seconds: float) -> None:
        how = int(request_id) % 3
        if index == 2 and how == 1:
            loop.finish(request_id, now=seconds)
        if index == 2 and how == 2:
            loop.cancel(request_id, now=seconds)

    run.on_emission = end_early
    totals = (15, 16, 17, 31, 32, 33)
    run.submit_all([request(str(n), totals[n % 6] - 5, 5) for n in range(500)], every=0.2)
    run.run()
    assert loop.ledger.used_tokens == 0
    counts = loop.counts()
    assert (counts.finished, counts.cancelled) == (167 + 167, 166)


def test_wb6_same_prompt_twice_computes_at_most_a_block(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    loop = loop_of(BlockLedger(capacity_tokens=1600, block_tokens=16))
    keys = ("k1", "k2", "k3", "k4")
    run = driver(loop)
    run.submit(request("first", 64, 3, block_keys=keys), at=0.0)
    run.submit(request("again", 64, 3, block_keys=keys), at=1.0)
    run.run()
    work = next(w for w in run.works if w.request_id == "again")
    assert (work.start_tokens, work.new_tokens) == (48, 16)
    assert run.tokens["again"][0] > 1.0
    assert len(run.tokens["again"]) == 3
    assert (loop.counts().prefix_queried_tokens, loop.counts().prefix_hit_tokens) == (128, 48)


@pytest.mark.parametrize("prompt", [4_096, 16_384, 65_536])
def test_wb7_reuse_covers_the_whole_prompt_under_chunking(
    prompt: int, loop_of: Callable[..., BatchingLoop], driver: type
) -> None:
    loop = loop_of(
        BlockLedger(capacity_tokens=200_000, block_tokens=16), policy=BatchPolicy.CHUNKED, chunk_tokens=8_192
    )
    keys = tuple(range(prompt // 16))
    run = driver(loop)
    run.submit(request("first", prompt, 2, block_keys=keys), at=0.0)
    run.submit(request("again", prompt, 2, block_keys=keys), at=1000.0)
    run.run()
    computed = {"first": 0, "again": 0}
    for work in run.works:
        computed[work.request_id] += work.new_tokens
    assert computed == {"first": prompt + 1, "again": 16 + 1}


def test_output_blocks_are_found_by_the_next_turn(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    loop = loop_of(BlockLedger(capacity_tokens=1600, block_tokens=4))
    run = driver(loop)

    def name_blocks(request_id: str, index: int, seconds: float) -> None:
        if request_id == "turn1" and (8 + index) % 4 == 0:
            loop.add_block_keys(request_id, [f"k{(8 + index) // 4}"])

    run.on_emission = name_blocks
    run.submit(request("turn1", 8, 9, block_keys=("k1", "k2")))
    run.submit(request("turn2", 20, 2, block_keys=("k1", "k2", "k3", "k4", "k5")), at=5.0)
    run.run()
    work = next(w for w in run.works if w.request_id == "turn2")
    assert work.start_tokens == 16, "the last output token's KV was never written"


def test_ids_are_unique_while_live_and_free_afterwards(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    run = driver(loop_of())
    run.submit(request("a"))
    run.run(until=0.0)
    with pytest.raises(DuplicateRequestError, match="'a'"):
        run.loop.submit(request("a"), now=0.0)
    run.run()
    assert "a" not in run.loop
    run.submit(request("a"), at=run.clock)
    run.tokens.clear()
    assert len(run.run().tokens["a"]) == 10


def test_unknown_ids_are_named(loop_of: Callable[..., BatchingLoop]) -> None:
    loop = loop_of()
    for call in (loop.cancel, loop.finish, loop.fail, loop.kv_failed):
        with pytest.raises(UnknownRequestError, match="'nobody'"):
            call("nobody", now=0.0)
    assert loop.release("nobody", now=0.0) is False


def test_cancel_anywhere_gives_the_room_back(loop_of: Callable[..., BatchingLoop], driver: type) -> None:
    run = driver(loop_of(capacity=250))
    run.submit_all([request("runs", 100, 50), request("waits", 150, 50)])
    run.at(0.3, lambda now: run.loop.cancel("waits", now=now))
    run.at(0.305, lambda now: run.loop.cancel("runs", now=now))  # in the middle of a decode
    run.run()
    assert run.loop.counts().cancelled == 2
    assert run.loop.ledger.used_tokens == 0
    assert len(run.tokens["runs"]) < 50
    assert run.loop.next_seconds() is None


def test_time_never_runs_back(loop_of: Callable[..., BatchingLoop]) -> None:
    loop = loop_of()
    loop.submit(request("a"), now=1.0)
    loop.plan(now=1.0)
    with pytest.raises(ClockError):
        loop.submit(request("b"), now=0.5)
    with pytest.raises(ClockError):
        loop.plan(now=0.5)


def test_late_driver_does_not_delay_the_engine(loop_of: Callable[..., BatchingLoop]) -> None:
    """A request that arrives while the driver is late takes no part in an iteration that starts before its arrival."""
    loop = loop_of()
    loop.submit(request("a", 90, 3), now=0.0)
    first = loop.plan(now=0.0).iteration
    assert first is not None
    end = first.end_seconds
    loop.submit(request("b", 90, 3), now=end + 0.005)  # the driver handles the end only now
    assert loop.next_seconds() == end
    loop.complete(now=end)
    second = loop.plan(now=end).iteration
    assert second is not None
    third_start = loop.next_seconds()
    assert third_start == second.end_seconds
    assert [work.request_id for done in loop.complete(now=third_start) for work in done.works] == ["a"]
    third = loop.plan(now=third_start).iteration
    assert third is not None
    assert [work.request_id for done in loop.complete(now=third.end_seconds) for work in done.works] == ["b"]


def test_arrival_known_ahead_is_planned_for(loop_of: Callable[..., BatchingLoop]) -> None:
    loop = loop_of()
    loop.submit(request("a"), now=5.0)
    assert loop.plan(now=2.0).iteration is None
    assert loop.next_seconds() == 5.0


def test_slowdown_stretches_iterations(loop_of: Callable[..., BatchingLoop]) -> None:
    loop = loop_of()
    loop.set_slowdown(1.5)
    loop.submit(request("a", 90), now=0.0)
    iteration = loop.plan(now=0.0).iteration
    assert iteration is not None
    assert iteration.end_seconds == pytest.approx(1.5 * 0.1)
    with pytest.raises(SettingError, match="slowdown"):
        loop.set_slowdown(0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_sequences", 0), ("chunk_tokens", 0), ("prefill_burst", 0), ("watermark", 1.0), ("pipeline", 0)],
)
def test_settings_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(SettingError, match=field):
        BatchingConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["prompt_tokens", "max_tokens"])
def test_empty_requests_are_refused(field: str) -> None:
    with pytest.raises(SettingError, match=field):
        Request(**{"request_id": "a", "prompt_tokens": 1, "max_tokens": 1, field: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [BatchPolicy.PREFILL_FIRST, BatchPolicy.CHUNKED])
def test_pipeline_keeps_latency_and_overlaps_batches(policy: BatchPolicy, linear_time: type, driver: type) -> None:
    """Two stages: prompts start every half iteration; decodes run as two micro-batches of half the sequences."""
    loop = BatchingLoop(
        config=BatchingConfig(pipeline=2, max_batched_tokens=100, chunk_tokens=100, policy=policy),
        time_model=linear_time(stages=2),
        ledger=CountingLedger(capacity_tokens=10_000),
    )
    run = driver(loop)
    run.submit_all([request(str(n), 90, 40) for n in range(4)])
    run.run()
    first, second = run.iterations[:2]
    assert second.start_seconds == pytest.approx(first.start_seconds + (first.end_seconds - first.start_seconds) / 2)
    assert second.start_seconds < first.end_seconds
    decodes = [i for i in run.iterations if not i.shape.chunks]
    steady = decodes[10:-10]
    assert {i.shape.decode_sequences for i in steady} == {2}
    assert all(len(times) == 40 for times in run.tokens.values())
    ends = [i.end_seconds for i in run.iterations]
    assert ends == sorted(ends), "a batch never overtakes the one before it"
    for a, b in zip(run.iterations, run.iterations[2:], strict=False):
        assert b.start_seconds >= a.end_seconds - 1e-12, "two stages, two iterations in flight"


def test_pipeline_micro_batches_take_whoever_waited_longest(linear_time: type, driver: type) -> None:
    """With prompts coming in between, every micro-batch could be the same half; nobody may fall behind."""
    loop = BatchingLoop(
        config=BatchingConfig(pipeline=2, max_batched_tokens=100, prefill_burst=1, max_sequences=1000),
        time_model=linear_time(stages=2),
        ledger=CountingLedger(capacity_tokens=10**6),
    )
    run = driver(loop)
    run.submit_all([request(f"old{n}", 10, 400) for n in range(6)])
    run.submit_all([request(f"new{n}", 100, 1) for n in range(400)], at=0.1, every=0.01)
    run.run(until=20.0)
    progress = [len(run.tokens[f"old{n}"]) for n in range(6)]
    assert min(progress) > 50
    assert max(progress) - min(progress) <= 2


@pytest.mark.parametrize("seed", range(30))
def test_pipeline_preemption_of_a_sequence_already_taken(seed: int, linear_time: type, driver: type) -> None:
    """Micro-batches are not in the order of admission: one taken first may be thrown out for one taken later."""
    rng = random.Random(seed)
    loop = BatchingLoop(
        config=BatchingConfig(pipeline=2, admission=Admission.PREEMPT, prefill_burst=1, watermark=0.0),
        time_model=linear_time(stages=2),
        ledger=BlockLedger(capacity_tokens=300, block_tokens=1),
    )
    run = driver(loop)
    lengths = [(rng.randint(1, 60), rng.randint(1, 60)) for _ in range(40)]
    run.submit_all([request(str(n), *lengths[n]) for n in range(40)], every=rng.choice([0.0, 0.01, 0.05]))
    run.run()
    assert [len(run.tokens[str(n)]) for n in range(40)] == [output for _, output in lengths]
    assert run.preempted
