"""Engine seconds and wall seconds.

The engine's clock starts at 0 with the process and runs ``time_scale`` times as fast as the wall: an iteration that
takes 30 ms of engine time ends 30 ms / ``time_scale`` of wall time after it began. Deadlines are computed from the
start of the process, never from the last wake-up, so lateness does not add up.
"""

import time
from collections.abc import Callable


class EngineClock:
    """Maps between the two. ``monotonic`` gives wall seconds of any origin."""

    def __init__(self, *, time_scale: float = 1.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        if not time_scale > 0:
            raise ValueError(f"time_scale is {time_scale}; expected more than 0")
        self.time_scale = time_scale
        self._monotonic = monotonic
        self._origin = monotonic()

    def now(self) -> float:
        """Engine seconds since the start."""
        return (self._monotonic() - self._origin) * self.time_scale

    def wall_until(self, engine_seconds: float) -> float:
        """Wall seconds until that engine time; negative once it has passed."""
        return self._origin + engine_seconds / self.time_scale - self._monotonic()

    def wall_duration(self, engine_seconds: float) -> float:
        """Wall seconds that so many engine seconds take."""
        return engine_seconds / self.time_scale

    def engine_duration(self, wall_seconds: float) -> float:
        """Engine seconds that pass in so many wall seconds."""
        return wall_seconds * self.time_scale
