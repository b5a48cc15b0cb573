"""The batching loop of one instance.

What flows in: requests, ends, arrivals of KV, and the time. What flows out: iterations with their start and end, the
tokens they emit, and transfers to start. The loop owns the queue, the running set and the KV ledger, and decides who
takes part in which iteration; the policy composes an iteration, the time model prices it.

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

from disagg_contract.config import Admission
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.policies import Composer, Take, composer_for
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
from disagg_engine.errors import (
    ClockError,
    DuplicateRequestError,
    RequestTooLargeError,
    SettingError,
    UnknownRequestError,
)
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
        self._slowdown = 1.0
        self.set_slowdown(slowdown)
        self._live: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._pulling: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._holding: dict[str, Sequence] = {}
        self._ended: list[Sequence] = []
        self._in_flight: deque[tuple[Iteration, list[Sequence]]] = deque()
        self._transfers: list[Transfer] = []
        self._number = 0
        self._plan_seconds = float("-inf")
        self._submit_seconds = float("-inf")
        self._free_seconds = float("-inf")
        self._wake_seconds: float | None = None
        self._submitted = self._refused = 0
        self._preemptions = self._queried = self._hit = 0
        self._ends = dict.fromkeys(EndReason, 0)

    # ---- what the driver reports -------------------------------------------------------------------------------

    def submit(self, request: Request, *, now: float) -> None:
        """Queue a request that arrived at engine time `now` (never before an earlier submission's).

        Raises RequestTooLargeError if it can never fit (case WB2), DuplicateRequestError, ClockError.
        """
        if request.request_id in self._live:
            raise DuplicateRequestError(request.request_id)
        if now < self._submit_seconds:
            raise ClockError(what="request submitted", now_seconds=now, seen_seconds=self._submit_seconds)
        self._submitted += 1
        needed = self.needed_tokens(request)
        if needed > self.ledger.capacity_tokens:
            self._refused += 1
            raise RequestTooLargeError(
                request_id=request.request_id, needed_tokens=needed, capacity_tokens=self.ledger.capacity_tokens
            )
        self._submit_seconds = now
        sequence = Sequence(request, arrival_seconds=now)
        self._live[request.request_id] = sequence
        self._waiting.append(sequence)
        self._mark(now)

    def needed_tokens(self, request: Request) -> int:
        """KV room the request may need at most: the last token's KV is never written, but `reserve` counts it."""
        spare = 0 if self.config.admission is Admission.RESERVE else 1
        return request.prompt_tokens + request.max_tokens - spare

    def finish(self, request_id: str, *, now: float) -> None:
        """End a request early, as its text demands (end of answer, stop string). With `keep_kv` its KV stays pinned.

        A request that has reached max_tokens has ended already; finishing it again changes nothing.
        """
        sequence = self._get(request_id)
        if sequence.ended:
            return
        self._end(sequence, EndReason.STOP, now=now)

    def cancel(self, request_id: str, *, now: float) -> None:
        """Drop a request wherever it is, its pinned KV included. Its share of an iteration in flight is lost."""
        self._end(self._get(request_id), EndReason.CANCELLED, now=now)

    def fail(self, request_id: str, *, now: float) -> None:
        """As `cancel`, but counted as failed."""
        self._end(self._get(request_id), EndReason.FAILED, now=now)

    def release(self, request_id: str, *, now: float) -> bool:
        """Unpin the KV of an ended `keep_kv` request: pulled, or its lease ran out. False if nothing was pinned."""
        sequence = self._holding.pop(request_id, None)
        if sequence is None:
            return False
        del self._live[request_id]
        self.ledger.close(request_id)
        self._mark(now)
        return True

    def kv_arrived(self, request_id: str, *, now: float, first_token: FirstToken) -> Emission | None:
        """The pull of this request's KV is complete; it joins the next iteration.

        With `LOGITS` its first token exists at once and is returned; otherwise None.
        """
        sequence = self._pulling.pop(request_id, None)
        if sequence is None:
            raise UnknownRequestError(request_id)
        sequence.remote = False
        sequence.ready_seconds = now
        prompt = sequence.request.prompt_tokens
        self._running[request_id] = sequence
        self._mark(now)
        if first_token is FirstToken.STEP:
            sequence.computed = prompt - 1
            self.ledger.commit(request_id, prompt - 1)
            return None
        sequence.computed = prompt
        self.ledger.commit(request_id, prompt)
        sequence.generated = 1
        emission = None
        if first_token is FirstToken.LOGITS:
            sequence.first_token_seconds = now
            emission = Emission(request_id, 1, now, sequence.request.max_tokens == 1)
        if sequence.request.max_tokens == 1:
            self._mark_ended(sequence)
        return emission

    def kv_failed(self, request_id: str, *, now: float) -> None:
        """The pull failed: give the room back and compute the prompt here, ahead of the queue (case WB11).

        A driver that would rather fail the request calls `fail`.
        """
        sequence = self._pulling.pop(request_id, None)
        if sequence is None:
            raise UnknownRequestError(request_id)
        self.ledger.close(request_id)
        sequence.remote = False
        sequence.ready_seconds = now
        sequence.computed = 0
        self._waiting.appendleft(sequence)
        self._mark(now)

    def add_block_keys(self, request_id: str, keys: SequenceOf[Hashable]) -> None:
        """Name the next full blocks of a live request as its output grows, so that they become reusable."""
        sequence = self._get(request_id)
        sequence.keys.extend(keys)
        if request_id in self._running or request_id in self._pulling or request_id in self._holding:
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
        self._close_ended()
        while self._waiting and self._waiting[0].remote and self._admit_head(now=now):
            pass
        transfers, self._transfers = tuple(self._transfers), []
        return transfers

    def plan(self, *, now: float) -> Plan:
        """Compose and start the next iteration at `now`, if the first stage is free and there is work.

        `now` never lies before an earlier plan's. Requests that arrived after `now` do not take part.
        """
        if now < self._plan_seconds:
            raise ClockError(what="plan", now_seconds=now, seen_seconds=self._plan_seconds)
        self._plan_seconds = now
        self._close_ended()
        view = _View(self, now=now)
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
        return request_id in self._live

    def holds(self, request_id: str) -> bool:
        """Whether the KV of this ended request is still pinned."""
        return request_id in self._holding

    def block_ids(self, request_id: str) -> SequenceOf[int]:
        """Physical blocks of a request that has room, valid until it ends and `plan` is called (or it is released)."""
        return self.ledger.block_ids(request_id)

    def admitted(self, request_id: str) -> Admitted:
        """Times and counts of a live request."""
        sequence = self._get(request_id)
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
        return Counts(
            submitted=self._submitted,
            refused=self._refused,
            waiting=len(self._waiting),
            pulling=len(self._pulling),
            running=len(self._running) - len(self._ended),
            finished=self._ends[EndReason.LENGTH] + self._ends[EndReason.STOP],
            cancelled=self._ends[EndReason.CANCELLED],
            failed=self._ends[EndReason.FAILED],
            holding=len(self._holding),
            preemptions=self._preemptions,
            prefix_queried_tokens=self._queried,
            prefix_hit_tokens=self._hit,
        )

    # ---- inside ------------------------------------------------------------------------------------------------

    def _get(self, request_id: str) -> Sequence:
        try:
            return self._live[request_id]
        except KeyError:
            raise UnknownRequestError(request_id) from None

    def _mark(self, now: float) -> None:
        """An input at `now` may have made work possible."""
        if self._wake_seconds is None or now < self._wake_seconds:
            self._wake_seconds = now

    def _next_ready(self, *, now: float) -> float | None:
        """When to plan again although nothing is reported: a later arrival known already, or a pipeline stage free."""
        if self._free_seconds > now:
            return self._free_seconds
        later = [s.ready_seconds for s in self._running.values() if s.ready_seconds > now]
        if self._waiting and self._waiting[0].ready_seconds > now:
            later.append(self._waiting[0].ready_seconds)
        return min(later, default=None)

    def _emit(self, sequence: Sequence, seconds: float) -> Emission:
        sequence.generated += 1
        if sequence.first_token_seconds is None:
            sequence.first_token_seconds = seconds
        last = sequence.generated >= sequence.request.max_tokens
        if last:
            self._mark_ended(sequence)
        return Emission(sequence.request_id, sequence.generated, seconds, last)

    def _mark_ended(self, sequence: Sequence) -> None:
        sequence.ended = True
        self._ended.append(sequence)
        self._ends[EndReason.LENGTH] += 1

    def _close_ended(self) -> None:
        if not self._ended:
            return
        for sequence in self._ended:
            del self._running[sequence.request_id]
            self._put_away(sequence, keep=sequence.request.keep_kv)
        self._ended.clear()

    def _put_away(self, sequence: Sequence, *, keep: bool) -> None:
        """The sequence has room and has just left the running set."""
        if keep:
            self._holding[sequence.request_id] = sequence
            return
        self.ledger.close(sequence.request_id)
        del self._live[sequence.request_id]

    def _end(self, sequence: Sequence, reason: EndReason, *, now: float) -> None:
        request_id = sequence.request_id
        keep = sequence.request.keep_kv and reason is EndReason.STOP
        self._mark(now)
        if request_id in self._holding:  # it ended before; only its pin goes
            if not keep:
                self.release(request_id, now=now)
            return
        if sequence.ended:  # ended by length, not yet put away
            self._ended.remove(sequence)
            del self._running[request_id]
            self._put_away(sequence, keep=keep)
            return
        self._ends[reason] += 1
        sequence.flying = False
        sequence.ended = True
        if self._running.pop(request_id, None) is not None:
            self._put_away(sequence, keep=keep)
            return
        if self._pulling.pop(request_id, None) is not None:
            self._transfers = [t for t in self._transfers if t.request_id != request_id]
            self.ledger.close(request_id)
        else:
            self._waiting.remove(sequence)
        del self._live[request_id]

    def _active(self) -> int:
        return len(self._running) - len(self._ended) + len(self._pulling)

    def _admit_head(self, *, now: float) -> bool:
        """Give the head of the queue room and move it to running, or to pulling; False if it must wait."""
        sequence = self._waiting[0]
        if sequence.ready_seconds > now or self._active() >= self.config.max_sequences:
            return False
        request = sequence.request
        known = sequence.known
        if self.config.admission is Admission.RESERVE:
            room, headroom = request.prompt_tokens + request.max_tokens, 0
        else:
            room = known
            headroom = int(self.config.watermark * self.ledger.capacity_tokens) if self._active() else 0
        cached = self.ledger.open(
            sequence.request_id, tokens=known, room_tokens=room, keys=sequence.keys, headroom_tokens=headroom
        )
        if cached is None:
            return False
        self._waiting.popleft()
        self._queried += known
        self._hit += cached
        sequence.cached = cached
        sequence.computed = cached
        if sequence.admitted_seconds is None:
            sequence.admitted_seconds = now
        if sequence.remote:
            self._pulling[sequence.request_id] = sequence
            self._transfers.append(
                Transfer(request_id=sequence.request_id, prompt_tokens=request.prompt_tokens, cached_tokens=cached)
            )
        else:
            self._running[sequence.request_id] = sequence
        return True

    def _preempt(self, victim: Sequence) -> None:
        del self._running[victim.request_id]
        self.ledger.close(victim.request_id)
        victim.computed = 0
        victim.preemptions += 1
        self._preemptions += 1
        self._waiting.appendleft(victim)

    def _start(self, takes: list[Take], *, now: float) -> Iteration:
        self._number += 1
        works, sequences, chunks = [], [], []
        decodes = context = 0
        for sequence, tokens in takes:
            missing = sequence.missing
            if tokens == 1 and missing == 1 and sequence.computed > 0:
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
    """What a composer may see and do while it composes one iteration."""

    def __init__(self, loop: BatchingLoop, *, now: float) -> None:
        self._loop = loop
        self.now = now
        self.preempted: list[str] = []

    def candidates(self) -> list[Sequence]:
        now = self.now
        return [s for s in self._loop._running.values() if not s.flying and not s.ended and s.ready_seconds <= now]

    def decoding(self) -> int:
        return sum(1 for s in self._loop._running.values() if s.decodes and not s.ended)

    def head(self) -> Sequence | None:
        waiting = self._loop._waiting
        while waiting and waiting[0].remote:
            if not self._loop._admit_head(now=self.now):
                return None
        return waiting[0] if waiting and waiting[0].ready_seconds <= self.now else None

    def head_tokens(self, head: Sequence) -> int:
        return head.known - self._loop.ledger.match(head.keys, head.known)

    def admit(self) -> bool:
        return self._loop._admit_head(now=self.now)

    def make_room(self, sequence: Sequence) -> bool:
        loop = self._loop
        while not loop.ledger.grow(sequence.request_id, sequence.computed + 1):
            victim = next((s for s in reversed(loop._running.values()) if not s.flying and not s.ended), sequence)
            loop._preempt(victim)
            self.preempted.append(victim.request_id)
            if victim is sequence:
                return False
        return True
