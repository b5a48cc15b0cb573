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

from collections import deque
from collections.abc import Iterator

from disagg_contract.config import Admission
from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.sequence import Sequence
from disagg_engine.batching.types import Counts, EndReason, Request, Transfer
from disagg_engine.errors import DuplicateRequestError, RequestTooLargeError, UnknownRequestError
from disagg_engine.kv.protocol import KvLedger


class Roster:
    """All live requests of one instance; see the module's docstring."""

    def __init__(self, *, config: BatchingConfig, ledger: KvLedger) -> None:
        self._config = config
        self.ledger = ledger
        self._live: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._pulling: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._holding: dict[str, Sequence] = {}
        self._ended: list[Sequence] = []
        self._transfers: list[Transfer] = []
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

    def last_admitted(self) -> Iterator[Sequence]:
        """The same, last admitted first."""
        return (sequence for sequence in reversed(self._running.values()) if not sequence.ended)

    def head(self) -> Sequence | None:
        """The first of the queue, arrived or not."""
        return self._waiting[0] if self._waiting else None

    def has_room(self, request_id: str) -> bool:
        """Whether the request holds room in the ledger."""
        return request_id in self._running or request_id in self._pulling or request_id in self._holding

    def holds(self, request_id: str) -> bool:
        """Whether the request has ended and its KV is pinned."""
        return request_id in self._holding

    def needed_tokens(self, request: Request) -> int:
        """KV room the request may need at most: the last token's KV is never written, but `reserve` counts it."""
        spare = 0 if self._config.admission is Admission.RESERVE else 1
        return request.prompt_tokens + request.max_tokens - spare

    def enter(self, request: Request, *, now: float) -> None:
        """A new request joins the queue. Raises DuplicateRequestError, or RequestTooLargeError (case WB2)."""
        if request.request_id in self._live:
            raise DuplicateRequestError(request.request_id)
        self._submitted += 1
        needed = self.needed_tokens(request)
        if needed > self.ledger.capacity_tokens:
            self._refused += 1
            raise RequestTooLargeError(
                request_id=request.request_id, needed_tokens=needed, capacity_tokens=self.ledger.capacity_tokens
            )
        sequence = Sequence(request, arrival_seconds=now)
        self._live[request.request_id] = sequence
        self._waiting.append(sequence)

    def admit_head(self, *, now: float) -> bool:
        """Give the head of the queue room and move it to running, or to pulling; False if it must wait."""
        sequence = self._waiting[0]
        if sequence.ready_seconds > now or self._active() >= self._config.max_sequences:
            return False
        request = sequence.request
        known = sequence.known
        room, headroom = known, 0
        if self._config.admission is Admission.RESERVE:
            room = request.prompt_tokens + request.max_tokens
        elif self._active():  # alone, it may take everything
            headroom = int(self._config.watermark * self.ledger.capacity_tokens)
        cached = self.ledger.open(
            sequence.request_id, tokens=known, room_tokens=room, keys=sequence.keys, headroom_tokens=headroom
        )
        if cached is None:
            return False
        self._waiting.popleft()
        self._queried += known
        self._hit += cached
        sequence.cached = sequence.computed = cached
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

    def admit_pulls(self, *, now: float) -> None:
        """Give room to as many requests to be pulled as stand at the head of the queue and fit."""
        while self._waiting and self._waiting[0].remote and self.admit_head(now=now):
            pass

    def take_transfers(self) -> tuple[Transfer, ...]:
        """Transfers that have got room since the last call; the loop tells them before it returns to its driver."""
        transfers, self._transfers = tuple(self._transfers), []
        return transfers

    def arrived(self, request_id: str, *, now: float) -> Sequence:
        """A pull is complete: its request runs from `now` on. Raises UnknownRequestError if it was not pulling."""
        sequence = self._pulled(request_id, now=now)
        self._running[request_id] = sequence
        return sequence

    def pull_failed(self, request_id: str, *, now: float) -> None:
        """A pull failed: its request goes to the front of the queue, to be computed here."""
        sequence = self._pulled(request_id, now=now)
        self.ledger.close(request_id)
        sequence.computed = 0
        self._waiting.appendleft(sequence)

    def preempt(self, victim: Sequence) -> None:
        """Throw a running request out: its room is free, and it waits at the front to be computed again."""
        del self._running[victim.request_id]
        self.ledger.close(victim.request_id)
        victim.computed = 0
        victim.preemptions += 1
        self._preemptions += 1
        self._waiting.appendleft(victim)

    def end_by_length(self, sequence: Sequence) -> None:
        """A running request has its last token. Its room stays until `close_ended`, for the driver to read."""
        sequence.ended = True
        self._ended.append(sequence)
        self._ends[EndReason.LENGTH] += 1

    def close_ended(self) -> None:
        """Take back the room of requests that ended by length, or pin it."""
        for sequence in self._ended:
            del self._running[sequence.request_id]
            self._put_away(sequence, keep=sequence.request.keep_kv)
        self._ended.clear()

    def end(self, sequence: Sequence, reason: EndReason) -> None:
        """End a live request wherever it is. STOP pins KV that is to be kept; the other reasons drop it."""
        request_id = sequence.request_id
        keep = sequence.request.keep_kv and reason is EndReason.STOP
        if request_id in self._holding:  # it ended before; only its pin is left
            if not keep:
                self.release(request_id)
        elif sequence.ended:  # by length, and not yet put away
            self._ended.remove(sequence)
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

    def _active(self) -> int:
        return len(self._running) - len(self._ended) + len(self._pulling)

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
        if self._running.pop(request_id, None) is not None:
            self._put_away(sequence, keep=keep)
            return
        if self._pulling.pop(request_id, None) is not None:
            self.ledger.close(request_id)
        else:
            self._waiting.remove(sequence)
        del self._live[request_id]
