"""Event skipping against the plain stepper: the same tokens, and the same times to 1e-9 s."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

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
from disagg_engine.errors import SettingError, UnknownRequestError
from disagg_engine.kv import AllCleared, BlockLedger, CountingLedger, KvEvent, KvLedger
from disagg_engine.timemodel import Roofline, TimeModel

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Item:
    """One request, and what happens to it: how its pull goes and whether it is ended early."""

    gap: float
    prompt: int
    output: int
    remote: bool
    keep: bool
    shared: int
    fate: str
    after: float
    pull: float | None
    priority: int


times = st.integers(0, 4_000).map(lambda n: n * 0.000_777_7)
"""Off any grid that iterations could end on: at an exact tie, rounding decides which comes first."""

items = st.lists(
    st.builds(
        Item,
        gap=times,
        prompt=st.integers(1, 300),
        output=st.integers(1, 80),
        remote=st.booleans(),
        keep=st.booleans(),
        shared=st.integers(0, 10),
        fate=st.sampled_from(["length", "length", "length", "finish", "cancel", "fail"]),
        after=times,
        pull=st.one_of(st.none(), times),
        priority=st.sampled_from([0, 0, 1, -1]),
    ),
    min_size=1,
    max_size=20,
)

configs = st.builds(
    BatchingConfig,
    role=st.sampled_from(list(Role)),
    policy=st.sampled_from(list(BatchPolicy)),
    admission=st.sampled_from(list(Admission)),
    max_batched_tokens=st.sampled_from([64, 300, 2048]),
    chunk_tokens=st.sampled_from([3, 16, 100, 512]),
    max_sequences=st.sampled_from([1, 3, 256]),
    prefill_burst=st.sampled_from([None, 1, 3]),
    watermark=st.sampled_from([0.0, 0.01, 0.1]),
    queue_order=st.sampled_from(list(QueueOrder)),
    ageing_seconds_per_token=st.sampled_from([0.0, 0.001, 0.1]),
    scheduling_overhead_seconds=st.sampled_from([0.0, 0.0, 0.021_377]),
    pipeline=st.sampled_from([1, 1, 1, 2]),
)


@dataclass
class Outcome:
    """What a run did, as far as both must agree."""

    marks: dict[str, dict[int, float]]
    transfers: list[tuple[str, int]]
    preempted: list[str]
    counts: object
    tokens: int
    gaps: list[float]
    prompts: list[tuple[str, int, int]]
    events: list[tuple[str, str, float]]
    steps: int


def run_once(
    things: list[Item],
    *,
    config: BatchingConfig,
    ledger: Callable[[Callable[[KvEvent], None]], KvLedger],
    time_model: TimeModel,
    first: FirstToken,
    skipping: bool,
    keyed: bool,
    driver: type,
    slow_at: float | None = None,
) -> Outcome:
    events: list[tuple[str, str, float]] = []

    def heard(event: KvEvent) -> None:
        if not isinstance(event, AllCleared):
            events.extend((type(event).__name__, str(key), run.clock) for key in event.keys)

    room = ledger(heard)
    loop = BatchingLoop(config=config, time_model=time_model, ledger=room, event_skipping=skipping, record_gaps=True)
    by_name = {str(n): item for n, item in enumerate(things)}
    run = driver(loop, pull_seconds=lambda transfer: by_name[transfer.request_id].pull, first_token=first)
    block = room.block_tokens

    def submit(name: str, item: Item, now: float) -> None:
        whole = (item.prompt + item.output) // block if keyed else 0
        request = Request(
            request_id=name,
            prompt_tokens=item.prompt,
            max_tokens=item.output,
            block_keys=tuple(("common", n) if n < item.shared else (name, n) for n in range(whole)),
            remote_kv=item.remote,
            keep_kv=item.keep,
            priority=item.priority,
        )
        if loop.needed_tokens(request) > room.capacity_tokens:
            return
        loop.submit(request, now=now)
        if item.fate != "length":
            run.at(now + item.after, lambda then: getattr(loop, item.fate)(name, now=then) if name in loop else None)

    def give_up(name: str, now: float) -> None:
        if by_name[name].pull is None:
            with suppress(UnknownRequestError):
                loop.kv_failed(name, now=now)
        loop.release(name, now=now)

    clock = 0.0
    for name, item in by_name.items():
        clock += item.gap
        run.at(clock, lambda now, name=name, item=item: submit(name, item, now))
    for number in range(60):  # pulls that never come are given up, and pins let go
        for name in by_name:
            run.at(3.3333 * number + 0.0371 * int(name), lambda now, name=name: give_up(name, now))
    if slow_at is not None:
        run.at(slow_at, lambda now: loop.set_slowdown(1.7, now=now))
    run.run()
    marks = {
        name: {i: t for i, t in tokens.items() if i == 1 or i == by_name[name].output}
        for name, tokens in run.marks.items()
    }
    return Outcome(
        marks={name: tokens for name, tokens in marks.items() if tokens},
        transfers=[(t.request_id, t.cached_tokens) for t in run.transfers],
        preempted=run.preempted,
        counts=loop.counts(),
        tokens=sum(done.tokens for done in run.completed),
        gaps=sorted(seconds for done in run.completed for seconds, count in done.gaps for _ in range(count)),
        prompts=[(w.request_id, w.start_tokens, w.new_tokens) for w in run.works if w.new_tokens > 1],
        events=sorted(events),
        steps=sum(iteration.steps for iteration in run.iterations),
    )


def assert_alike(stepped: Outcome, skipped: Outcome) -> None:
    assert skipped.marks.keys() == stepped.marks.keys()
    for name, tokens in stepped.marks.items():
        assert skipped.marks[name] == pytest.approx(tokens, abs=TOLERANCE)
    assert skipped.transfers == stepped.transfers
    assert skipped.preempted == stepped.preempted
    assert skipped.counts == stepped.counts
    assert skipped.tokens == stepped.tokens
    assert skipped.gaps == pytest.approx(stepped.gaps, abs=TOLERANCE)
    assert skipped.prompts == stepped.prompts
    assert skipped.steps == stepped.steps
    assert [event[:2] for event in skipped.events] == [event[:2] for event in stepped.events]
    assert [event[2] for event in skipped.events] == pytest.approx([e[2] for e in stepped.events], abs=TOLERANCE)


@settings(max_examples=150)
@given(
    things=items,
    config=configs,
    first=st.sampled_from(list(FirstToken)),
    block=st.sampled_from([1, 4, 16]),
    counting=st.booleans(),
    keyed=st.booleans(),
    listening=st.booleans(),
    real=st.booleans(),
    capacity=st.sampled_from([400, 640, 5_000]),
    slow_at=st.one_of(st.none(), times),
)
def test_windows_give_the_steppers_tokens_and_times(
    things: list[Item],
    config: BatchingConfig,
    first: FirstToken,
    block: int,
    counting: bool,
    keyed: bool,
    listening: bool,
    real: bool,
    capacity: int,
    slow_at: float | None,
    linear_time: type,
    opt13b: Roofline,
    driver: type,
) -> None:
    def ledger(listener: Callable[[KvEvent], None]) -> KvLedger:
        if counting:
            return CountingLedger(capacity_tokens=capacity, block_tokens=block)
        return BlockLedger(capacity_tokens=capacity, block_tokens=block, listener=listener if listening else None)

    closed = not real and config.pipeline == 1
    made = linear_time(per_context=0.000_001, stages=config.pipeline, closed_form=closed)
    stepped, skipped = (
        run_once(
            things,
            config=config,
            ledger=ledger,
            time_model=opt13b if real else made,
            first=first,
            skipping=skipping,
            keyed=keyed,
            driver=driver,
            slow_at=slow_at,
        )
        for skipping in (False, True)
    )
    assert_alike(stepped, skipped)


def test_a_lone_request_takes_three_iterations(opt13b: Roofline, driver: type) -> None:
    """Its prompt, and a window for all its decodes up to the bend of the roofline, if one is on the way."""
    loop = BatchingLoop(
        config=BatchingConfig(),
        time_model=opt13b,
        ledger=CountingLedger(capacity_tokens=10_000),
        event_skipping=True,
    )
    run = driver(loop)
    run.submit(Request(request_id="a", prompt_tokens=512, max_tokens=500))
    run.run()
    assert [iteration.steps for iteration in run.iterations] == [1, 499]
    assert [done.tokens for done in run.completed] == [1, 499]
    assert set(run.marks["a"]) == {1, 500}


def test_inputs_that_cannot_matter_cut_nothing(opt13b: Roofline, driver: type) -> None:
    """The first one takes the whole pool: those behind it wait, come and go without a new plan."""
    loop = BatchingLoop(
        config=BatchingConfig(), time_model=opt13b, ledger=CountingLedger(capacity_tokens=1_000), event_skipping=True
    )
    run = driver(loop)
    run.submit(Request(request_id="large", prompt_tokens=500, max_tokens=500))
    run.submit_all((Request(request_id=str(n), prompt_tokens=100, max_tokens=1) for n in range(9)), at=1.0, every=0.3)
    run.at(2.05, lambda now: loop.cancel("3", now=now))
    run.run()
    assert [iteration.steps for iteration in run.iterations[:2]] == [1, 499]


def test_a_slowdown_within_a_window_needs_its_time(opt13b: Roofline) -> None:
    loop = BatchingLoop(
        config=BatchingConfig(), time_model=opt13b, ledger=CountingLedger(capacity_tokens=1_000), event_skipping=True
    )
    loop.submit(Request(request_id="a", prompt_tokens=10, max_tokens=100), now=0.0)
    for _ in range(2):
        due = loop.next_seconds()
        assert due is not None
        loop.complete(now=due)
        loop.plan(now=due)
    with pytest.raises(SettingError, match="now"):
        loop.set_slowdown(2.0)


def test_a_window_tells_when_each_of_its_steps_ends(opt13b: Roofline, driver: type) -> None:
    ends = []
    for skipping in (False, True):
        loop = BatchingLoop(
            config=BatchingConfig(),
            time_model=opt13b,
            ledger=CountingLedger(capacity_tokens=50_000),
            event_skipping=skipping,
        )
        run = driver(loop)
        run.submit_all((Request(request_id=str(n), prompt_tokens=300, max_tokens=60 + n) for n in range(8)), every=0.2)
        run.run()
        ends.append([end for iteration in run.iterations for end in iteration.step_ends()])
        numbers = [iteration.number for iteration in run.iterations]
        assert all(
            after == before.number + before.steps for before, after in zip(run.iterations, numbers[1:], strict=False)
        )
    assert ends[1] == pytest.approx(ends[0], abs=TOLERANCE)
    assert len(run.iterations) < len(ends[1]) / 4
