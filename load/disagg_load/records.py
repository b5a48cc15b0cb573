"""What is known of one replayed request once it is over.

Times are seconds since the start of the replay on the client's clock. A record made under a time scale is turned into
modelled seconds by `scaled` before anything is computed from it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended.

    COMPLETED: all tokens that were asked for. TRUNCATED: a clean end with fewer. CONNECTION: no connection, or lost
    before an answer. STATUS: an HTTP status that is an error. TIMEOUT: no end within the limit. BROKEN: an answer that
    ended in an error event, without a finish reason, or that can't be read. UNFINISHED: the replay was interrupted.
    """

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    CONNECTION = "connection"
    STATUS = "status"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    UNFINISHED = "unfinished"

    @property
    def is_error(self) -> bool:
        """Whether the server failed to answer."""
        return self in (Outcome.CONNECTION, Outcome.STATUS, Outcome.TIMEOUT, Outcome.BROKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request: when it should have gone out, when it did, and what came back.

    `gaps_seconds` are the times between neighbouring events that carried text (one fewer than such events).
    `late` says that the client itself sent it too late for the result to mean anything. `message` explains an error.
    """

    index: int
    scheduled_seconds: float
    sent_seconds: float
    finished_seconds: float
    outcome: Outcome
    input_tokens: int
    asked_tokens: int
    tokens: int = 0
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    gaps_seconds: Sequence[float] = ()
    late: bool = False
    message: str = ""

    @property
    def ttft_seconds(self) -> float | None:
        """Time to first token, from sending to the first event that carries text."""
        return None if self.first_token_seconds is None else self.first_token_seconds - self.sent_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None for answers of one token, which have none."""
        if self.first_token_seconds is None or self.last_token_seconds is None or self.tokens < 2:
            return None
        return (self.last_token_seconds - self.first_token_seconds) / (self.tokens - 1)

    def scaled(self, factor: float) -> RequestRecord:
        """The same record with every time multiplied by `factor`, modelled seconds in a second."""
        if factor == 1:
            return self
        return replace(
            self,
            scheduled_seconds=self.scheduled_seconds * factor,
            sent_seconds=self.sent_seconds * factor,
            finished_seconds=self.finished_seconds * factor,
            first_token_seconds=None if self.first_token_seconds is None else self.first_token_seconds * factor,
            last_token_seconds=None if self.last_token_seconds is None else self.last_token_seconds * factor,
            gaps_seconds=array("d", (gap * factor for gap in self.gaps_seconds)),
        )
