"""Reading a profile between its points.

Linear between neighbouring points, clamped at the ends, never extrapolated: outside of what was profiled the nearest
profiled point is the best that is known. The decode table is a grid of contexts, each with its own list of batches (a
longer context leaves room for fewer sequences), so a value is interpolated along the batch within the two neighbouring
contexts and then between them. All times are seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from disagg_contract.profile import DecodePoint, Profile
from disagg_planner.errors import SettingsError


@dataclass(frozen=True, slots=True)
class DecodeBest:
    """Most tokens/s of an idle-free decode instance under a TPOT limit; zero when even one sequence is too slow."""

    tokens_per_second: float
    batch: float


class ProfileTable:
    """A profile that answers questions. Immutable.

    Raises SettingsError for a profile without points or with values that are not positive.
    """

    def __init__(self, profile: Profile) -> None:
        if not profile.prefill or not profile.decode:
            raise SettingsError(f"profile of {profile.model}: needs prefill and decode points")
        for point in profile.prefill:
            if not (point.input_tokens > 0 and point.ttft_seconds > 0 and point.tokens_per_second > 0):
                raise SettingsError(f"profile of {profile.model}: prefill point {point} must be positive")
        for row in profile.decode:
            if not (row.context_tokens > 0 and row.batch > 0 and row.tpot_seconds > 0 and row.tokens_per_second > 0):
                raise SettingsError(f"profile of {profile.model}: decode point {row} must be positive")
        self.profile = profile
        self._prefill = sorted(profile.prefill, key=lambda point: point.input_tokens)
        self._lengths = [float(point.input_tokens) for point in self._prefill]
        rows: dict[int, list[DecodePoint]] = {}
        for row in sorted(profile.decode, key=lambda row: (row.context_tokens, row.batch)):
            rows.setdefault(row.context_tokens, []).append(row)
        self._contexts = [float(context) for context in rows]
        self._rows = list(rows.values())

    def ttft_seconds(self, input_tokens: float) -> float:
        """Seconds of one prompt, alone on an instance."""
        return interpolate(self._lengths, [point.ttft_seconds for point in self._prefill], input_tokens)

    def prefill_tokens_per_second(self, input_tokens: float) -> float:
        """Prompt tokens per second of an instance that is never idle."""
        return interpolate(self._lengths, [point.tokens_per_second for point in self._prefill], input_tokens)

    def prefill_service_seconds(self, input_tokens: float) -> float:
        """How long one prompt keeps an instance from taking the next.

        Equal to the latency of the prompt, unless pipeline stages let prompts overlap. Beyond the longest profiled
        prompt the tokens per second stay what they were there.
        """
        alone = self.ttft_seconds(input_tokens)
        back_to_back = input_tokens / self.prefill_tokens_per_second(input_tokens)
        if input_tokens > self._lengths[-1]:
            return back_to_back
        return min(alone, max(back_to_back, alone / max(self.profile.prefill_pipeline, 1)))

    def tpot_seconds(self, context_tokens: float, batch: float) -> float:
        """Seconds of a decode step with `batch` sequences of `context_tokens` each."""
        return self._between(
            context_tokens,
            lambda row: interpolate(
                [float(point.batch) for point in row], [point.tpot_seconds for point in row], batch
            ),
        )

    def best_decode(self, context_tokens: float, limit_seconds: float) -> DecodeBest:
        """Most tokens/s with a TPOT of at most `limit_seconds` at a mean context; infinite limit: most at all."""
        return DecodeBest(
            tokens_per_second=self._between(context_tokens, lambda row: _best(row, limit_seconds)[0]),
            batch=self._between(context_tokens, lambda row: _best(row, limit_seconds)[1]),
        )

    def _between(self, context_tokens: float, value: Callable[[Sequence[DecodePoint]], float]) -> float:
        return interpolate(self._contexts, [value(row) for row in self._rows], context_tokens)


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear between points, clamped outside. `xs` is sorted and not empty."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    index = bisect_left(xs, x)
    share = (x - xs[index - 1]) / (xs[index] - xs[index - 1])
    return ys[index - 1] + share * (ys[index] - ys[index - 1])


def _best(row: Sequence[DecodePoint], limit_seconds: float) -> tuple[float, float]:
    """(tokens/s, batch) of the best point of one context, searched along every segment: tables need not be monotone."""
    best = (0.0, 0.0)
    for point in row:
        if point.tpot_seconds <= limit_seconds:
            best = max(best, (point.tokens_per_second, float(point.batch)))
    for left, right in pairwise(row):
        low, high = left.tpot_seconds, right.tpot_seconds
        if min(low, high) <= limit_seconds < max(low, high):
            share = (limit_seconds - low) / (high - low)
            speed = left.tokens_per_second + share * (right.tokens_per_second - left.tokens_per_second)
            best = max(best, (speed, left.batch + share * (right.batch - left.batch)))
    return best
