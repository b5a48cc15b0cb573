"""One colocated instance under prefill-first batching with reserved room.

    idle ──arrival──► prompts ──end──► prompts (if more wait and fit), else decodes, else idle
                         ▲                │ end: somebody's last token
                         └──arrival cuts──┘ the window of decode steps at the step in flight

A window of decode steps lasts until the first of its sequences has its last token. How many steps the instance has made
is counted once for all sequences; one is over when the count reaches a number that is known when it begins to decode,
so a heap of these numbers tells the next end. The context of all grows by their number a step.

A request that arrives while another waits for room cannot be admitted before it, so it does not cut the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import sqrt

from disagg_engine.timemodel import CountedTimeModel, DecodeLine, steps_within, window_seconds
from disagg_simulator.deployment import Group
from disagg_simulator.gaps import Windows
from disagg_simulator.prefixes.ledger import Holding, Match, RunLedger
from disagg_simulator.prefixes.runs import Runs
from disagg_simulator.recording import InstanceRecord, Outcome, Recording

NEVER = float("inf")
COMPLETED = int(Outcome.COMPLETED)
NOBODY: list[int] = []

Prefill = tuple[int, Match, int]
"""A request in a prompt batch: its index, what was found of it, and the fresh blocks it took."""

Decode = tuple[int, int, int, Holding]
"""A decoding request: the step count of its last token, its order of admission, its index, and its room."""


class PrefixInstance:
    """State of one instance; `due` is when its iteration or window ends.

    Whoever drives it calls, at ascending times, `arrive`, `complete` (at `due`, before arrivals of the same time) and
    `plan` (after them).
    """

    __slots__ = (
        "_admitted",
        "_block",
        "_context",
        "_decodes",
        "_first",
        "_growth",
        "_inputs",
        "_ledger",
        "_limit",
        "_lines",
        "_model",
        "_most",
        "_outputs",
        "_pieces",
        "_prefills",
        "_recording",
        "_rested",
        "_rests",
        "_runs",
        "_start",
        "_steps",
        "_waiting",
        "_window",
        "_windows",
        "capacity_tokens",
        "due",
        "group",
        "number",
        "record",
    )

    def __init__(
        self,
        number: int,
        group: Group,
        model: CountedTimeModel,
        *,
        runs: Runs,
        lengths: Sequence[int],
        recording: Recording,
        record: InstanceRecord,
        windows: Windows | None,
    ) -> None:
        self.number = number
        self.group = group
        self.record = record
        self.due = NEVER
        blocks = group.capacity_tokens // group.block_tokens
        self.capacity_tokens = blocks * group.block_tokens
        self._block = group.block_tokens
        self._ledger = RunLedger(blocks=blocks, block_tokens=group.block_tokens, lengths=lengths)
        self._runs = runs
        self._model = model
        self._pieces: dict[int, tuple[DecodeLine, ...]] = {}
        self._recording = recording
        self._inputs = recording.requests.input_tokens
        self._outputs = recording.requests.output_tokens
        self._limit = group.batching.prefill_limit_tokens
        self._most = group.batching.max_sequences
        self._waiting: deque[int] = deque()
        self._prefills: list[Prefill] = []
        self._decodes: list[Decode] = []
        self._admitted = 0
        self._steps = 0
        self._context = 0
        # The window in flight: its start and number of steps (0: none), and either the seconds of its first step and
        # what each next one takes more, or (where these change on the way) the pieces of the time model.
        self._start = 0.0
        self._window = 0
        self._first = 0.0
        self._growth = 0.0
        self._lines: tuple[DecodeLine, ...] | None = None
        # For times between tokens: how many decode since when, and how many of them in all.
        self._windows = windows
        self._rests: list[tuple[int, float]] = []
        self._rested = 0

    def arrive(self, request: int, now: float) -> bool:
        """A request joins the queue; whether `due` changed or, on an idle instance, a plan is to be made."""
        waiting = self._waiting
        waiting.append(request)
        if len(waiting) > 1:
            return False
        if self._window:
            return self._cut(now)
        return self.due == NEVER

    def complete(self, now: float) -> tuple[list[int], list[int]]:
        """What is due at `now` has ended: requests that are over, and those that have begun to decode."""
        self.due = NEVER
        if self._window:
            return self._complete_window(now), NOBODY
        return self._complete_prompts(now)

    def plan(self, now: float) -> bool:
        """Start what can run now, if nothing is in flight; whether something was started."""
        if self.due != NEVER:
            return False
        if self._waiting and self._start_prompts(now):
            return True
        decodes = self._decodes
        if not decodes:
            return False
        sequences, context = len(decodes), self._context
        pieces = self._pieces.get(sequences)
        if pieces is None:
            pieces = self._pieces[sequences] = self._model.decode_lines(sequences)
        line = pieces[0]
        steps = decodes[0][0] - self._steps
        self._start = now
        self._window = steps
        if context + sequences * steps <= line.until_tokens:
            self._lines = None
            slope = line.seconds_per_token
            first = self._first = line.seconds + slope * context
            growth = self._growth = slope * sequences
            self.due = now + steps * (first + growth * (steps - 1) * 0.5)
        else:
            self._lines = pieces
            self.due = now + self._span(steps)
        return True

    def _span(self, steps: int) -> float:
        """Seconds of the first so many steps of the window in flight."""
        if self._lines is None:
            return steps * (self._first + self._growth * (steps - 1) * 0.5)
        return window_seconds(self._lines, sequences=len(self._decodes), context_tokens=self._context, steps=steps)

    def _cut(self, now: float) -> bool:
        """End the window with the step in flight at `now`; a step that ends at that very time is the last."""
        seconds, window = now - self._start, self._window
        if self._lines is None:
            growth = self._growth
            linear = self._first - 0.5 * growth
            steps = min(window, int(2.0 * seconds / (linear + sqrt(linear * linear + 2.0 * growth * seconds))))
            # The root may be off by one step where a step ends near `now`.
            while steps > 0 and self._span(steps) > seconds:
                steps -= 1
            while steps < window and self._span(steps + 1) <= seconds:
                steps += 1
        else:
            steps, _ = steps_within(
                self._lines, sequences=len(self._decodes), context_tokens=self._context, seconds=seconds, limit=window
            )
        if not steps or self._start + self._span(steps) < now:
            steps += 1
        if steps >= window:
            return False
        self._window = steps
        self.due = self._start + self._span(steps)
        return True

    def _start_prompts(self, now: float) -> bool:
        """Admit what fits and fills an iteration; False if not even the first in the queue can start."""
        waiting, ledger, block, inputs, runs = self._waiting, self._ledger, self._block, self._inputs, self._runs
        left, room = self._limit, self._most - len(self._decodes)
        starts = self._recording.prefill_start
        takes: list[Prefill] = []
        new = reread = last = 0
        pairs = 0.0
        while waiting and (left > 0 or not takes):
            request = waiting[0]
            prompt = inputs[request]
            match = ledger.match(runs[request] if prompt % block else runs[request][:-1])
            held = match[1] * block
            tokens = prompt - held
            if (takes and tokens > left) or len(takes) >= room:
                break
            fresh = ledger.open(match, prompt + self._outputs[request])
            if fresh is None:
                break
            waiting.popleft()
            takes.append((request, match, fresh))
            starts[request] = now
            left -= tokens
            new += tokens
            reread += held
            pairs += tokens * (held + 0.5 * tokens)
            if held and tokens == 1:  # to the engine, computing the last token after a context is a decode
                last += 1
        if not takes:
            return False
        self._prefills = takes
        seconds = self._model.counted_seconds(new, pairs, reread, 0, 0)
        self.due = now + seconds
        record = self.record
        record.iterations += 1
        record.busy_seconds += seconds
        record.prompt_tokens += new - last
        record.prefix_queried_tokens += new + reread
        record.prefix_hit_tokens += reread
        return True

    def _complete_prompts(self, now: float) -> tuple[list[int], list[int]]:
        recording, ledger, outputs, decodes = self._recording, self._ledger, self._outputs, self._decodes
        ends, firsts, steps, runs = recording.prefill_end, recording.first_token, self._steps, self._runs
        over: list[tuple[int, Holding]] = []
        begun: list[int] = []
        for request, match, fresh in self._prefills:
            ends[request] = firsts[request] = now
            holding = ledger.publish(runs[request], match, fresh)
            rest = outputs[request] - 1
            if rest:
                self._admitted += 1
                heappush(decodes, (steps + rest, self._admitted, request, holding))
                self._context += self._inputs[request]
                begun.append(request)
            else:
                over.append((request, holding))
        if self._windows is not None:
            self._rests.append((len(decodes) - self._rested, now))
            self._rested = len(decodes)
        self.record.output_tokens += len(self._prefills)
        for request, holding in over:
            self._end(request, holding, now)
        return [request for request, _ in over], begun

    def _complete_window(self, now: float) -> list[int]:
        decodes, window = self._decodes, self._window
        sequences = len(decodes)
        steps = self._steps = self._steps + window
        context = self._context + sequences * window
        record = self.record
        record.iterations += window
        record.busy_seconds += now - self._start
        record.output_tokens += sequences * window
        if self._windows is not None:
            self._note_gaps(self._windows, window)
        self._window = 0
        over = []
        while decodes and decodes[0][0] == steps:
            _, _, request, holding = heappop(decodes)
            context -= self._inputs[request] + self._outputs[request] - 1
            self._end(request, holding, now)
            over.append(request)
        self._context = context
        if self._windows is not None:
            self._rests, self._rested = [(len(decodes), now)], len(decodes)
        return over

    def _note_gaps(self, windows: Windows, steps: int) -> None:
        """The times between tokens of so many steps of the window in flight."""
        if self._lines is None:
            windows.after_rests(self._rests, self._start, self._first, self._growth, steps)
            return
        windows.after_rests(self._rests, self._start, self._span(1), 0.0, 1)
        for step in range(1, steps):
            windows.add(self._span(step + 1) - self._span(step), 0.0, 1, len(self._decodes))

    def _end(self, request: int, holding: Holding, now: float) -> None:
        self._ledger.close(holding)
        recording = self._recording
        recording.finish[request] = now
        recording.tokens[request] = self._outputs[request]
        recording.outcome[request] = COMPLETED
