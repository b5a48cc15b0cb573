"""Decode steps in closed form: the time of a step as straight pieces over the context.

With the same sequences in every step, the context grows by their number a step, and every time model here is piecewise
linear in it: the roofline has one bend where memory overtakes arithmetic (or the reverse), a fit none, a table one at
each row. So k steps are an arithmetic series a piece, and how many steps fit into a span of time is the root of a
quadratic. Event skipping needs just these two.

A model hands out its pieces once a batch size (`TimeModel.decode_lines`); whoever is in a hurry keeps them and does the
sums itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """One piece: a step that starts at c context tokens in all takes `seconds + seconds_per_token · c`.

    Holds for c below `until_tokens` (infinite for the last piece) and from the piece before on. Pieces meet: at the
    bend both give the same time.
    """

    until_tokens: float
    seconds: float
    seconds_per_token: float

    def step_seconds(self, context_tokens: float) -> float:
        """Seconds of one step on this piece."""
        return self.seconds + self.seconds_per_token * context_tokens

    def steps_left(self, sequences: int, context_tokens: int) -> float:
        """Steps of `sequences` from `context_tokens` on that start on this piece; infinite on the last."""
        if self.until_tokens == math.inf:
            return math.inf
        return max(0, math.ceil((self.until_tokens - context_tokens) / sequences))

    def span_seconds(self, sequences: int, context_tokens: int, steps: int) -> float:
        """Seconds of `steps` successive steps, all of which start on this piece."""
        first = self.seconds + self.seconds_per_token * context_tokens
        return steps * (first + self.seconds_per_token * sequences * (steps - 1) * 0.5)


def line_at(lines: Sequence[DecodeLine], context_tokens: float) -> DecodeLine:
    """The piece that a step starting at `context_tokens` is on."""
    for line in lines:
        if context_tokens < line.until_tokens:
            return line
    return lines[-1]


def window_seconds(lines: Sequence[DecodeLine], *, sequences: int, context_tokens: int, steps: int) -> float:
    """Seconds of `steps` successive decode steps from `context_tokens` in all; 0 for no steps."""
    total = 0.0
    for line in lines:
        if steps < 1:
            break
        count = int(min(steps, line.steps_left(sequences, context_tokens)))
        if count > 0:
            total += line.span_seconds(sequences, context_tokens, count)
            context_tokens += count * sequences
            steps -= count
    return total


def steps_within(
    lines: Sequence[DecodeLine], *, sequences: int, context_tokens: int, seconds: float, limit: int
) -> tuple[int, float]:
    """The most whole steps, at most `limit`, that end within `seconds`, and the seconds that they take."""
    steps, total = 0, 0.0
    for line in lines:
        most = limit - steps
        if line.until_tokens != math.inf:
            most = min(most, max(0, math.ceil((line.until_tokens - context_tokens) / sequences)))
        if most < 1:
            continue
        growth = line.seconds_per_token * sequences
        first, left = line.seconds + line.seconds_per_token * context_tokens, seconds - total
        count, taken = most, most * (first + growth * (most - 1) * 0.5)
        if taken > left:
            count = _whole_steps(first, growth, left, most)
            taken = count * (first + growth * (count - 1) * 0.5)
        steps += count
        total += taken
        if count < most:
            break
        context_tokens += count * sequences
    return steps, total


def _whole_steps(first: float, growth: float, seconds: float, most: int) -> int:
    """Largest k below `most` with k·first + growth·k(k−1)/2 <= seconds."""
    if seconds < first:
        return 0
    linear = first - 0.5 * growth
    # This form of the root neither cancels nor divides by zero when the growth is small, zero or negative.
    root = math.sqrt(max(0.0, linear * linear + 2.0 * growth * seconds))
    count = min(most, int(2.0 * seconds / (linear + root)))
    while count > 0 and count * (first + growth * (count - 1) * 0.5) > seconds:
        count -= 1
    while count + 1 < most and (count + 1) * (first + growth * count * 0.5) <= seconds:
        count += 1
    return count


def upper_envelope(
    first: tuple[float, float], second: tuple[float, float], *, fixed_seconds: float
) -> tuple[DecodeLine, ...]:
    """max(first, second) + fixed_seconds over c >= 0 as pieces; each line given as (seconds at 0, seconds a token)."""
    low, high = (first, second) if first[1] <= second[1] else (second, first)
    rise = high[1] - low[1]
    bend = (low[0] - high[0]) / rise if rise > 0.0 else (math.inf if low[0] > high[0] else 0.0)
    pieces = []
    if bend > 0.0:
        pieces.append(DecodeLine(bend, low[0] + fixed_seconds, low[1]))
    if bend < math.inf:
        pieces.append(DecodeLine(math.inf, high[0] + fixed_seconds, high[1]))
    return tuple(pieces)
