"""Sequences that decode in step.

Without pipeline stages every decode iteration computes one token of every sequence that decodes. So their progress is
one number, `steps`, and each of them only has its distance to it: an iteration, or a window of many, costs the same for
one sequence as for two hundred. What happens to single ones is kept in calendars by the step at which it is due:

    ends        its last token comes
    growths     its next token needs a further block of room (`preempt` admission; `reserve` has taken all room before)
    fills       a block gets full whose key others could find

Members join and leave between steps only; a sequence that becomes able to decode during one waits for its end.

A static batch is computed at its full size until its last request is done: members that end stay in it as ballast.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from disagg_engine.batching.sequence import Sequence

_Due = tuple[int, int, Sequence]
"""Step at which something is due, and the sequence's order, which tells whether the entry still holds."""


class Lockstep:
    """See the module's text. `grows`: room is taken block by block."""

    def __init__(self, *, block_tokens: int, grows: bool) -> None:
        self.steps = 0
        """Decode steps finished so far."""
        self.size = 0
        self.last_seconds = float("nan")
        """When the last step ended: everybody in it got a token then."""
        self.fresh: dict[int, Sequence] = {}
        """Members without a first token yet, by order."""
        self.joined: dict[int, float | None] = {}
        """When members that have taken no step yet got their last token, by order; None: elsewhere."""
        self._block = block_tokens
        self._grows = grows
        self._offsets = 0
        self._ballast = 0
        self._ends: list[_Due] = []
        self.fills: list[_Due] = []
        """When members fill blocks that have a key; empty as long as nobody has one."""
        self._growths: dict[int, list[Sequence]] = {}

    @property
    def batch_sequences(self) -> int:
        """Sequences that a step computes: the members, and ballast."""
        return self.size + self._ballast

    @property
    def context_tokens(self) -> int:
        """KV tokens that they all hold."""
        return self._offsets + (self.size + self._ballast) * self.steps

    def drop_ballast(self) -> None:
        """The batch is done; needs that nobody is left in it."""
        self._ballast = self._offsets = 0

    def join(self, sequence: Sequence) -> None:
        """A running sequence that decodes takes part from the next step on."""
        steps, order = self.steps, sequence.order
        if sequence.made == 0:
            self.fresh[order] = sequence
        else:
            self.joined[order] = sequence.last_token_seconds
        if self._grows:
            self._growths.setdefault(steps + sequence.room - sequence.held, []).append(sequence)
        sequence.held -= steps
        sequence.made -= steps
        sequence.joined_step = steps
        sequence.fill_step = -1
        sequence.lockstep = self
        self.size += 1
        self._offsets += sequence.held
        heappush(self._ends, (sequence.max_tokens - sequence.made, order, sequence))
        if sequence.keys:
            self.watch_fill(sequence)

    def leave(self, sequence: Sequence, *, stays: bool = False) -> None:
        """A member has ended or lost its room; its share of a step in flight is lost. `stays`: as ballast."""
        steps = self.steps
        self.size -= 1
        if stays:
            self._ballast += 1
        else:
            self._offsets -= sequence.held
        sequence.held += steps
        sequence.made += steps
        sequence.lockstep = None
        if steps > sequence.joined_step:
            sequence.last_token_seconds = self.last_seconds
        else:
            self.joined.pop(sequence.order, None)
            self.fresh.pop(sequence.order, None)

    def advance(self, count: int, *, end_seconds: float) -> None:
        """`count` steps have ended, the last of them at that time."""
        self.steps += count
        self.last_seconds = end_seconds
        if self.joined:
            self.joined = {}
        if self.fresh:
            self.fresh = {}

    # ---- ends --------------------------------------------------------------------------------------------------

    def steps_to_end(self) -> int:
        """Steps until the first member has its last token; needs a member."""
        ends = self._ends
        while True:
            step, order, sequence = ends[0]
            if sequence.lockstep is self and sequence.order == order:
                return step - self.steps
            heappop(ends)

    def ended(self) -> list[Sequence]:
        """Members that have got their last token, in the order they were admitted; each is told once."""
        found = []
        ends, steps = self._ends, self.steps
        while ends and ends[0][0] <= steps:
            _, order, sequence = heappop(ends)
            if sequence.lockstep is self and sequence.order == order:
                found.append(sequence)
        return found

    # ---- room --------------------------------------------------------------------------------------------------

    def growing(self, step: int) -> list[Sequence]:
        """Members that need a further block before that step (counted from 0) is computed; each is told once."""
        due = self._growths.pop(step, None)
        if due is None:
            return []
        return [sequence for sequence in due if sequence.lockstep is self]

    def grown(self, sequence: Sequence, blocks: int = 1) -> None:
        """The member has got so many blocks more."""
        sequence.room += blocks * self._block
        self._growths.setdefault(sequence.room - sequence.held, []).append(sequence)

    def steps_with_room(self, free_blocks: int, limit: int) -> int:
        """How many of the next `limit` steps find room; the first one's was taken already. May say too few."""
        if not self._grows or self.size * ((limit - 1) // self._block + 1) <= free_blocks:
            return limit
        for step in range(1, limit):
            due = self._growths.get(self.steps + 1 + (step - 1) % self._block, ())
            free_blocks -= len(due)
            if free_blocks < 0:
                return step
        return limit

    def steps_to_growth(self, limit: int) -> int:
        """Steps, at most `limit`, before the first that needs a further block; the first one's was taken already."""
        if self._grows:
            for step in range(1, min(limit, self._block + 1)):
                if self._growths.get(self.steps + step):
                    return step
        return limit

    # ---- keys --------------------------------------------------------------------------------------------------

    def watch_fill(self, sequence: Sequence) -> None:
        """Note when the member fills its next block that has a key."""
        whole = sequence.computed // self._block
        step = (whole + 1) * self._block - sequence.held
        if len(sequence.keys) > whole and sequence.fill_step != step:
            sequence.fill_step = step
            heappush(self.fills, (step, sequence.order, sequence))

    def steps_to_fill(self) -> int | None:
        """Steps until a member has filled a block that has a key; None if nobody will."""
        fills = self.fills
        while fills:
            step, order, sequence = fills[0]
            if sequence.lockstep is self and sequence.order == order:
                return step - self.steps
            heappop(fills)
        return None

    def filled(self) -> Iterator[Sequence]:
        """Members that have filled a block that has a key since the last call."""
        fills, steps = self.fills, self.steps
        while fills and fills[0][0] <= steps:
            _, order, sequence = heappop(fills)
            if sequence.lockstep is self and sequence.order == order:
                yield sequence
                self.watch_fill(sequence)
