"""A time model made of measurements: one table for prompts and one for decode steps.

Prompts: seconds of one prompt alone over its length, P(l). Decodes: seconds of a step over batch and context, D(b, c),
with c the mean context. A measured table has holes (large batches of long contexts do not fit), so each context has a
curve over the batches measured there, and the step at a batch is a curve over the contexts. Values between points are
linear; `timemodel.curves` says what lies outside: the table does not end, it goes on straight.

What a table of single prompts does not hold is put together from it:

- several chunks together cost what one prompt of as many tokens costs, P(Σ l);
- a chunk of l tokens after k cached ones adds the attention of its l · k pairs. What a pair costs is the curvature of
  the prompts' times: with c the least-squares coefficient of a + b · l + c · l², never below 0, it is 2c;
- decodes that join chunks are as many more tokens of the prompts' batch, and what their context adds to a step:
  P(Σ l + b) + [D(b, c) − D(b, 0)], and never less than D(b, c).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disagg_contract.profile import Profile
from disagg_engine.errors import SettingError
from disagg_engine.instance import Instance
from disagg_engine.timemodel.curves import Curve, pieces
from disagg_engine.timemodel.lines import DecodeLine, line_at
from disagg_engine.timemodel.shapes import BatchShape, IterationCost
from disagg_engine.timemodel.windows import Windowed, check


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """One prompt alone: `tokens` after `cached_tokens` whose KV was held, in `seconds` through all stages."""

    tokens: int
    seconds: float
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """One step of `sequences` (of one micro-batch, with pipeline stages) with `context_tokens` each."""

    sequences: int
    context_tokens: int
    seconds: float


class Tabulated(Windowed):
    """Times of an instance from measured rows. One table may be missing; then that work is refused.

    Prompt rows with cached tokens replace the rule above for chunks after about as many: they form a curve over the
    new tokens for each number of cached ones, and values between two such numbers are linear. With such rows the rule
    still holds beyond the largest number of cached tokens.
    """

    def __init__(
        self, instance: Instance, *, prefill: Iterable[PrefillRow] = (), decode: Iterable[DecodeRow] = ()
    ) -> None:
        super().__init__(instance)
        cached: dict[float, list[tuple[float, float]]] = {}
        for row in prefill:
            cached.setdefault(row.cached_tokens, []).append((row.tokens, row.seconds))
        contexts: dict[float, list[tuple[float, float]]] = {}
        for step in decode:
            contexts.setdefault(step.context_tokens, []).append((step.sequences, step.seconds))
        if not cached and not contexts:
            raise SettingError(field="profile", value="empty", wanted="at least one row")
        if cached and 0 not in cached:
            raise SettingError(field="prefill", value=sorted(cached), wanted="rows without cached tokens as well")
        self._cached = {held: Curve(points, field="prefill") for held, points in sorted(cached.items())}
        self._prompt: Curve | None = self._cached.get(0)
        self._pair_seconds = 2.0 * _curvature(self._prompt) if self._prompt else 0.0
        self._contexts = {size: Curve(points, field="decode") for size, points in sorted(contexts.items())}

    @classmethod
    def from_profile(cls, profile: Profile, instance: Instance) -> Tabulated:
        """The tables of a profile that were measured on the like of `instance`.

        Raises SettingError, naming the field, if neither leg of the profile is of its model, GPU and parallelism.
        """
        if profile.model != instance.model.name:
            raise SettingError(
                field="profile.model", value=profile.model, wanted=f"the instance's, {instance.model.name}"
            )
        mine = (instance.gpu.name, instance.tensor, instance.pipeline)
        prefill = (profile.prefill_gpu, profile.prefill_tensor, profile.prefill_pipeline)
        decode = (profile.decode_gpu, profile.decode_tensor, profile.decode_pipeline)
        if mine not in (prefill, decode):
            raise SettingError(
                field="profile", value=[prefill, decode], wanted=f"of {mine}: GPU, tensor and pipeline of the instance"
            )
        steps: Mapping[tuple[int, int], float] = {
            (-(-point.batch // profile.decode_pipeline), point.context_tokens): point.tpot_seconds
            for point in profile.decode
        }
        return cls(
            instance,
            prefill=[
                PrefillRow(tokens=point.input_tokens, seconds=point.ttft_seconds)
                for point in profile.prefill
                if mine == prefill
            ],
            decode=[
                DecodeRow(sequences=sequences, context_tokens=context, seconds=seconds)
                for (sequences, context), seconds in steps.items()
                if mine == decode
            ],
        )

    def iteration_seconds(self, batch: BatchShape, /) -> IterationCost:
        """See TimeModel. Raises SettingError for work that the tables say nothing about."""
        check(batch)
        decode = self._step(batch.decode_sequences, batch.decode_context_tokens) if batch.decode_sequences else 0.0
        prefill = 0.0
        if batch.chunks:
            prefill = self._prompts(batch)
            if batch.decode_sequences:
                rise = decode - self._step(batch.decode_sequences, 0)
                prefill, decode = max(prefill, decode - rise), rise
        seconds = prefill + decode
        return IterationCost(
            seconds=seconds,
            compute_seconds=prefill,
            memory_seconds=decode,
            stage_seconds=seconds / self.instance.pipeline,
            bound="compute" if prefill > decode else "memory",
        )

    def _prompts(self, batch: BatchShape) -> float:
        prompt = self._prompt
        if prompt is None:
            raise SettingError(field="batch", value=batch, wanted="decodes alone: the profile has no prompts")
        seconds = prompt(batch.new_tokens)
        most_cached = list(self._cached)[-1]
        for chunk in batch.chunks:
            held, new = chunk.cached_tokens, chunk.new_tokens
            if not held:
                continue
            if held <= most_cached:
                across = Curve(((size, curve(new)) for size, curve in self._cached.items()), field="prefill")
                seconds += max(0.0, across(held) - prompt(new))
            else:
                seconds += self._pair_seconds * held * new
        return seconds

    def _step(self, sequences: int, context_tokens: int) -> float:
        return line_at(self.decode_lines(sequences), context_tokens).step_seconds(context_tokens)

    def _lines(self, sequences: int) -> tuple[DecodeLine, ...]:
        """The step at this batch over the mean context, as pieces over the context of all."""
        if not self._contexts:
            raise SettingError(field="decode_sequences", value=sequences, wanted="0: the profile has no decode steps")
        over = Curve(((context, curve(sequences)) for context, curve in self._contexts.items()), field="decode")
        return tuple(DecodeLine(end * sequences, value, slope / sequences) for end, value, slope in pieces(over))


def _curvature(curve: Curve) -> float:
    """Least-squares coefficient of x², with a constant and a slope beside it; 0 for fewer than three points."""
    count = len(curve.xs)
    if count < 3:
        return 0.0
    middle = sum(curve.xs) / count
    from_middle = [x - middle for x in curve.xs]
    square = sum(u * u for u in from_middle) / count
    lean = sum(u**3 for u in from_middle) / (square * count)
    bent = [u * u - square - lean * u for u in from_middle]  # what a constant and a slope cannot follow
    return max(0.0, sum(v * y for v, y in zip(bent, curve.ys, strict=True)) / sum(v * v for v in bent))
