"""One instance as the fast lane keeps it: its settings, its queue, and its time model as tables.

The tables ask the time model once for each batch size or prompt length and remember the answer, so nothing of a time
model is written down here a second time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import inf

from disagg_engine.timemodel import BatchShape, Chunk, CountedTimeModel, IterationCost, TimeModel
from disagg_simulator.deployment import Group
from disagg_simulator.recording import InstanceRecord

Counted = Callable[[int, float, int, int, int], float]
"""`CountedTimeModel.counted_seconds`."""

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

    def __init__(self, time_model: TimeModel) -> None:
        super().__init__()
        self._time_model = time_model

    def __missing__(self, sequences: int) -> Piece:
        return self.at(sequences, 0)

    def at(self, sequences: int, context: int) -> Piece:
        """The piece that a step from that context on is on."""
        since, until = 0.0, inf
        lines = self._time_model.decode_lines(sequences)
        for line in lines:
            until = line.until_tokens if line is not lines[-1] else inf
            if context < until:
                break
            since = until
        growth = line.seconds_per_token * sequences
        self[sequences] = piece = (since, until, line.seconds, line.seconds_per_token, growth, 0.5 * growth)
        return piece


class Prompts(dict[int, float]):
    """Prompt length → seconds of an iteration that computes this prompt alone."""

    def __init__(self, time_model: TimeModel) -> None:
        super().__init__()
        self._time_model = time_model

    def __missing__(self, tokens: int) -> float:
        batch = BatchShape(chunks=(Chunk(0, tokens),))
        self[tokens] = seconds = self._time_model.iteration_seconds(batch).seconds
        return seconds


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """One instance. number: its place in `Recording.instances`; place: its place in its pool (in `load`).

    capacity: KV room in blocks. load: what the router knows of the pool, one number each (`routes`); None where nobody
    asks. uniform: all answers are equally long. held: whether requests wait for room in decode memory. inbox: requests
    that were sent to it and that it has not looked at.
    """

    number: int
    place: int
    group: Group
    record: InstanceRecord
    capacity: int
    uniform: bool = False
    held: bool = False
    inbox: deque[int] = field(default_factory=deque)
    load: list[int] | None = None
    pieces: Pieces = field(init=False)
    prompts: Prompts = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = Pieces(self.group.time_model)
        self.prompts = Prompts(self.group.time_model)

    @property
    def counted_seconds(self) -> Counted | None:
        """The time model's answer from sums, where sums are all that it looks at."""
        time_model = self.group.time_model
        return time_model.counted_seconds if isinstance(time_model, CountedTimeModel) else None

    def seconds(self, chunks: Iterable[tuple[int, int]], sequences: int = 0, context: int = 0) -> float:
        """Seconds of an iteration: chunks as (tokens held, new tokens), and decodes with the context of all."""
        return self._cost(chunks, sequences, context).seconds

    def stage_seconds(self, chunks: Iterable[tuple[int, int]]) -> float:
        """How long the first pipeline stage is busy with an iteration."""
        return self._cost(chunks, 0, 0).stage_seconds

    def _cost(self, chunks: Iterable[tuple[int, int]], sequences: int, context: int) -> IterationCost:
        return self.group.time_model.iteration_seconds(
            BatchShape(
                chunks=tuple(Chunk(held, new) for held, new in chunks),
                decode_sequences=sequences,
                decode_context_tokens=context,
            )
        )

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest request that can ever get room."""
        return self.capacity * self.group.block_tokens

    def order(self) -> tuple[list[int] | deque[int], Callable[[int], None], Callable[[], int]]:
        """Running requests by the iteration that ends them, least first; how to put one in, and how to take it out.

        Equally long answers end in the order in which they began: then a heap is not needed.
        """
        if self.uniform:
            line: deque[int] = deque()
            return line, line.append, line.popleft
        heap: list[int] = []
        return heap, partial(heappush, heap), partial(heappop, heap)
