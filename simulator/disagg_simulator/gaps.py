"""Times between tokens, noted a window of decode iterations at a time.

A window's iterations grow evenly, so four numbers stand for thousands of gaps; the columns of a recording are made from
them at the end. NumPy does that, and is imported only then: few programs ask for gaps, and all would wait for it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


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
        import numpy as np

        steps = np.frombuffer(self.steps, dtype=np.int64)
        starts = np.cumsum(steps) - steps
        inside = np.arange(steps.sum()) - np.repeat(starts, steps)
        seconds = np.repeat(np.frombuffer(self.seconds), steps)
        seconds += inside * np.repeat(np.frombuffer(self.growth), steps)
        counts = np.repeat(np.frombuffer(self.sequences, dtype=np.int64), steps)
        return array("d", seconds.tobytes()), array("q", counts.tobytes())
