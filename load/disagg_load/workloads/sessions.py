"""Conversations: several turns each, on top of system prompts that many conversations share.

A session belongs to an app, whose system prompt begins every prompt. A turn's prompt is the system prompt, the whole
history (messages and answers) and a new message. So prompts share prefixes twice: with every session of the app, and
with their own session's earlier turns.

`sessions` of them are under way at a time. Every request of the arrival process is the next turn of one that is picked
at random, and once a session has ended a new one takes its place. With Poisson arrivals that is the same as thinking
for exponential times of mean sessions / rate between turns; and since each turn is the last with the same probability,
sessions also begin as a Poisson process, of rate / turns. The load is open: a turn comes when its time has come,
whether or not the answer before it is done, and histories grow by what an answer should be.

Hash ids name blocks of `block_tokens` tokens with everything before them. A block that is not full yet gets an id of
its own that never comes again, as in caches of full blocks: its next turn fills it with other tokens.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError

from .arrivals import Arrivals
from .drawing import arrival_blocks
from .lengths import Lengths
from .streams import Streams


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """What conversations look like.

    apps: that many, alike, each with a system prompt of `system_tokens`. sessions: under way at a time. turns: mean
    number of a session (geometric). longest_tokens: a session also ends before a turn whose prompt would be longer.
    """

    apps: int = 6
    system_tokens: int = 2048
    sessions: int = 60
    turns: float = 8.0
    longest_tokens: int = 8192
    block_tokens: int = 64

    def __post_init__(self) -> None:
        for name in ("apps", "sessions", "block_tokens"):
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} is {getattr(self, name)}, at least 1 is needed")
        if self.system_tokens < 0:
            raise WorkloadError(f"system_tokens is {self.system_tokens}, at least 0 is needed")
        if not 1 <= self.turns < float("inf"):
            raise WorkloadError(f"a mean of {self.turns:g} turns was asked for, at least 1 is needed")
        if self.longest_tokens <= self.system_tokens:
            raise WorkloadError(
                f"longest_tokens is {self.longest_tokens}, more than the {self.system_tokens} tokens of a system "
                "prompt are needed"
            )


@dataclass(slots=True)
class _Session:
    number: int
    history_tokens: int
    chain: list[int] = field(default_factory=list)


def draw_sessions(
    arrivals: Arrivals,
    shape: Sessions,
    messages: Lengths,
    answers: Lengths,
    *,
    seed: int,
    requests: int | None = None,
    seconds: float | None = None,
    name: str = "sessions",
) -> Columns:
    """The turns of many conversations as columns, with hash ids and `sessions`.

    A message that would make even a first prompt longer than `longest_tokens` is cut. Costs 2 to 5 µs a request and 8
    bytes a block of its prompt. Raises WorkloadError as `draw` does.
    """
    streams = Streams(seed)
    message_stream, answer_stream = streams.stream("inputs"), streams.stream("outputs")
    pick_stream, app_stream, end_stream = (streams.stream(name) for name in ("picks", "apps", "ends"))
    times, input_tokens, output_tokens, numbers = array("d"), array("i"), array("i"), array("i")
    hash_ids: list[tuple[int, ...]] = []
    table = _Table(shape)
    for block in arrival_blocks(arrivals, streams, requests=requests, seconds=seconds):
        count = len(block)
        times.frombytes(block.tobytes())
        answered = answers.tokens(answer_stream.uniforms(count), block).astype(np.int32)
        output_tokens.frombytes(answered.tobytes())
        rows = zip(
            (pick_stream.uniforms(count) * shape.sessions).astype(np.int64).tolist(),
            (app_stream.uniforms(count) * shape.apps).astype(np.int64).tolist(),
            messages.tokens(message_stream.uniforms(count), block).astype(np.int64).tolist(),
            answered.tolist(),
            (end_stream.uniforms(count) < 1 / shape.turns).tolist(),
            strict=True,
        )
        for place, app, message, answer, last in rows:
            number, prompt_tokens, ids = table.turn(place, app, message, answer, last)
            numbers.append(number)
            input_tokens.append(prompt_tokens)
            hash_ids.append(ids)
    return Columns(
        name=name,
        arrival_seconds=times,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        hash_ids=hash_ids,
        block_tokens=shape.block_tokens,
        sessions=numbers,
    )


class _Table:
    """The sessions under way, and the ids given out so far."""

    def __init__(self, shape: Sessions) -> None:
        self._shape = shape
        self._places: list[_Session | None] = [None] * shape.sessions
        self._begun = 0
        shared = shape.system_tokens // shape.block_tokens
        self._systems = [list(range(app * shared, (app + 1) * shared)) for app in range(shape.apps)]
        self._next_id = shape.apps * shared

    def turn(self, place: int, app: int, message: int, answer: int, last: bool) -> tuple[int, int, tuple[int, ...]]:
        """Session number, tokens and hash ids of the next prompt of the session at that place.

        `app` counts where a session begins.
        """
        shape = self._shape
        session = self._places[place]
        if session is None or session.history_tokens + message > shape.longest_tokens:
            session = _Session(self._begun, shape.system_tokens, self._systems[app].copy())
            self._begun += 1
        tokens = min(session.history_tokens + message, shape.longest_tokens)
        full, rest = divmod(tokens, shape.block_tokens)
        chain = session.chain
        after = self._next_id + full - len(chain)
        chain.extend(range(self._next_id, after))
        ids = tuple(chain)
        if rest:
            ids += (after,)
            after += 1
        self._next_id = after
        session.history_tokens = tokens + answer
        self._places[place] = None if last else session
        return session.number, tokens, ids
