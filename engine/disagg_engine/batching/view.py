"""What a composer sees of the loop, and does to it, while it composes one iteration."""

from __future__ import annotations

from disagg_engine.batching.config import BatchingConfig
from disagg_engine.batching.roster import Roster
from disagg_engine.batching.sequence import Sequence

Take = tuple[Sequence, int]
"""A sequence and how many tokens of it the iteration computes."""


class View:
    """One iteration in the making; `open` starts the next.

    takes: prompt chunks taken so far, and with pipeline stages decodes. decodes: the lockstep takes part. steady: the
    following iterations would be composed alike, as long as they are decodes of the same batch and nothing happens.
    preempted: who was thrown out.
    """

    def __init__(self, roster: Roster, *, config: BatchingConfig) -> None:
        self._roster = roster
        self._pipeline = config.pipeline
        self._in_lockstep = config.in_lockstep
        self._speculation = config.speculation
        self.open(float("-inf"))

    def open(self, now: float) -> None:
        """Start composing an iteration that begins at `now`."""
        self.now = now
        self.takes: list[Take] = []
        self.decodes = False
        self.steady = True
        self.preempted: list[str] = []
        if self._roster.arriving:
            self._roster.settle(now=now)

    def take(self, sequence: Sequence, tokens: int) -> None:
        """The iteration computes that many further tokens of the sequence."""
        self.takes.append((sequence, tokens))

    def no_prompts(self) -> bool:
        """Whether nobody prefills or waits, so that only decodes are left to compose of. False: look closer."""
        return self._in_lockstep and not self._roster.prefilling and not self._roster.waiting.size

    def prefilling(self) -> list[Sequence]:
        """Running sequences with more than a decode to compute that may take part, in the order they were admitted."""
        if self._in_lockstep:
            prefilling = self._roster.prefilling
            return list(prefilling.values()) if prefilling else []
        return [s for s in self._candidates() if not s.decodes]

    def can_decode(self) -> bool:
        """Whether a running sequence could decode now."""
        if self._in_lockstep:
            return self._roster.lockstep.size > 0
        return any(s.decodes for s in self._candidates())

    def decode(self) -> int:
        """Everybody who decodes takes part, as far as there is room; how many do.

        With pipeline stages it is one micro-batch of them: its share of all that decode, those in flight included, and
        it takes whoever waited longest.
        """
        roster = self._roster
        if self._in_lockstep:
            if roster.grows:
                roster.grow_members(self.preempted)
            self.decodes = roster.lockstep.size > 0
            return roster.lockstep.size
        ready = [s for s in self._candidates() if s.decodes]
        if ready and self._pipeline > 1:
            share = -(-sum(1 for s in roster.running() if s.decodes) // self._pipeline)
            ready = sorted(ready, key=_served)[:share]
        takes = []
        for sequence in ready:
            tokens = self._decode_tokens(sequence)
            if sequence.held > 0 and roster.make_room(sequence, self.preempted, tokens=tokens):
                takes.append((sequence, tokens))
        # The order is not that of admission, so a later one may have thrown out one taken before it.
        takes = [take for take in takes if take[0].held > 0]
        self.takes.extend(takes)
        return len(takes)

    def _decode_tokens(self, sequence: Sequence) -> int:
        speculation = self._speculation
        if speculation is None:
            return 1
        tokens = speculation.tokens(sequence.request_id, sequence.verified)
        return min(tokens, sequence.max_tokens - sequence.made)

    def head(self) -> Sequence | None:
        """The first of the queue, if it has arrived. Requests to be pulled before it are given room on the way."""
        waiting = self._roster.waiting
        if not waiting.size:
            return None
        head = waiting.head(self.now)
        if head is not None and head.remote:
            self._roster.admit_pulls(now=self.now)
            head = waiting.head(self.now)
        return None if head is None or head.remote else head

    def rank(self, sequence: Sequence) -> tuple[int, float]:
        """The smaller, the sooner it should be computed, be it waiting or under way."""
        return -sequence.request.priority, self._roster.waiting.rank(sequence)

    def busy(self) -> bool:
        """Whether anybody runs."""
        return self._roster.busy

    def new_batch(self) -> None:
        """Those who were computed along with a batch that is done are no longer; needs that nobody runs."""
        self._roster.lockstep.drop_ballast()

    def head_tokens(self, head: Sequence) -> int:
        """Tokens the head has to compute, what is cached now left out."""
        return head.known - self._roster.ledger.match(head.keys, head.known) if head.keys else head.known

    def admit(self) -> bool:
        """Move the head to the running set; False if there is no room for it."""
        return self._roster.admit_head(now=self.now)

    def _candidates(self) -> list[Sequence]:
        now = self.now
        return [s for s in self._roster.running() if not s.flying and s.ready_seconds <= now]


def _served(sequence: Sequence) -> int:
    return sequence.served
