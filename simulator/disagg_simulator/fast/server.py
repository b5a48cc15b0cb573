"""One instance as the fast lane keeps it: its settings, its queue, and its time model as tables.

The tables ask the time model once for each batch size or prompt length and remember the answer, so nothing of a time
model is written down here a second time.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

import numpy as np

from disagg_engine.timemodel import BatchShape, Chunk, CountedTimeModel
from disagg_simulator.deployment import Group
from disagg_simulator.recording import InstanceRecord

INDEX_BITS = 32
"""A request's index in the lower bits of a whole number, what it is sorted by above them."""

INDEX_MASK = (1 << INDEX_BITS) - 1

NEVER = 1 << 62
"""The number of an iteration that never comes."""

Piece = tuple[float, float, float, float, float, float]
"""(since_tokens, until_tokens, seconds, seconds_per_token, growth, half).

A `DecodeLine`, how much longer each step of a batch is than the one before, and half of that.
"""


class Pieces(dict[int, Piece]):
    """Batch size → the piece of a decode step's time over the context that was asked for last.

    Whoever finds that its context is not on it asks `at`.
    """

    def __init__(self, time_model: CountedTimeModel) -> None:
        super().__init__()
        self._time_model = time_model

    def __missing__(self, sequences: int) -> Piece:
        return self.at(sequences, 0)

    def at(self, sequences: int, context: int) -> Piece:
        """The piece that a step from that context on is on."""
        since = 0.0
        for line in self._time_model.decode_lines(sequences):
            if context < line.until_tokens:
                break
            since = line.until_tokens
        growth = line.seconds_per_token * sequences
        self[sequences] = piece = (
            since,
            line.until_tokens,
            line.seconds,
            line.seconds_per_token,
            growth,
            0.5 * growth,
        )
        return piece


class Prompts(dict[int, float]):
    """Prompt length → seconds of an iteration that computes this prompt alone."""

    def __init__(self, time_model: CountedTimeModel) -> None:
        super().__init__()
        self._time_model = time_model

    def __missing__(self, tokens: int) -> float:
        seconds = self._time_model.counted_seconds(tokens, 0.5 * tokens * tokens, 0, 0, 0)
        self[tokens] = seconds
        return seconds


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """One instance. number: its place in `Recording.instances`; place: its place in its pool (in `load`).

    capacity: KV room in blocks. uniform: all answers are equally long. queue: requests that were sent to it and that it
    has not looked at. load: what the router knows of the pool, one number each (`routes`); None where nobody asks.
    """

    number: int
    place: int
    group: Group
    record: InstanceRecord
    capacity: int
    uniform: bool = False
    queue: deque[int] = field(default_factory=deque)
    load: list[int] | None = None
    time_model: CountedTimeModel = field(init=False)
    pieces: Pieces = field(init=False)
    prompts: Prompts = field(init=False)

    def __post_init__(self) -> None:
        time_model = self.group.time_model
        if not isinstance(time_model, CountedTimeModel):
            raise TypeError(f"{type(time_model).__name__} does not answer from counts; `applies` says so")
        self.time_model = time_model
        self.pieces = Pieces(self.time_model)
        self.prompts = Prompts(self.time_model)

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest request that can ever get room."""
        return self.capacity * self.group.block_tokens

    def stage_seconds(self, tokens: Sequence[int]) -> float:
        """How long prompts of these lengths, computed together, keep the first pipeline stage busy."""
        chunks = tuple(Chunk(0, length) for length in tokens)
        return self.time_model.iteration_seconds(BatchShape(chunks=chunks)).stage_seconds

    def order(self) -> tuple[list[int] | deque[int], Callable[[int], None], Callable[[], int]]:
        """Running requests by the iteration that ends them, least first; how to put one in, and how to take it out.

        Equally long answers end in the order in which they began: then a heap is not needed.
        """
        if self.uniform:
            line: deque[int] = deque()
            return line, line.append, line.popleft
        heap: list[int] = []
        return heap, partial(heappush, heap), partial(heappop, heap)


@dataclass(slots=True, kw_only=True)
class Windows:
    """Decode iterations for `Gaps`: `steps` of them, the first as long as `seconds`, each next one `growth` longer.

    `sequences` requests have a gap as long as each.
    """

    seconds: array[float] = field(default_factory=lambda: array("d"))
    growth: array[float] = field(default_factory=lambda: array("d"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    sequences: array[int] = field(default_factory=lambda: array("q"))

    def add(self, seconds: float, growth: float, steps: int, sequences: int) -> None:
        """Note a window."""
        self.seconds.append(seconds)
        self.growth.append(growth)
        self.steps.append(steps)
        self.sequences.append(sequences)

    def after_rests(
        self, rests: list[tuple[int, float]], now: float, seconds: float, growth: float, steps: int
    ) -> None:
        """Note a window that starts at `now`; `rests` are (sequences, time of their last token).

        The first gap of each reaches back to its last token.
        """
        total = 0
        for count, last in rests:
            if count:
                self.add(now + seconds - last, 0.0, 1, count)
                total += count
        if steps > 1:
            self.add(seconds + growth, growth, steps - 1, total)

    def expanded(self) -> tuple[array[float], array[int]]:
        """The columns of `Gaps`."""
        steps = np.frombuffer(self.steps, dtype=np.int64)
        starts = np.cumsum(steps) - steps
        inside = np.arange(steps.sum()) - np.repeat(starts, steps)
        seconds = np.repeat(np.frombuffer(self.seconds), steps)
        seconds += inside * np.repeat(np.frombuffer(self.growth), steps)
        counts = np.repeat(np.frombuffer(self.sequences, dtype=np.int64), steps)
        return array("d", seconds.tobytes()), array("q", counts.tobytes())
