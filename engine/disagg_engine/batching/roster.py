"""Where each request is: the queue, the pulls, the running set, the pinned; and the room that goes with it.

A live request is in exactly one of four places::

    waiting ──admit──► running ──end──► gone, or holding (keep_kv) ──release──► gone
       │  ▲              ▲  │
       │  └──preempt─────┼──┘
       └──admit (remote)─► pulling ──arrived──► running        (failed: back to the front of waiting)

Room in the ledger is held in all places but waiting. The roster knows no iterations; it is told the time only to tell
who has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator

from disagg_contract.choices import Admission, BatchPolicy
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.lockstep import Lockstep
from disagg_engine.batching.queue import Queue
from disagg_engine.batching.sequence import Sequence
from disagg_engine.batching.types import Counts, EndReason, Request, Transfer
from disagg_engine.errors import DuplicateRequestError, RequestTooLargeError, UnknownRequestError
from disagg_engine.kv.protocol import KvLedger


class Roster:
    """All live requests of one instance; see the module's docstring.

    Running sequences are looked up by what they do next: `lockstep` holds those that decode, `prefilling` those with
    more to compute, `arriving` those that take part from a later time on. With pipeline stages, where sequences take
    turns, none of the three is used and `running` tells.
    """

    def __init__(self, *, config: BatchingConfig, ledger: KvLedger) -> None:
        self._config = config
        self.ledger = ledger
        self._largest = ledger.capacity_tokens // config.ranks
        self._block = ledger.block_tokens
        self._most = config.max_sequences * config.ranks
        self._headroom = int(config.watermark * ledger.capacity_tokens)
        self.grows = config.admission is Admission.PREEMPT
        self.lockstep = Lockstep(block_tokens=ledger.block_tokens, grows=self.grows)
        self.prefilling: dict[int, Sequence] = {}
        self.arriving: list[Sequence] = []
        self._sorted = config.in_lockstep
        self._static = config.policy is BatchPolicy.STATIC
        self._overhead = config.scheduling_overhead_seconds
        self._live: dict[str, Sequence] = {}
        self.waiting = Queue(config)
        self._pulling: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._holding: dict[str, Sequence] = {}
        self.ended: list[Sequence] = []
        self.transfers: list[Transfer] = []
        self._orders = 0
        self._submitted = self._refused = 0
        self._preemptions = self._queried = self._hit = 0
        self._ends = dict.fromkeys(EndReason, 0)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._live

    def get(self, request_id: str) -> Sequence:
        """A live request. Raises UnknownRequestError."""
        try:
            return self._live[request_id]
        except KeyError:
            raise UnknownRequestError(request_id) from None

    def running(self) -> Iterator[Sequence]:
        """Those that run and have not ended, in the order they were admitted."""
        return (sequence for sequence in self._running.values() if not sequence.ended)

    def members(self) -> list[Sequence]:
        """Those in lockstep, in the order they were admitted."""
        return [sequence for sequence in self._running.values() if sequence.lockstep is not None]

    def runs(self, sequence: Sequence) -> bool:
        """Whether it runs and has not ended."""
        return not sequence.ended and self._running.get(sequence.request_id) is sequence

    def ready_seconds(self, *, now: float) -> float:
        """When the first of those known of, but only ready later than `now`, is ready; infinite if nobody is."""
        first = self.waiting.next_ready(now)
        if self.arriving or not self._sorted:
            for sequence in self.arriving if self._sorted else self.running():
                if now < sequence.ready_seconds < first:
                    first = sequence.ready_seconds
        return first

    def has_room(self, request_id: str) -> bool:
        """Whether the request holds room in the ledger."""
        return request_id in self._running or request_id in self._pulling or request_id in self._holding

    def holds(self, request_id: str) -> bool:
        """Whether the request has ended and its KV is pinned."""
        return request_id in self._holding

    def needed_tokens(self, request: Request) -> int:
        """KV room the request may need at most: the last token's KV is never written, but `reserve` counts it."""
        return request.prompt_tokens + request.max_tokens - self.grows

    def enter(self, request: Request, *, now: float) -> Sequence:
        """A new request joins the queue. Raises DuplicateRequestError, or RequestTooLargeError (case WB2)."""
        request_id = request.request_id
        if request_id in self._live:
            raise DuplicateRequestError(request_id)
        self._submitted += 1
        needed = request.prompt_tokens + request.max_tokens - self.grows
        if needed > self._largest:
            self._refused += 1
            raise RequestTooLargeError(request_id=request_id, needed_tokens=needed, capacity_tokens=self._largest)
        sequence = Sequence.of(request, arrival_seconds=now)
        if not sequence.remote:
            sequence.ready_seconds += self._overhead
        self._live[request_id] = sequence
        self.waiting.push(sequence)
        return sequence

    def admit_head(self, *, now: float) -> bool:
        """Give the head of the queue room and move it to running, or to pulling; False if it must wait."""
        sequence = self.waiting.head(now)
        if sequence is None or self._active() >= self._most:
            return False
        known = sequence.prompt_tokens + sequence.made
        room, headroom = self._room(sequence)
        cached = self.ledger.open(
            sequence.request_id, tokens=known, room_tokens=room, keys=sequence.keys, headroom_tokens=headroom
        )
        if cached is None:
            return False
        self.waiting.take(sequence)
        self._queried += known
        self._hit += cached
        sequence.cached = sequence.held = cached
        sequence.room = -(-room // self._block) * self._block
        if sequence.admitted_seconds is None:
            sequence.admitted_seconds = now
        if sequence.remote:
            self._pulling[sequence.request_id] = sequence
            self.transfers.append(
                Transfer(request_id=sequence.request_id, prompt_tokens=sequence.prompt_tokens, cached_tokens=cached)
            )
        else:
            self._run(sequence)
            if self._sorted:
                self.prefilling[sequence.order] = sequence
        return True

    def may_admit(self, *, now: float) -> bool:
        """Whether the head of the queue may get room now; False only if it surely does not."""
        head = self.waiting.head(now)
        if head is None or self._active() >= self._most:
            return False
        room, headroom = self._room(head)
        if head.keys:
            if self.lockstep.fills and self.lockstep.steps_to_fill() is not None:
                return True  # blocks that it shares may become findable on the way
            room -= self.ledger.match(head.keys, head.known)
        return room + headroom <= self.ledger.free_tokens

    def admit_pulls(self, *, now: float) -> None:
        """Give room to as many requests to be pulled as stand at the head of the queue and fit."""
        if self._static and self.busy:
            return
        while (head := self.waiting.head(now)) is not None and head.remote and self.admit_head(now=now):
            pass

    @property
    def busy(self) -> bool:
        """Whether anybody runs."""
        return len(self._running) > len(self.ended)

    def take_transfers(self) -> tuple[Transfer, ...]:
        """Transfers that have got room since the last call; the loop tells them before it returns to its driver."""
        if not self.transfers:
            return ()
        transfers, self.transfers = tuple(self.transfers), []
        return transfers

    def arrived(self, request_id: str, *, now: float) -> Sequence:
        """A pull is complete: its request runs from `now` on. Raises UnknownRequestError if it was not pulling."""
        sequence = self._pulled(request_id, now=now)
        self._run(sequence)
        if self._sorted:
            self.arriving.append(sequence)
        return sequence

    def settle(self, *, now: float) -> None:
        """Let those that have arrived by `now` take part from the next iteration on."""
        later = []
        for sequence in self.arriving:
            if sequence.ready_seconds > now:
                later.append(sequence)
            elif self.runs(sequence):
                self.place(sequence)
        self.arriving = later

    def place(self, sequence: Sequence) -> None:
        """A running sequence of which something was computed: it decodes next, or has more of its prompt to do."""
        if not self._sorted:
            return
        if sequence.decodes:
            self.prefilling.pop(sequence.order, None)
            self.lockstep.join(sequence)
        else:
            self.prefilling[sequence.order] = sequence

    def pull_failed(self, request_id: str, *, now: float) -> None:
        """A pull failed: its request goes to the front of the queue, to be computed here."""
        sequence = self._pulled(request_id, now=now)
        self.ledger.close(request_id)
        sequence.held = 0
        self.waiting.push_front(sequence)

    def preempt(self, victim: Sequence) -> None:
        """Throw a running request out: its room is free, and it waits at the front to be computed again."""
        self._stop_running(victim, stays=False)
        self.ledger.close(victim.request_id)
        victim.held = 0
        victim.preemptions += 1
        self._preemptions += 1
        self.waiting.push_front(victim)

    def grow_members(self, preempted: list[str]) -> None:
        """Room for the next token of everybody in lockstep, if need be by throwing out the last admitted."""
        lockstep = self.lockstep
        growing = lockstep.growing(lockstep.steps)
        growing.sort(key=_order)
        for sequence in growing:
            if sequence.lockstep is not None and self.make_room(sequence, preempted):
                lockstep.grown(sequence)

    def grow_ahead(self, *, stop_step: int) -> None:
        """Room for the steps of a window after its first, before `stop_step`; it was seen that there is enough."""
        lockstep, block = self.lockstep, self._block
        for step in range(lockstep.steps + 1, stop_step):
            for sequence in sorted(lockstep.growing(step), key=_order):
                blocks = 1 + (stop_step - 1 - step) // block  # all that it needs before then
                self.ledger.grow(sequence.request_id, sequence.room + blocks * block)
                lockstep.grown(sequence, blocks)

    def make_room(self, sequence: Sequence, preempted: list[str], *, tokens: int = 1) -> bool:
        """Room for the sequence's next tokens, if need be by throwing out the last admitted of the lowest priority.

        False: that was the sequence itself.
        """
        while not self.ledger.grow(sequence.request_id, sequence.computed + tokens):
            victim = max((s for s in self.running() if not s.flying), key=_dispensable)
            self.preempt(victim)
            preempted.append(victim.request_id)
            if victim is sequence:
                return False
        return True

    def commit_filled(self) -> None:
        """Make the blocks findable that members have filled."""
        for sequence in self.lockstep.filled():
            self.ledger.commit(sequence.request_id, sequence.computed)

    def end_by_length(self, sequence: Sequence) -> None:
        """A running request has its last token. Its room stays until `close_ended`, for the driver to read."""
        if sequence.lockstep is not None:
            self.lockstep.leave(sequence, stays=self._static)
        elif self._sorted:
            self.prefilling.pop(sequence.order, None)
        sequence.ended = True
        self.ended.append(sequence)
        self._ends[EndReason.LENGTH] += 1

    def close_ended(self) -> None:
        """Take back the room of requests that ended by length, or pin it."""
        for sequence in self.ended:
            del self._running[sequence.request_id]
            self._put_away(sequence, keep=sequence.request.keep_kv)
        self.ended.clear()

    def end(self, sequence: Sequence, reason: EndReason) -> None:
        """End a live request wherever it is. STOP pins KV that is to be kept; the other reasons drop it."""
        request_id = sequence.request_id
        keep = sequence.request.keep_kv and reason is EndReason.STOP
        if request_id in self._holding:  # it ended before; only its pin is left
            if not keep:
                self.release(request_id)
        elif sequence.ended:  # by length, and not yet put away
            self.ended.remove(sequence)
            del self._running[request_id]
            self._put_away(sequence, keep=keep)
        else:
            self._ends[reason] += 1
            sequence.flying = False
            sequence.ended = True
            self._leave(sequence, keep=keep)

    def release(self, request_id: str) -> bool:
        """Unpin an ended request's KV; False if nothing was pinned."""
        if self._holding.pop(request_id, None) is None:
            return False
        del self._live[request_id]
        self.ledger.close(request_id)
        return True

    def counts(self) -> Counts:
        """Where the requests are."""
        return Counts(
            submitted=self._submitted,
            refused=self._refused,
            waiting=self.waiting.size,
            pulling=len(self._pulling),
            running=len(self._running) - len(self.ended),
            finished=self._ends[EndReason.LENGTH] + self._ends[EndReason.STOP],
            cancelled=self._ends[EndReason.CANCELLED],
            failed=self._ends[EndReason.FAILED],
            holding=len(self._holding),
            preemptions=self._preemptions,
            prefix_queried_tokens=self._queried,
            prefix_hit_tokens=self._hit,
        )

    def _room(self, sequence: Sequence) -> tuple[int, int]:
        """Tokens of room it needs to start, and how many must stay free beside it."""
        if not self.grows:
            return sequence.prompt_tokens + sequence.max_tokens, 0
        if self._active():
            return sequence.known, self._headroom
        return sequence.known, 0  # alone, it may take everything

    def _run(self, sequence: Sequence) -> None:
        self._orders += 1
        sequence.order = self._orders
        self._running[sequence.request_id] = sequence

    def _stop_running(self, sequence: Sequence, *, stays: bool) -> None:
        del self._running[sequence.request_id]
        if sequence.lockstep is not None:
            self.lockstep.leave(sequence, stays=stays)
        else:
            self.prefilling.pop(sequence.order, None)

    def _active(self) -> int:
        return len(self._running) - len(self.ended) + len(self._pulling)

    def _pulled(self, request_id: str, *, now: float) -> Sequence:
        sequence = self._pulling.pop(request_id, None)
        if sequence is None:
            raise UnknownRequestError(request_id)
        sequence.remote = False
        sequence.ready_seconds = now
        return sequence

    def _put_away(self, sequence: Sequence, *, keep: bool) -> None:
        """A sequence with room has just left the running set."""
        if keep:
            self._holding[sequence.request_id] = sequence
        else:
            self.ledger.close(sequence.request_id)
            del self._live[sequence.request_id]

    def _leave(self, sequence: Sequence, *, keep: bool) -> None:
        request_id = sequence.request_id
        if request_id in self._running:
            self._stop_running(sequence, stays=self._static)
            self._put_away(sequence, keep=keep)
            return
        if self._pulling.pop(request_id, None) is not None:
            self.ledger.close(request_id)
        else:
            self.waiting.remove(sequence)
        del self._live[request_id]


def _order(sequence: Sequence) -> int:
    return sequence.order


def _dispensable(sequence: Sequence) -> tuple[int, int]:
    return -sequence.request.priority, sequence.order
