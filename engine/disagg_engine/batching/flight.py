"""An iteration on its way, and how a window of them is cut.

A window is `steps` decode iterations of the same batch. The first takes `first_seconds`, each later one
`growth_seconds` more than the one before, because the context grows by the same number of tokens a step; so step j ends

    E(j) = start + j · (first + growth · (j − 1) / 2)

An input at time t finds the step in flight that has E(j − 1) < t <= E(j): those before it are done, that one runs to
its end, and whatever the input changes takes effect after it. That is what a loop that plans every iteration does.
"""

from __future__ import annotations

from math import sqrt

import msgspec

from disagg_engine.batching.sequence import Sequence
from disagg_engine.batching.types import Gap, Iteration


class Flight(msgspec.Struct, eq=False):
    """See the module's text.

    takes: prompt chunks, and with pipeline stages decodes, as (sequence, start_tokens, new_tokens, outputs).
    decodes: whether the lockstep takes part. done: steps of the window that have been accounted for already, because
    it was cut; tokens and gaps: what they brought.
    """

    iteration: Iteration
    takes: list[tuple[Sequence, int, int, int]]
    decodes: bool
    end_seconds: float
    steps: int
    done: int = 0
    tokens: int = 0
    gaps: list[Gap] = []

    def end_of(self, step: int) -> float:
        """When step number `step` (from 1) of the window ends."""
        if step == self.steps:
            return self.end_seconds
        whole = self.iteration
        return end_of(step, start=whole.start_seconds, first=whole.step_seconds, growth=whole.step_growth_seconds)

    def step_at(self, now: float) -> int:
        """The step in flight at `now`: the first that ends at or after it, the last at most."""
        whole = self.iteration
        return steps_until(
            now,
            start=whole.start_seconds,
            first=whole.step_seconds,
            growth=whole.step_growth_seconds,
            limit=self.steps,
        )

    def shorten(self, steps: int) -> None:
        """End it with step number `steps`."""
        self.end_seconds = self.end_of(steps)
        self.steps = steps
        self.iteration = msgspec.structs.replace(
            self.iteration, steps=steps, end_seconds=self.end_seconds, free_seconds=self.end_seconds
        )


def end_of(step: int, *, start: float, first: float, growth: float) -> float:
    """When a window's step number `step` (from 1) ends: E in the module's text."""
    return start + step * (first + 0.5 * growth * (step - 1))


def steps_until(now: float, *, start: float, first: float, growth: float, limit: int) -> int:
    """The first step of a window that ends at or after `now`, at most `limit`."""
    seconds = now - start
    if seconds <= first:
        return 1
    linear = first - 0.5 * growth
    # This form of the root of the quadratic neither cancels nor divides by zero when the growth is small or zero.
    root = linear + sqrt(max(0.0, linear * linear + 2.0 * growth * seconds))
    step = min(limit, max(1, int(2.0 * seconds / root))) if root > 0.0 else 1
    half = 0.5 * growth
    # The same sums as in `end_of`, so that a step's end is found to be that step's.
    while step > 1 and start + (step - 1) * (first + half * (step - 2)) >= now:
        step -= 1
    while step < limit and start + step * (first + half * (step - 1)) < now:
        step += 1
    return step
