"""From tokens to text that may be sent: stop strings and hold-back.

A stop string may lie across tokens, so text that could still become the beginning of one is held back until it is
known. What is sent is never taken back, and the concatenation of a stream equals the text of the whole answer.
"""

from collections.abc import Sequence

import msgspec

from disagg_contract.tokenizer import Detokenizer


class Released(msgspec.Struct, frozen=True):
    """Text that may be sent now, and the stop string that ended the answer, if one did."""

    text: str
    stop: str | None = None


class AnswerText:
    """Accumulates one answer's text.

    ``include_stop`` leaves the stop string in the text. Matches that end in a token for which ``may_stop`` is false
    (fewer than min_tokens) do not count.
    """

    def __init__(self, detokenizer: Detokenizer, *, stops: Sequence[str], include_stop: bool = False) -> None:
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._include_stop = include_stop
        self._held = ""
        self.stopped = False

    def push(self, token: int, *, may_stop: bool = True) -> Released:
        """The next token of the answer."""
        fresh = self._detokenizer.push(token)
        if not self._stops:
            return Released(fresh)
        self._held += fresh
        if not may_stop:
            # The match must not begin before the token from which stopping is allowed.
            return Released(self._take(len(self._held)))
        return self._scan(final=False)

    def finish(self) -> Released:
        """The end of the answer by other means: everything held back, whole."""
        self._held += self._detokenizer.flush()
        if self.stopped or not self._stops:
            return Released(self._take(len(self._held)))
        return self._scan(final=True)

    def _scan(self, *, final: bool) -> Released:
        found = min(
            ((at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0),
            key=lambda match: (match[0], len(match[1])),
            default=None,
        )
        if found is not None:
            at, stop = found
            text = self._take(at + len(stop) if self._include_stop else at)
            self._held = ""
            self.stopped = True
            return Released(text, stop)
        if final:
            return Released(self._take(len(self._held)))
        return Released(self._take(len(self._held) - self._suspect()))

    def _suspect(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

    def _take(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text
