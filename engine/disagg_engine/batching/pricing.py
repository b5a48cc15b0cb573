"""What an iteration costs, and how many equal ones can be planned at once.

The time model answers for a batch; the slowdown and the draft passes of speculation come on top. Where a model answers
from counts (`CountedTimeModel`), the windows' loop asks that way: the same number without the objects.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from math import inf

from disagg_engine.batching.flight import steps_until
from disagg_engine.batching.roster import Roster
from disagg_engine.batching.speculation import Speculation
from disagg_engine.errors import SettingError
from disagg_engine.timemodel.lines import line_at
from disagg_engine.timemodel.shapes import BatchShape, Chunk, CountedTimeModel, TimeModel


class Pricer:
    """Seconds of iterations and windows on one time model. `slowdown` multiplies them all."""

    def __init__(self, time_model: TimeModel, *, speculation: Speculation | None, slowdown: float) -> None:
        self._model = time_model
        self._counted = time_model.counted_seconds if isinstance(time_model, CountedTimeModel) else None
        self._speculation = speculation
        self.set_slowdown(slowdown)

    @property
    def has_windows(self) -> bool:
        """Whether the model has a closed form for windows of decodes."""
        return self._model.decode_window(1, 1, 1) is not None

    def set_slowdown(self, factor: float) -> None:
        """Multiply everything from now on."""
        if not 0.0 < factor < inf:
            raise SettingError(field="slowdown", value=factor, wanted="a finite number above 0")
        self.slowdown = factor

    def iteration(
        self, chunks: SequenceOf[Chunk], verified: SequenceOf[Chunk], sequences: int, context: int
    ) -> tuple[float, float]:
        """Seconds of an iteration, and of one stage's share. `verified`: the decodes' chunks under speculation."""
        model, slowdown = self._model, self.slowdown
        plain = BatchShape(chunks=tuple(chunks), decode_sequences=sequences, decode_context_tokens=context)
        if not verified or self._speculation is None:
            cost = model.iteration_seconds(plain)
            return cost.seconds * slowdown, cost.stage_seconds * slowdown
        cost = model.iteration_seconds(BatchShape(chunks=(*chunks, *verified)))
        step = model.iteration_seconds(BatchShape(decode_sequences=sequences, decode_context_tokens=context))
        passes = self._speculation.draft_tokens * self._speculation.draft_cost
        return (
            (cost.seconds + passes * step.seconds) * slowdown,
            (cost.stage_seconds + passes * step.stage_seconds) * slowdown,
        )

    def single(self, chunks: SequenceOf[Chunk], sequences: int, context: int) -> float:
        """Seconds of an iteration without pipeline stages or speculation."""
        counted = self._counted
        if counted is None:
            return self.iteration(chunks, (), sequences, context)[0]
        tokens = cached = 0
        pairs = 0.0
        for chunk in chunks:
            new, held = chunk.new_tokens, chunk.cached_tokens
            tokens += new
            cached += held
            pairs += new * (held + 0.5 * new)
        return counted(tokens, pairs, cached, sequences, context) * self.slowdown

    def window(
        self, roster: Roster, sequences: int, context: int, *, now: float, once: bool
    ) -> tuple[float, float, int]:
        """Seconds of the first decode step, how much longer each next one takes, and how many can be planned at once.

        `once`: for reasons of the caller's just one.
        """
        lines = self._model.decode_lines(sequences)
        line = lines[0]
        if context >= line.until_tokens:
            line = line_at(lines, context)
        a_token = line.seconds_per_token * self.slowdown
        first, growth = line.seconds * self.slowdown + a_token * context, a_token * sequences
        lockstep, ledger = roster.lockstep, roster.ledger
        steps = 1 if once or lockstep.fresh else lockstep.steps_to_end()
        if steps == 1:
            return first, growth, 1
        if line.until_tokens != inf:
            steps = int(min(steps, line.steps_left(sequences, context)))
        if lockstep.fills and (ledger.listening or roster.grows or roster.waiting.size):
            fill = lockstep.steps_to_fill()
            steps = steps if fill is None else min(steps, fill)
        if roster.grows:
            if ledger.listening:
                steps = lockstep.steps_to_growth(steps)
            steps = lockstep.steps_with_room(ledger.free_tokens // ledger.block_tokens, steps)
        if roster.arriving or roster.waiting.size:
            ready = roster.ready_seconds(now=now)
            if ready < now + steps * (first + growth * (steps - 1) * 0.5):
                steps = steps_until(ready, start=now, first=first, growth=growth, limit=steps)
        return first, growth, steps
