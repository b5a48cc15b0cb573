"""The driver steps through the engine's time, not the wall's."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from disagg_contract.hashing import root_digest
from disagg_contract.openai import Endpoint, Sampling, parse_request
from disagg_contract.tokenizer import default_tokenizer
from disagg_engine.batching import Admission, BatchingConfig, BatchingLoop, Completed, Request, Role, Transfer
from disagg_engine.kv import BlockLedger
from disagg_engine.timemodel.shapes import BatchShape, IterationCost
from disagg_workers.clock import EngineClock
from disagg_workers.contents import ContentStore
from disagg_workers.driver import EngineDriver
from disagg_workers.language import Language
from disagg_workers.sequence import AnswerSequence, Sampled

ROOT = root_digest(model="m")
SAMPLING: Sampling = replace(
    parse_request(Endpoint.COMPLETIONS, b'{"prompt": "x"}').sampling, ignore_eos=True, max_tokens=4
)


class Second:
    """A time model in which every iteration takes a second."""

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        return IterationCost(seconds=1.0, compute_seconds=1.0, memory_seconds=1.0, stage_seconds=1.0, bound="memory")

    def decode_window(self, sequences: int, context_tokens: int, steps: int, /) -> float | None:
        return None


class Recorder:
    """Observer and consumer in one."""

    def __init__(self) -> None:
        self.tokens: list[tuple[str, float | None]] = []
        self.lags: list[float] = []
        self.transfers: list[Transfer] = []
        self.submissions: list[float] = []
        self.ended = asyncio.Event()

    def submitted(self, request: Request, *, now: float) -> None:
        self.submissions.append(now)

    def completed(self, completed: Completed, *, lag_seconds: float, prompt_tokens: int) -> None:
        self.lags.append(lag_seconds)

    def preempted(self, request_id: str, *, now: float) -> None:
        raise AssertionError("no preemption is expected here")

    def sampled(self, sequence: AnswerSequence, sampled: Sampled) -> None:
        self.tokens.append((sequence.request_id, sequence.last_seconds))
        if sampled.finish_reason is not None:
            self.ended.set()

    def transfer_due(self, sequence: AnswerSequence, transfer: Transfer, *, now: float) -> None:
        self.transfers.append(transfer)


class Bench:
    """A driver on a clock that is moved by hand."""

    def __init__(self, *, role: Role = Role.WORKER) -> None:
        self.wall = 0.0
        self.store = ContentStore(block_tokens=4, root=ROOT)
        self.loop = BatchingLoop(
            config=BatchingConfig(role=role, admission=Admission.PREEMPT),
            time_model=Second(),
            ledger=BlockLedger(capacity_tokens=400, block_tokens=4),
        )
        self.seen = Recorder()
        self.driver = EngineDriver(loop=self.loop, clock=EngineClock(monotonic=lambda: self.wall), observer=self.seen)

    def sequence(self, name: str, *, prompt: int = 6, max_tokens: int = 4, **fields: Any) -> AnswerSequence:
        tokenizer = default_tokenizer()
        return AnswerSequence(
            request_id=name,
            index=0,
            prompt=list(range(prompt)),
            max_tokens=max_tokens,
            sampling=replace(SAMPLING, **fields),
            choice=0,
            resumed_tokens=0,
            default_seed=0,
            store=self.store,
            language=Language(tokenizer, mean_tokens=50, sigma=0),
            tokenizer=tokenizer,
        )

    def submit(self, sequence: AnswerSequence, *, remote_kv: bool = False) -> None:
        self.driver.submit(sequence, self.seen, remote_kv=remote_kv, keep_kv=False)

    def run_until_idle(self) -> None:
        while (due := self.driver._next_due()) is not None:
            self.driver.step(due)


def test_however_late_the_wall_is_the_engine_keeps_its_own_time() -> None:
    bench = Bench()
    bench.submit(bench.sequence("a"))
    bench.wall = 100.0
    bench.run_until_idle()
    assert bench.seen.tokens == [("a", 1.0), ("a", 2.0), ("a", 3.0), ("a", 4.0)]
    assert bench.seen.lags == [99.0, 98.0, 97.0, 96.0]


def test_a_request_joins_at_the_time_it_came() -> None:
    bench = Bench()
    bench.submit(bench.sequence("a"))
    bench.driver.step(0.0)
    bench.wall = 1.5
    bench.submit(bench.sequence("b", max_tokens=1))
    bench.run_until_idle()
    # One prefill-first iteration at a time: b's prompt goes before a's third token.
    assert bench.seen.tokens == [("a", 1.0), ("a", 2.0), ("b", 3.0), ("a", 4.0), ("a", 5.0)]
    assert bench.seen.submissions == [0.0, 1.5]


def test_timed_inputs_come_before_the_step_and_in_order() -> None:
    bench = Bench()
    order: list[tuple[str, float]] = []
    for name, at in (("late", 3.0), ("early", 1.0), ("early too", 1.0)):
        bench.driver.at(at, lambda now, name=name: order.append((name, now)))  # type: ignore[misc]
    bench.submit(bench.sequence("a", max_tokens=1))
    bench.driver.step(0.0)
    bench.driver.step(2.0)
    assert order == [("early", 1.0), ("early too", 1.0)]
    assert bench.driver._next_due() == 3.0
    bench.run_until_idle()
    assert order[-1] == ("late", 3.0)


def test_kv_that_arrives_gives_the_first_token_at_once_or_after_a_step() -> None:
    for logits, times in ((b"l" * 16, [5.0, 6.0, 7.0, 8.0]), (None, [6.0, 7.0, 8.0, 9.0])):
        bench = Bench(role=Role.DECODE)
        sequence = bench.sequence("a")
        bench.submit(sequence, remote_kv=True)
        assert [transfer.pull_tokens for transfer in bench.seen.transfers] == [6]
        bench.driver.at(5.0, lambda now, b=bench, s=sequence, z=logits: b.driver.kv_arrived(s, now=now, logits=z))  # type: ignore[misc]
        bench.run_until_idle()
        assert [seconds for _, seconds in bench.seen.tokens] == times


def test_wb11_a_failed_pull_is_computed_without_any_other_input() -> None:
    bench = Bench(role=Role.DECODE)
    sequence = bench.sequence("a")
    bench.submit(sequence, remote_kv=True)
    bench.driver.step(0.0)
    assert bench.driver._next_due() is None
    bench.wall = 3.0
    bench.driver.kv_failed(sequence)
    bench.run_until_idle()
    assert [seconds for _, seconds in bench.seen.tokens] == [4.0, 5.0, 6.0, 7.0]


def test_ap7_a_cancelled_sequence_frees_its_kv_at_once_and_is_never_heard_of_again() -> None:
    bench = Bench()
    sequence = bench.sequence("a")
    bench.submit(sequence)
    bench.driver.step(0.0)
    assert bench.loop.ledger.used_tokens > 0
    assert bench.driver.cancel(sequence)
    assert bench.loop.ledger.used_tokens == 0
    assert not bench.driver.cancel(sequence)
    bench.run_until_idle()
    assert bench.seen.tokens == []
    assert not bench.driver.is_live(sequence)


def test_waiting_prompt_tokens_shrink_as_prompts_are_computed() -> None:
    bench = Bench()
    for name in "abc":
        bench.submit(bench.sequence(name))
    assert bench.driver.waiting_prompt_tokens() == 18
    bench.run_until_idle()
    assert bench.driver.waiting_prompt_tokens() == 0


async def test_an_input_wakes_a_sleeping_driver() -> None:
    bench = Bench()
    running = asyncio.create_task(bench.driver.run())
    await asyncio.sleep(0)
    bench.wall = 50.0
    bench.submit(bench.sequence("a"))
    bench.wall = 100.0
    async with asyncio.timeout(30):
        await bench.seen.ended.wait()
    assert bench.seen.tokens[0] == ("a", 51.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
