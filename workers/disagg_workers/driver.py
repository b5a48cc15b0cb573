"""Runs the engine's loop on the real clock: the only place that completes and plans iterations.

What flows in: requests, cancellations and timed inputs (the arrival of KV). What flows out: sampled tokens, transfers
to start, stamped iterations. Every step is made with the engine time at which it was due, however late the wall clock
is, so the engine's timeline is the one a simulation would give; the lateness is measured and reported, never hidden.

The driver sleeps until the earliest of the loop's next event and the next timed input; any input wakes it. Timed inputs
due before a step are delivered before it, in order of their time, then of their scheduling.
"""

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any, Literal, Protocol

from disagg_engine.batching import BatchingLoop, Completed, Counts, Emission, FirstToken, Request, Transfer
from disagg_workers.alarm import Alarm
from disagg_workers.clock import EngineClock
from disagg_workers.sequence import AnswerSequence, Sampled


class Consumer(Protocol):
    """Who gets what becomes of one sequence."""

    def sampled(self, sequence: AnswerSequence, sampled: Sampled) -> None:
        """A token. After one with a finish_reason nothing more comes."""

    def transfer_due(self, sequence: AnswerSequence, transfer: Transfer, *, now: float) -> None:
        """Room is reserved since engine time ``now``: pull the prompt's KV."""


Input = Literal["pulled", "pull-failed", "finish", "cancel", "release"]
"""What the loop is told of a request after its submission."""


class Observer(Protocol):
    """Who watches iterations: metrics."""

    def submitted(self, request: Request, *, now: float) -> None:
        """A request entered the loop."""

    def completed(self, completed: Completed, *, lag_seconds: float, prompt_tokens: int) -> None:
        """An iteration ended, ``lag_seconds`` of engine time before it was noticed.

        ``prompt_tokens`` counts the prompt tokens (of first computations and recomputations) among its work.
        """

    def preempted(self, request_id: str, *, now: float) -> None:
        """A sequence lost its blocks."""


class Record(Protocol):
    """Who is told of every call of the loop, in order: the iteration log."""

    def submitted(self, request: Request, *, now: float) -> None:
        """A request entered the loop."""

    def told(self, what: Input, request_id: str, *, now: float, **detail: Any) -> None:
        """Something else about a request."""

    def blocks(self, request_id: str, keys: Sequence[Hashable]) -> None:
        """A request's output has completed blocks of these keys."""

    def slowed(self, factor: float, *, now: float) -> None:
        """Iterations take that many times as long from now on."""

    def completed(self, completed: Completed, *, lag_seconds: float) -> None:
        """An iteration ended; what follows from its tokens comes after it."""

    def planned(self, *, now: float) -> None:
        """The loop is asked for its next iteration."""

    def preempted(self, request_id: str, *, now: float) -> None:
        """A sequence lost its blocks to that iteration."""


