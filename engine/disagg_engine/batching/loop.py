"""The batching loop of one instance.

What flows in: requests, ends, arrivals of KV, and the time. What flows out: iterations with their start and end, the
tokens they emit, and transfers to start. The roster knows where each request is and holds its room, the composer says
who takes part in the next iteration, the time model prices it; the loop brings them together on the engine's clock.

Invariants. Every submitted request is in exactly one place (case WB3). The queue is first come first served: nobody
overtakes a request that waits for room. Whatever may make new work possible marks the loop, and `next_seconds` then
asks for a plan, so no wake-up is lost (case WB11). Under `preempt` the request admitted first is never thrown out for
a later one, so the first always gets on and nobody starves.

Order at equal times, by rule: finished iterations first (in the order they started), then what the driver reports
(ends, arrivals of KV, requests), in the order of its calls, then the plan, which sees them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from collections.abc import Sequence as SequenceOf

from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.policies import Composer, Take, composer_for
from disagg_engine.batching.roster import Roster
from disagg_engine.batching.sequence import Sequence
from disagg_engine.batching.types import (
    Admitted,
    Completed,
    Counts,
    Emission,
    EndReason,
    FirstToken,
    Iteration,
    Plan,
    Request,
    Transfer,
    Work,
)
from disagg_engine.errors import ClockError, SettingError
from disagg_engine.kv.protocol import KvLedger
from disagg_engine.timemodel.shapes import BatchShape, Chunk, TimeModel


class BatchingLoop:
    """Sans-I/O batching loop; see the package's docstring for how to drive it. Not thread-safe.

    time_model: prices each iteration. ledger: the instance's KV room. slowdown: factor on every iteration's time.
    """

    def __init__(
        self, *, config: BatchingConfig, time_model: TimeModel, ledger: KvLedger, slowdown: float = 1.0
    ) -> None:
        self.config = config
        self.ledger = ledger
        self._time_model = time_model
        self._composer: Composer = composer_for(config)
        self._roster = Roster(config=config, ledger=ledger)
        self._slowdown = 1.0
        self.set_slowdown(slowdown)
        self._in_flight: deque[tuple[Iteration, list[Sequence]]] = deque()
        self._number = 0
        self._plan_seconds = float("-inf")
        self._submit_seconds = float("-inf")
        self._free_seconds = float("-inf")
        self._wake_seconds: float | None = None

    # ---- what the driver reports -------------------------------------------------------------------------------

    def submit(self, request: Request, *, now: float) -> None:
        """Queue a request that arrived at engine time `now` (never before an earlier submission's).

        Raises RequestTooLargeError if it can never fit (case WB2), DuplicateRequestError, ClockError.
        """
        if not now >= self._submit_seconds:
            raise ClockError(what="request submitted", now_seconds=now, seen_seconds=self._submit_seconds)
        self._roster.enter(request, now=now)
        self._submit_seconds = now
        self._mark(now)

    def needed_tokens(self, request: Request) -> int:
        """KV room the request may need at most: the last token's KV is never written, but `reserve` counts it."""
        return self._roster.needed_tokens(request)

    def finish(self, request_id: str, *, now: float) -> None:
        """End a request early, as its text demands (end of answer, stop string). With `keep_kv` its KV stays pinned.

        A request that has reached max_tokens has ended already; finishing it again changes nothing.
        """
        sequence = self._roster.get(request_id)
        if not sequence.ended:
            self._end(sequence, EndReason.STOP, now=now)

    def cancel(self, request_id: str, *, now: float) -> None:
        """Drop a request wherever it is, its pinned KV included. Its share of an iteration in flight is lost."""
        self._end(self._roster.get(request_id), EndReason.CANCELLED, now=now)

    def fail(self, request_id: str, *, now: float) -> None:
        """As `cancel`, but counted as failed."""
        self._end(self._roster.get(request_id), EndReason.FAILED, now=now)

    def release(self, request_id: str, *, now: float) -> bool:
        """Unpin the KV of an ended `keep_kv` request: pulled, or its lease ran out. False if nothing was pinned."""
        released = self._roster.release(request_id)
        if released:
            self._mark(now)
        return released

    def kv_arrived(self, request_id: str, *, now: float, first_token: FirstToken) -> Emission | None:
        """The pull of this request's KV is complete; it joins the next iteration.

        With `LOGITS` its first token exists at once and is returned; otherwise None. Raises UnknownRequestError if the
        request is not being pulled.
        """
        sequence = self._roster.arrived(request_id, now=now)
        self._mark(now)
        # Without logits the prompt's last token is left out, to be computed again for them.
        sequence.computed = sequence.request.prompt_tokens - (first_token is FirstToken.STEP)
        self.ledger.commit(request_id, sequence.computed)
        if first_token is FirstToken.STEP:
            return None
        emission = self._emit(sequence, now)
        if first_token is FirstToken.LOGITS:
            return emission
        sequence.first_token_seconds = None  # the prefill leg's affair
        return None

    def kv_failed(self, request_id: str, *, now: float) -> None:
        """The pull failed: give the room back and compute the prompt here, ahead of the queue (case WB11).

        A driver that would rather fail the request calls `fail`. Raises UnknownRequestError if it is not being pulled.
        """
        self._roster.pull_failed(request_id, now=now)
        self._mark(now)

    def add_block_keys(self, request_id: str, keys: SequenceOf[Hashable]) -> None:
        """Name the next full blocks of a live request as its output grows, so that they become reusable."""
        self._roster.get(request_id).keys.extend(keys)
        if self._roster.has_room(request_id):
            self.ledger.add_keys(request_id, keys)

    def set_slowdown(self, factor: float) -> None:
        """Multiply the time of every iteration planned from now on."""
        if not 0.0 < factor < float("inf"):
            raise SettingError(field="slowdown", value=factor, wanted="a finite number above 0")
        self._slowdown = factor

    # ---- what the driver asks ----------------------------------------------------------------------------------

    def complete(self, *, now: float) -> tuple[Completed, ...]:
        """Finish every iteration that has ended by `now`, in the order they started."""
        done = []
        while self._in_flight and self._in_flight[0][0].end_seconds <= now:
            full = len(self._in_flight) == self.config.pipeline
            iteration, sequences = self._in_flight.popleft()
            if full:  # a new batch could not have started before this one left
                self._free_seconds = max(self._free_seconds, iteration.end_seconds)
            works: list[Work] = []
            emissions: list[Emission] = []
            for work, sequence in zip(iteration.works, sequences, strict=True):
                if not sequence.flying:
                    continue  # it was cancelled, ended or failed meanwhile
                sequence.flying = False
                sequence.computed += work.new_tokens
                self.ledger.commit(work.request_id, sequence.computed)
                works.append(work)
                if work.emits:
                    emissions.append(self._emit(sequence, iteration.end_seconds))
            self._mark(iteration.end_seconds)
            done.append(Completed(iteration=iteration, works=tuple(works), emissions=tuple(emissions)))
        return tuple(done)

    def start_transfers(self, *, now: float) -> tuple[Transfer, ...]:
        """Reserve room for pulled requests at the head of the queue; may be called at any time, each is told once."""
        self._roster.close_ended()
        self._roster.admit_pulls(now=now)
        return self._roster.take_transfers()

    def plan(self, *, now: float) -> Plan:
        """Compose and start the next iteration at `now`, if the first stage is free and there is work.

        `now` never lies before an earlier plan's (ClockError). Requests that arrived after `now` do not take part.
        """
        if not now >= self._plan_seconds:
            raise ClockError(what="plan", now_seconds=now, seen_seconds=self._plan_seconds)
        self._plan_seconds = now
        self._roster.close_ended()
        view = _View(self._roster, now=now)
        iteration = None
        if len(self._in_flight) < self.config.pipeline and now >= self._free_seconds:
            takes = self._composer.compose(view)
            if takes:
                iteration = self._start(takes, now=now)
        self._wake_seconds = self._next_ready(now=now)
        return Plan(iteration=iteration, transfers=self.start_transfers(now=now), preempted=tuple(view.preempted))

    def next_seconds(self) -> float | None:
        """The next engine time at which `complete` and `plan` have something to do; None: only an input can tell.

        Lies in the past when the driver is late: it passes that time as `now` all the same, and the engine's clock
        keeps running as if the driver had been in time.
        """
        end = self._in_flight[0][0].end_seconds if self._in_flight else None
        if self._wake_seconds is None or len(self._in_flight) >= self.config.pipeline:
            return end
        wake = max(self._wake_seconds, self._free_seconds, self._plan_seconds)
        return wake if end is None else min(end, wake)

    def __contains__(self, request_id: object) -> bool:
        """Whether a request of this id is live: waiting, pulling, running, or ended with its KV pinned."""
        return request_id in self._roster

    def holds(self, request_id: str) -> bool:
        """Whether the KV of this ended request is still pinned."""
        return self._roster.holds(request_id)

    def block_ids(self, request_id: str) -> SequenceOf[int]:
        """Physical blocks of a request that has room, valid until it ends and `plan` is called (or it is released)."""
        return self.ledger.block_ids(request_id)

    def admitted(self, request_id: str) -> Admitted:
        """Times and counts of a live request."""
        sequence = self._roster.get(request_id)
        return Admitted(
            arrival_seconds=sequence.arrival_seconds,
            admitted_seconds=sequence.admitted_seconds,
            first_token_seconds=sequence.first_token_seconds,
            cached_tokens=sequence.cached,
            generated_tokens=sequence.generated,
            preemptions=sequence.preemptions,
        )

    def counts(self) -> Counts:
        """Where the requests are."""
        return self._roster.counts()

    # ---- inside ------------------------------------------------------------------------------------------------

    def _mark(self, now: float) -> None:
        """An input at `now` may have made work possible."""
        if self._wake_seconds is None or now < self._wake_seconds:
            self._wake_seconds = now

    def _next_ready(self, *, now: float) -> float | None:
        """When to plan again although nothing is reported: a pipeline stage gets free, or somebody known is ready."""
        if self._free_seconds > now:
            return self._free_seconds
        later = [sequence.ready_seconds for sequence in self._roster.running() if sequence.ready_seconds > now]
        head = self._roster.head()
        if head is not None and head.ready_seconds > now:
            later.append(head.ready_seconds)
        return min(later, default=None)

    def _end(self, sequence: Sequence, reason: EndReason, *, now: float) -> None:
        self._roster.end(sequence, reason)
        self._mark(now)

    def _emit(self, sequence: Sequence, seconds: float) -> Emission:
        sequence.generated += 1
        if sequence.first_token_seconds is None:
            sequence.first_token_seconds = seconds
        last = sequence.generated >= sequence.request.max_tokens
        if last:
            self._roster.end_by_length(sequence)
        return Emission(sequence.request_id, sequence.generated, seconds, last)

    def _start(self, takes: list[Take], *, now: float) -> Iteration:
        self._number += 1
        works, sequences, chunks = [], [], []
        decodes = context = 0
        for sequence, tokens in takes:
            missing = sequence.missing
            if missing == 1 and sequence.computed > 0:
                decodes += 1
                context += sequence.computed
            else:
                chunks.append(Chunk(sequence.computed, tokens))
            works.append(Work(sequence.request_id, sequence.computed, tokens, tokens == missing))
            sequences.append(sequence)
            sequence.flying = True
            sequence.served = self._number
        shape = BatchShape(chunks=tuple(chunks), decode_sequences=decodes, decode_context_tokens=context)
        cost = self._time_model.iteration_seconds(shape)
        end = now + cost.seconds * self._slowdown
        if self._in_flight:  # a batch cannot overtake the one before it in the pipeline
            end = max(end, self._in_flight[-1][0].end_seconds)
        free = end if self.config.pipeline == 1 else now + cost.stage_seconds * self._slowdown
        iteration = Iteration(
            number=self._number,
            start_seconds=now,
            end_seconds=end,
            free_seconds=free,
            shape=shape,
            cost=cost,
            works=tuple(works),
        )
        self._in_flight.append((iteration, sequences))
        self._free_seconds = free
        return iteration


class _View:
    """What a composer may see and do while it composes one iteration (policies.View)."""

    def __init__(self, roster: Roster, *, now: float) -> None:
        self._roster = roster
        self.now = now
        self.preempted: list[str] = []

    def candidates(self) -> list[Sequence]:
        now = self.now
        return [s for s in self._roster.running() if not s.flying and s.ready_seconds <= now]

    def decoding(self) -> int:
        return sum(1 for sequence in self._roster.running() if sequence.decodes)

    def head(self) -> Sequence | None:
        self._roster.admit_pulls(now=self.now)
        head = self._roster.head()
        return None if head is None or head.remote or head.ready_seconds > self.now else head

    def head_tokens(self, head: Sequence) -> int:
        return head.known - self._roster.ledger.match(head.keys, head.known)

    def admit(self) -> bool:
        return self._roster.admit_head(now=self.now)

    def make_room(self, sequence: Sequence) -> bool:
        while not self._roster.ledger.grow(sequence.request_id, sequence.computed + 1):
            victim = next((s for s in self._roster.last_admitted() if not s.flying), sequence)
            self._roster.preempt(victim)
            self.preempted.append(victim.request_id)
            if victim is sequence:
                return False
        return True
