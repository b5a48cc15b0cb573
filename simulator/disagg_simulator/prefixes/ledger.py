"""KV room of one instance with prefix reuse, in runs of blocks (see `runs`) instead of blocks with ids.

Decides exactly as `disagg_engine.kv.BlockLedger` does for requests that reserve their room once and give it back once.
Which physical block a name lies in matters to whoever holds contents; who finds what, and what is evicted when, follows
from names and counts alone:

    held        runs that can be found and that an open request has, with the number of those requests
    cached      runs that can be found and that nobody has, least recently held first, and of one request the end before
                the beginning
    free        blocks without a name that can be found, as a number

A prompt's runs can be found when it has been computed. One that can be found by then stays with whom it belongs to, and
the newcomer's blocks are unnamed ones.

What a request leaves behind is a *sheet*: its runs with a stamp, which each of them has until somebody takes it up
again; sheets are used up from the oldest on, and from their end, and a run with another stamp by then is passed over.
Room may be needed for less than a run. Then its end is evicted, and there is never more than one such *torn* run, the
next to go. Who takes it up splits it: the part that is there and the part that is not are runs of their own from then
on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

HELD = -1
"""Stamp of a run that somebody holds."""

SPARE_RUNS = 1024
"""Runs on sheets beyond twice those that can be found before sheets are cleared of runs that were taken up again."""

Match = tuple[list[int], int]
"""The leading runs of a prompt that can be found, and the blocks of them that are there."""

Holding = tuple[list[int], list[int], int]
"""What an open request has: the runs it found, those it made findable, and its number of unnamed blocks."""


class RunLedger:
    """See the module's docstring.

    Room is `blocks` blocks of `block_tokens`. lengths: blocks of each run, by number.
    """

    __slots__ = (
        "_block",
        "_cached",
        "_free",
        "_lengths",
        "_listed",
        "_more",
        "_parts",
        "_sheets",
        "_splits",
        "_stamp",
        "_stamps",
        "_torn",
        "_torn_blocks",
    )

    def __init__(self, *, blocks: int, block_tokens: int, lengths: Sequence[int]) -> None:
        self._block = block_tokens
        self._free = blocks
        self._cached = 0
        self._lengths = lengths
        self._parts: list[int] = []
        """Blocks of the parts of split runs; part n is the run numbered −1 − n."""
        self._splits: dict[int, tuple[int, int]] = {}
        self._stamps: dict[int, int] = {}
        """Every run that can be found: HELD, or the stamp of the sheet it is on."""
        self._more: dict[int, int] = {}
        """Holders beyond the first, of runs that have several."""
        self._sheets: deque[tuple[int, list[int]]] = deque()
        self._listed = 0
        self._stamp = 0
        self._torn: int | None = None
        self._torn_blocks = 0

    def match(self, runs: Sequence[int]) -> Match:
        """What can be found of a prompt whose runs, up to the one that holds its last token, are these."""
        stamps, lengths = self._stamps, self._lengths
        hits: list[int] = []
        held = 0
        for run in self._whole(runs):
            if run not in stamps:
                break
            hits.append(run)
            if run == self._torn:
                held += self._torn_blocks
                break
            held += lengths[run] if run >= 0 else self._parts[-1 - run]
        return hits, held

    def open(self, match: Match, room_tokens: int) -> int | None:
        """Take room for a request that reuses `match`; the number of fresh blocks, or None where they are not there."""
        hits, held = match
        fresh = -(-room_tokens // self._block) - held
        stamps, free = self._stamps, self._free
        if fresh > free:
            idle = sum(self._blocks(run) for run in hits if stamps[run] != HELD)
            if fresh + idle > free + self._cached:
                return None
        for place, run in enumerate(hits):
            if stamps[run] == HELD:
                self._more[run] = self._more.get(run, 0) + 1
                continue
            self._cached -= self._blocks(run)
            if run == self._torn:
                del stamps[run]
                run = hits[place] = self._split()
            stamps[run] = HELD
        if fresh > free:
            self._evict(fresh - free)
            self._free = 0
        else:
            self._free = free - fresh
        return fresh

    def publish(self, runs: Sequence[int], match: Match, fresh: int) -> Holding:
        """The prompt of an open request has been computed: its runs beyond the match can be found from now on."""
        stamps, lengths = self._stamps, self._lengths
        hits = match[0]
        ours = []
        for run in self._whole(runs)[len(hits) :]:
            if run in stamps:
                if run != self._torn:
                    continue
                # Its beginning stays where it is, the next to be evicted; the rest is ours.
                stamp = stamps.pop(run)
                part = self._split()
                stamps[part] = stamp
                self._sheets[0][1][-1] = self._torn = part
                self._torn_blocks = self._parts[-1 - part]
                run = self._splits[run][1]
            stamps[run] = HELD
            ours.append(run)
            fresh -= lengths[run] if run >= 0 else self._parts[-1 - run]
        return hits, ours, fresh

    def close(self, holding: Holding) -> None:
        """Give a request's room back. Its runs can be found until they are evicted."""
        hits, ours, unnamed = holding
        self._free += unnamed
        more, stamps, lengths = self._more, self._stamps, self._lengths
        stamp = self._stamp = self._stamp + 1
        sheet = []
        cached = 0
        for run in (*hits, *ours) if hits else ours:
            if more and run in more:
                if more[run] == 1:
                    del more[run]
                else:
                    more[run] -= 1
                continue
            stamps[run] = stamp
            sheet.append(run)
            cached += lengths[run] if run >= 0 else self._parts[-1 - run]
        if sheet:
            self._cached += cached
            self._sheets.append((stamp, sheet))
            self._listed += len(sheet)
            if self._listed > 2 * len(stamps) + SPARE_RUNS:
                self._clear_sheets()

    def _blocks(self, run: int) -> int:
        """Blocks of a run that can be found."""
        if run == self._torn:
            return self._torn_blocks
        return self._lengths[run] if run >= 0 else self._parts[-1 - run]

    def _whole(self, runs: Sequence[int]) -> Sequence[int]:
        """The runs, with the parts of those that were split in their place."""
        splits = self._splits
        while splits and not splits.keys().isdisjoint(runs):
            runs = [part for run in runs for part in splits.get(run, (run,))]
        return runs

    def _split(self) -> int:
        """Make the torn run two: what is there of it, which is returned, and the rest."""
        torn = self._torn
        assert torn is not None
        length = self._lengths[torn] if torn >= 0 else self._parts[-1 - torn]
        self._parts += (self._torn_blocks, length - self._torn_blocks)
        there = 1 - len(self._parts)
        self._splits[torn] = there, there - 1
        self._torn = None
        return there

    def _evict(self, count: int) -> None:
        """Forget so many cached blocks; there are as many."""
        stamps, sheets = self._stamps, self._sheets
        self._cached -= count
        while count:
            stamp, sheet = sheets[0]
            run = sheet[-1]
            if stamps.get(run) == stamp:
                blocks = self._blocks(run)
                if blocks > count:
                    self._torn, self._torn_blocks = run, blocks - count
                    return
                count -= blocks
                del stamps[run]
                self._torn = None
            sheet.pop()
            self._listed -= 1
            if not sheet:
                sheets.popleft()

    def _clear_sheets(self) -> None:
        stamps = self._stamps
        kept = ((stamp, [run for run in sheet if stamps.get(run) == stamp]) for stamp, sheet in self._sheets)
        self._sheets = deque((stamp, sheet) for stamp, sheet in kept if sheet)
        self._listed = sum(len(sheet) for _, sheet in self._sheets)
