"""Says in the log who was turned away, at most once in a while: a stranger must not be able to fill a disk."""

import logging
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)
SILENCE_SECONDS: Final = 10.0


class Strangers:
    """Those who asked without the deployment's token. ``monotonic`` gives seconds."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self.count = 0
        self._monotonic = monotonic
        self._untold = 0
        self._quiet_until = float("-inf")

    def turned_away(self, peer: str, what: str) -> None:
        """``peer`` (an address) was refused ``what``; neither may hold what it showed."""
        self.count += 1
        self._untold += 1
        now = self._monotonic()
        if now < self._quiet_until:
            return
        more = f" ({self._untold - 1} more since the last such line)" if self._untold > 1 else ""
        _log.warning("refused, not of this deployment: %s from %s%s", what, peer, more)
        self._untold, self._quiet_until = 0, now + SILENCE_SECONDS