class EngineDriver:
    """See the module's text. Not thread-safe: everything happens on one event loop. ``record`` costs time and disk."""

    def __init__(
        self, *, loop: BatchingLoop, clock: EngineClock, observer: Observer, record: Record | None = None
    ) -> None:
        self.loop = loop
        self.clock = clock
        self._observer = observer
        self._record = record
        self._live: dict[str, tuple[AnswerSequence, Consumer]] = {}
        self._timed: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._last_submit = 0.0
        self._waiter: asyncio.Future[None] | None = None

    # ---- inputs ------------------------------------------------------------------------------------------------

    def submit(self, sequence: AnswerSequence, consumer: Consumer, *, remote_kv: bool, keep_kv: bool) -> None:
        """Queue a sequence now. Raises RequestTooLargeError if it can never fit."""
        now = max(self.clock.now(), self._last_submit)
        request = Request(
            request_id=sequence.request_id,
            prompt_tokens=sequence.prompt_tokens,
            max_tokens=sequence.max_tokens,
            block_keys=sequence.block_keys,
            remote_kv=remote_kv,
            keep_kv=keep_kv,
        )
        self.loop.submit(request, now=now)
        self._last_submit = now
        self._live[sequence.request_id] = (sequence, consumer)
        self._observer.submitted(request, now=now)
        if self._record is not None:
            self._record.submitted(request, now=now)
        self._start_transfers(now=now)
        self.wake()

    def cancel(self, sequence: AnswerSequence) -> bool:
        """Drop a sequence wherever it is and free its KV at once. False if it had ended already."""
        if self._live.pop(sequence.request_id, None) is None:
            return False
        self._input("cancel", sequence.request_id, self.loop.cancel)
        return True

    def release(self, request_id: str) -> None:
        """Unpin the KV of an ended sequence that kept it."""
        self._input("release", request_id, self.loop.release)

    def is_live(self, sequence: AnswerSequence) -> bool:
        """Whether the sequence is neither ended nor cancelled."""
        return sequence.request_id in self._live

    def at(self, engine_seconds: float, deliver: Callable[[float], None]) -> None:
        """Call ``deliver`` with its engine time when that is due, before any later step of the loop."""
        heapq.heappush(self._timed, (engine_seconds, next(self._numbers), deliver))
        self.wake()

    def kv_arrived(self, sequence: AnswerSequence, *, now: float, logits: bytes | None) -> None:
        """The prompt's KV is in the sequence's blocks; the first token follows from ``logits``, or from one step."""
        request_id = sequence.request_id
        block_ids = self.loop.block_ids(request_id)
        first_token = FirstToken.STEP if logits is None else FirstToken.LOGITS
        if self._record is not None:
            self._record.told("pulled", request_id, now=now, first=first_token.value)
        if logits is not None:
            sequence.view.read(block_ids, sequence.prompt_tokens)
        emission = self.loop.kv_arrived(request_id, now=now, first_token=first_token)
        entry = self._live.get(request_id)
        if emission is not None and entry is not None:
            self._sample(emission, entry, block_ids, now=now, logits=logits)
        self._start_transfers(now=now)

    def kv_failed(self, sequence: AnswerSequence) -> None:
        """The pull failed: the prompt is computed here, ahead of the queue."""
        self._input("pull-failed", sequence.request_id, self.loop.kv_failed)

    def set_slowdown(self, factor: float) -> None:
        """Multiply the time of every iteration from the next one on."""
        now = self.clock.now()
        if self._record is not None:
            self._record.slowed(factor, now=now)
        self.loop.set_slowdown(factor, now=now)

    def _input(self, what: Input, request_id: str, apply: Callable[..., object]) -> None:
        now = self.clock.now()
        if self._record is not None:
            self._record.told(what, request_id, now=now)
        apply(request_id, now=now)
        self._start_transfers(now=now)
        self.wake()

    def wake(self) -> None:
        """Look again at what is due."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- what is asked -----------------------------------------------------------------------------------------

    def block_ids(self, sequence: AnswerSequence) -> Sequence[int]:
        """Blocks of a sequence that has room."""
        return self.loop.block_ids(sequence.request_id)

    def counts(self) -> Counts:
        """Where the requests are."""
        return self.loop.counts()

    def waiting_prompt_tokens(self) -> int:
        """Prompt tokens of sequences that have no token yet and whose KV is to be computed or pulled."""
        return sum(
            sequence.prompt_tokens - min(sequence.view.tokens, sequence.prompt_tokens)
            for sequence, _ in self._live.values()
            if sequence.first_seconds is None
        )

    # ---- the clock ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Step through the engine's time until cancelled."""
        aio = asyncio.get_running_loop()
        with contextlib.closing(Alarm(self.wake)) as alarm:
            while True:
                due = self._next_due()
                delay = None if due is None else self.clock.wall_until(due)
                if due is not None and delay is not None and delay <= 0:
                    self.step(due)
                    # However late the engine is, connections must be served between two steps.
                    await asyncio.sleep(0)
                    continue
                self._waiter = aio.create_future()
                if delay is not None:
                    alarm.set(delay)
                try:
                    await self._waiter
                finally:
                    self._waiter = None
                    alarm.unset()

    def _next_due(self) -> float | None:
        due = self.loop.next_seconds()
        if self._timed and (due is None or self._timed[0][0] < due):
            return self._timed[0][0]
        return due

    def step(self, due: float) -> None:
        """Everything that is due at engine time ``due``."""
        while self._timed and self._timed[0][0] <= due:
            at, _, deliver = heapq.heappop(self._timed)
            deliver(at)
        lag = max(0.0, self.clock.now() - due)
        for completed in self.loop.complete(now=due):
            self._take(completed, now=due, lag_seconds=lag)
        planned = self.loop.next_seconds()
        if planned is None or planned > due:
            return
        if self._record is not None:
            self._record.planned(now=due)
        plan = self.loop.plan(now=due)
        for request_id in plan.preempted:
            self._observer.preempted(request_id, now=due)
            if self._record is not None:
                self._record.preempted(request_id, now=due)
        self._tell_transfers(plan.transfers, now=due)

    def _take(self, completed: Completed, *, now: float, lag_seconds: float) -> None:
        if self._record is not None:
            self._record.completed(completed, lag_seconds=lag_seconds)
        prompt_tokens = 0
        live, loop, emissions = self._live, self.loop, iter(completed.emissions)
        for work in completed.works:
            # Each work that emits has its emission, in the same order.
            emission = next(emissions) if work.emits else None
            entry = live.get(work.request_id)
            if entry is None:
                continue
            sequence = entry[0]
            start, new = work.start_tokens, work.new_tokens
            block_ids = loop.block_ids(work.request_id)
            sequence.computed(block_ids, start_tokens=start, new_tokens=new)
            if start < sequence.prompt_tokens:
                prompt_tokens += min(sequence.prompt_tokens - start, new)
            if emission is not None:
                self._sample(emission, entry, block_ids, now=now)
        self._observer.completed(completed, lag_seconds=lag_seconds, prompt_tokens=prompt_tokens)

    def _sample(
        self,
        emission: Emission,
        entry: tuple[AnswerSequence, Consumer],
        block_ids: Sequence[int],
        *,
        now: float,
        logits: bytes | None = None,
    ) -> None:
        sequence, consumer = entry
        request_id = emission.request_id
        sampled = sequence.sample(block_ids, seconds=emission.seconds, logits=logits)
        if sampled.block_key is not None:
            if self._record is not None:
                self._record.blocks(request_id, (sampled.block_key,))
            self.loop.add_block_keys(request_id, (sampled.block_key,))
        if sampled.finish_reason is None:
            consumer.sampled(sequence, sampled)
            return
        del self._live[request_id]
        consumer.sampled(sequence, sampled)
        if self._record is not None:
            self._record.told("finish", request_id, now=now)
        self.loop.finish(request_id, now=now)

    def _start_transfers(self, *, now: float) -> None:
        self._tell_transfers(self.loop.start_transfers(now=now), now=now)

    def _tell_transfers(self, transfers: Sequence[Transfer], *, now: float) -> None:
        for transfer in transfers:
            live = self._live.get(transfer.request_id)
            if live is not None:
                live[1].transfer_due(live[0], transfer, now=now)
