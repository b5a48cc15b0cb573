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

Event skipping. Where the next iterations would all be decodes of the same batch, the loop starts a window of them at
once (`flight`). It ends at the latest where the stepper would do something else without being told: at the first
completion, where room runs out or a block gets full that somebody hears of, at a bend of the time model, and when
somebody known becomes ready. An input cuts it to the step in flight, if it can matter. Both give the same times to
rounding and the same tokens (ADR 14).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from collections.abc import Sequence as SequenceOf

from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.flight import Flight
from disagg_engine.batching.policies import Composer, composer_for
from disagg_engine.batching.pricing import Pricer
from disagg_engine.batching.roster import Roster
from disagg_engine.batching.sequence import Sequence
from disagg_engine.batching.types import (
    Admitted,
    Completed,
    Counts,
    Emission,
    EndReason,
    FirstToken,
    Gap,
    Iteration,
    Plan,
    Request,
    Transfer,
    Work,
)
from disagg_engine.batching.view import View
from disagg_engine.errors import ClockError, SettingError
from disagg_engine.kv.protocol import KvLedger
from disagg_engine.timemodel.shapes import Chunk, TimeModel

_NEVER = float("inf")


class BatchingLoop:
    """Sans-I/O batching loop; see the package's docstring for how to drive it. Not thread-safe.

    time_model: prices each iteration. ledger: the instance's KV room. slowdown: factor on every iteration's time.
    event_skipping: plan windows of decode iterations, where the time model has a closed form and there are no pipeline
    stages. record_gaps: tell the times between tokens with each completed iteration.
    """

    def __init__(
        self,
        *,
        config: BatchingConfig,
        time_model: TimeModel,
        ledger: KvLedger,
        slowdown: float = 1.0,
        event_skipping: bool = False,
        record_gaps: bool = False,
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.event_skipping = event_skipping
        self._pricer = Pricer(time_model, speculation=config.speculation, slowdown=slowdown)
        self._windows = event_skipping and config.in_lockstep and self._pricer.has_windows
        self._single = config.pipeline == 1
        self._speculation = config.speculation
        self._record_gaps = record_gaps
        self._composer: Composer = composer_for(config)
        self._roster = Roster(config=config, ledger=ledger)
        self._lockstep = self._roster.lockstep
        self._view = View(self._roster, config=config)
        self._in_flight: deque[Flight] = deque()
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
        sequence = self._roster.enter(request, now=now)
        self._submit_seconds = now
        if self._windows and self._in_flight and now < self._in_flight[0].end_seconds:
            if sequence.ready_seconds > now:
                self._cut(now)  # the next plan looks ahead to it
            # Behind another one that waits it changes nothing, and one to be pulled takes no part before its KV comes.
            elif sequence is self._roster.waiting.head(now) and not (sequence.remote and not self._roster.grows):
                self._cut_to_admit(now)
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
            self._cut_to_admit(now)
            self._mark(now)
        return released

    def kv_arrived(
        self, request_id: str, *, now: float, first_token: FirstToken, first_token_seconds: float | None = None
    ) -> Emission | None:
        """The pull of this request's KV is complete; it joins the next iteration.

        With `LOGITS` its first token exists at once and is returned; otherwise None. With `PREFILL`,
        `first_token_seconds` is when the prefill leg emitted it, if gaps are to count from then. Raises
        UnknownRequestError if the request is not being pulled.
        """
        self._cut(now)
        sequence = self._roster.arrived(request_id, now=now)
        self._mark(now)
        # Without logits the prompt's last token is left out, to be computed again for them.
        sequence.held = sequence.prompt_tokens - (first_token is FirstToken.STEP)
        self.ledger.commit(request_id, sequence.held)
        if first_token is FirstToken.STEP:
            return None
        emission = self._emit(sequence, now)
        if first_token is FirstToken.LOGITS:
            return emission
        sequence.first_token_seconds = None  # the prefill leg's affair
        sequence.last_token_seconds = first_token_seconds
        return None

    def kv_failed(self, request_id: str, *, now: float) -> None:
        """The pull failed: give the room back and compute the prompt here, ahead of the queue (case WB11).

        A driver that would rather fail the request calls `fail`. Raises UnknownRequestError if it is not being pulled.
        """
        self._cut(now)
        self._roster.pull_failed(request_id, now=now)
        self._mark(now)

    def add_block_keys(self, request_id: str, keys: SequenceOf[Hashable]) -> None:
        """Name the next full blocks of a live request as its output grows, so that they become reusable.

        Under event skipping, where not every token is told, give all keys with the request instead.
        """
        sequence = self._roster.get(request_id)
        sequence.keys.extend(keys)
        if not self._roster.has_room(request_id):
            return
        if sequence.lockstep is not None:  # commits are put off until somebody could see the difference
            self.ledger.commit(request_id, sequence.computed)
            self._lockstep.watch_fill(sequence)
        self.ledger.add_keys(request_id, keys)

    def set_slowdown(self, factor: float, *, now: float | None = None) -> None:
        """Multiply the time of every iteration planned from now on. A window in flight needs to know when that is."""
        if self._in_flight and self._in_flight[0].steps > 1:
            if now is None:
                raise SettingError(field="now", value=now, wanted="the time of the change, under event skipping")
            self._cut(now)
        self._pricer.set_slowdown(factor)

    # ---- what the driver asks ----------------------------------------------------------------------------------

    def complete(self, *, now: float) -> tuple[Completed, ...]:
        """Finish every iteration that has ended by `now`, in the order they started."""
        in_flight = self._in_flight
        if not in_flight or in_flight[0].end_seconds > now:
            return ()
        if self._single:
            flight = in_flight.popleft()
            self._mark(flight.end_seconds)
            return (self._complete(flight),)
        done = []
        while in_flight and in_flight[0].end_seconds <= now:
            full = len(in_flight) == self.config.pipeline
            flight = in_flight.popleft()
            if full:  # a new batch could not have started before this one left
                self._free_seconds = max(self._free_seconds, flight.end_seconds)
            done.append(self._complete(flight))
            self._mark(flight.end_seconds)
        return tuple(done)

    def start_transfers(self, *, now: float) -> tuple[Transfer, ...]:
        """Reserve room for pulled requests at the head of the queue; may be called at any time, each is told once."""
        roster = self._roster
        if roster.ended:
            roster.close_ended()
        head = roster.waiting.head(now) if roster.waiting.size else None
        if head is not None and head.remote:
            # Its room is then missing to those who decode, and what they fill may be what it looks for.
            if self._windows and (roster.grows or self._lockstep.fills) and roster.may_admit(now=now):
                self._cut(now)
            roster.admit_pulls(now=now)
        return roster.take_transfers()

    def plan(self, *, now: float) -> Plan:
        """Compose and start the next iteration at `now`, if the first stage is free and there is work.

        `now` never lies before an earlier plan's (ClockError). Requests that arrived after `now` do not take part.
        """
        if not now >= self._plan_seconds:
            raise ClockError(what="plan", now_seconds=now, seen_seconds=self._plan_seconds)
        self._plan_seconds = now
        roster, view = self._roster, self._view
        if roster.ended:
            roster.close_ended()
        iteration = None
        preempted: tuple[str, ...] = ()
        if len(self._in_flight) < self.config.pipeline and now >= self._free_seconds:
            view.open(now)
            self._composer.compose(view)
            if view.preempted:
                preempted = tuple(view.preempted)
            if view.takes or view.decodes:
                iteration = self._start(now=now)
        transfers: tuple[Transfer, ...] = ()
        self._wake_seconds = None
        if roster.waiting.size or roster.arriving or roster.transfers or not self._single:
            transfers = self.start_transfers(now=now)
            self._wake_seconds = self._next_ready(now=now)
        return Plan(iteration=iteration, transfers=transfers, preempted=preempted)

    def next_seconds(self) -> float | None:
        """The next engine time at which `complete` and `plan` have something to do; None: only an input can tell.

        Lies in the past when the driver is late: it passes that time as `now` all the same, and the engine's clock
        keeps running as if the driver had been in time.
        """
        end = self._in_flight[0].end_seconds if self._in_flight else None
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
        """Times and counts of a live request; within a window as of its start."""
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

    def gaps_in_flight(self) -> SequenceOf[Gap]:
        """Gaps of the window in flight that had ended when it was last cut; `complete` tells them again."""
        return [gap for flight in self._in_flight for gap in flight.gaps]

    # ---- inputs, inside ----------------------------------------------------------------------------------------

    def _mark(self, now: float) -> None:
        """An input at `now` may have made work possible."""
        if self._wake_seconds is None or now < self._wake_seconds:
            self._wake_seconds = now

    def _next_ready(self, *, now: float) -> float | None:
        """When to plan again although nothing is reported: a pipeline stage gets free, or somebody known is ready."""
        if self._free_seconds > now:
            return self._free_seconds
        ready = self._roster.ready_seconds(now=now)
        return None if ready == _NEVER else ready

    def _end(self, sequence: Sequence, reason: EndReason, *, now: float) -> None:
        if self._in_flight and self._roster.runs(sequence):
            self._cut(now)
        self._roster.end(sequence, reason)
        self._cut_to_admit(now)
        self._mark(now)

    def _cut_to_admit(self, now: float) -> None:
        """Something at `now` may have let the head of the queue in."""
        if (
            self._windows
            and self._in_flight
            and self._composer.admits(self._lockstep.size)
            and self._roster.may_admit(now=now)
        ):
            self._cut(now)

    def _cut(self, now: float) -> None:
        """End the window in flight, if there is one, with the step in flight at `now`."""
        flight = self._in_flight[0] if self._in_flight else None
        if flight is None or flight.steps - flight.done <= 1 or now >= flight.end_seconds:
            return
        step = flight.step_at(now)
        self._advance(flight, step - 1)
        if step < flight.steps:
            self._number -= flight.steps - step
            flight.shorten(step)
            self._free_seconds = flight.end_seconds

    # ---- iterations, inside ------------------------------------------------------------------------------------

    def _emit(self, sequence: Sequence, seconds: float) -> Emission:
        """A sequence outside the lockstep has got a token."""
        sequence.made += 1
        sequence.last_token_seconds = seconds
        if sequence.first_token_seconds is None:
            sequence.first_token_seconds = seconds
        last = sequence.made >= sequence.max_tokens
        if last:
            self._roster.end_by_length(sequence)
        return Emission(sequence.request_id, sequence.made, seconds, last)

    def _complete(self, flight: Flight) -> Completed:
        works: list[Work] = []
        emissions: list[Emission] = []
        end = flight.end_seconds
        if flight.decodes:
            self._complete_decodes(flight, works, emissions)
        for sequence, start, tokens, outputs in flight.takes:
            if not sequence.flying:
                continue  # it was cancelled, ended or failed meanwhile
            sequence.flying = False
            sequence.held = start + tokens
            self.ledger.commit(sequence.request_id, sequence.held)
            works.append(Work(sequence.request_id, start, tokens, outputs > 0))
            for _ in range(outputs):
                before = sequence.last_token_seconds
                emission = self._emit(sequence, end)
                flight.tokens += 1
                if before is not None and self._record_gaps:
                    flight.gaps.append(Gap(end - before, 1))
                if not self.event_skipping or emission.index == 1 or emission.last:
                    emissions.append(emission)
            if not sequence.ended:
                self._roster.place(sequence)
        return Completed(flight.iteration, tuple(works), tuple(emissions), flight.tokens, tuple(flight.gaps))

    def _complete_decodes(self, flight: Flight, works: list[Work], emissions: list[Emission]) -> None:
        lockstep, end = self._lockstep, flight.end_seconds
        fresh = lockstep.fresh
        self._advance(flight, flight.steps)
        for sequence in fresh.values():
            sequence.first_token_seconds = end
            if self.event_skipping and sequence.max_tokens > 1:
                emissions.append(Emission(sequence.request_id, 1, end, False))
        if not self.event_skipping:
            steps = lockstep.steps
            for sequence in self._roster.members():
                request_id, made = sequence.request_id, sequence.made + steps
                works.append(Work(request_id, sequence.held + steps - 1, 1, True))
                emissions.append(Emission(request_id, made, end, made >= sequence.max_tokens))
        for sequence in lockstep.ended():
            if self.event_skipping:
                emissions.append(Emission(sequence.request_id, sequence.max_tokens, end, True))
            self._roster.end_by_length(sequence)

    def _advance(self, flight: Flight, step: int) -> None:
        """The window's steps up to number `step` are done."""
        lockstep, roster = self._lockstep, self._roster
        count = step - flight.done
        if roster.grows:  # the step after a cut is in flight already, and has its room
            roster.grow_ahead(stop_step=lockstep.steps + count + (step < flight.steps))
        if count < 1:
            return
        size = lockstep.size
        flight.tokens += count * size
        if self._record_gaps:
            self._note_gaps(flight, step, size)
        flight.done = step
        lockstep.advance(count, end_seconds=flight.end_of(step))
        if lockstep.fills:
            roster.commit_filled()

    def _note_gaps(self, flight: Flight, step: int, size: int) -> None:
        """Gaps that end with the window's steps after those done, up to number `step`."""
        lockstep, gaps = self._lockstep, flight.gaps
        before, count = lockstep.last_seconds, size - len(lockstep.joined) - len(lockstep.fresh)
        joined = lockstep.joined.values()
        for number in range(flight.done + 1, step + 1):
            end = flight.end_of(number)
            gaps.extend(Gap(end - since, 1) for since in joined if since is not None)
            if count:
                gaps.append(Gap(end - before, count))
            before, count, joined = end, size, {}.values()

    def _start(self, *, now: float) -> Iteration:
        """Price what the view holds and send it on its way."""
        view, lockstep = self._view, self._lockstep
        number = self._number + 1
        sequences = context = 0
        if view.decodes:
            sequences, context = lockstep.batch_sequences, lockstep.context_tokens
        chunks: list[Chunk] = []
        verified: list[Chunk] = []
        takes: list[tuple[Sequence, int, int, int]] = []
        for sequence, tokens in view.takes:
            held, missing = sequence.held, sequence.missing
            outputs = int(tokens == missing)
            if missing == 1 and held > 0:
                sequences += 1
                context += held
                if self._speculation is not None:
                    outputs = tokens
                    verified.append(Chunk(held, self._speculation.draft_tokens + 1))
                    sequence.verified += 1
            else:
                chunks.append(Chunk(held, tokens))
            takes.append((sequence, held, tokens, outputs))
            sequence.flying = True
            sequence.served = number
        steps, growth = 1, 0.0
        if not self._windows:
            first, stage = self._pricer.iteration(chunks, verified, sequences, context)
            end = now + first
            if self._in_flight:  # a batch cannot overtake the one before it in the pipeline
                end = max(end, self._in_flight[-1].end_seconds)
            free = end if self._single else now + stage
        elif takes:
            first = self._pricer.single(chunks, sequences, context)
            end = free = now + first
        else:
            once = not view.steady or bool(view.preempted)
            first, growth, steps = self._pricer.window(self._roster, sequences, context, now=now, once=once)
            end = free = now + steps * (first + 0.5 * growth * (steps - 1))
        self._number += steps
        iteration = Iteration(
            number=number,
            start_seconds=now,
            end_seconds=end,
            free_seconds=free,
            chunks=tuple(chunks),
            decode_sequences=sequences,
            decode_context_tokens=context,
            steps=steps,
            step_seconds=first,
            step_growth_seconds=growth,
        )
        self._in_flight.append(Flight(iteration, takes, view.decodes, end, steps))
        self._free_seconds = free
        return iteration
