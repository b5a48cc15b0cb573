"""Reading the stream of one completion as it comes: which event carried text, how it ended.

The reader is fed body bytes with the time they arrived and does no I/O. It looks for the contract that clients rely
on: text events, one finish reason, an optional usage event, `[DONE]`. An error event, or an end without a finish
reason, is a broken answer: a silent end can't be told from a complete one by anything else.
"""

from __future__ import annotations

from array import array

import msgspec

from .sse import SseParser


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: int = 0


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


class _Error(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error | str = ""
    message: str = ""


_EVENT = msgspec.json.Decoder(_Event)


class AnswerReader:
    """Collects one streamed answer. `problem` is empty for a clean one, and says what broke it otherwise."""

    __slots__ = ("_done", "_last", "_sse", "events", "finish_reason", "first", "gaps", "problem", "usage_tokens")

    def __init__(self) -> None:
        self._sse = SseParser()
        self._last: float | None = None
        self._done = False
        self.first: float | None = None
        self.gaps: array[float] = array("d")
        self.events = 0
        self.usage_tokens: int | None = None
        self.finish_reason: str | None = None
        self.problem = ""

    def feed(self, data: bytes, now: float) -> None:
        """Take body bytes that arrived at `now` (seconds)."""
        try:
            for event in self._sse.feed(data):
                self._take(event, now)
        except (ValueError, msgspec.MsgspecError) as error:
            self.problem = self.problem or f"unreadable event: {error}"

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        event = _EVENT.decode(data)
        if event.error and bytes(event.error) != b"null":
            self.problem = self.problem or f"error event: {error_message(data)}"
            return
        if event.usage is not None:
            self.usage_tokens = event.usage.completion_tokens
        for choice in event.choices:
            if choice.text or choice.token_ids:
                self._token(now)
            self.finish_reason = choice.finish_reason or self.finish_reason

    def _token(self, now: float) -> None:
        self.events += 1
        if self._last is None:
            self.first = now
        else:
            self.gaps.append(now - self._last)
        self._last = now

    def end(self) -> None:
        """The body ended: find what is missing."""
        if self.problem:
            return
        if self.finish_reason is None:
            self.problem = "the stream ended without a finish reason"
        elif not self._done:
            self.problem = "the stream ended without [DONE]"

    @property
    def last(self) -> float | None:
        """When the last text arrived."""
        return self._last

    @property
    def tokens(self) -> int:
        """Tokens of the answer: as the server counts them, or one an event where it does not say."""
        return self.events if self.usage_tokens is None else self.usage_tokens


def error_message(body: bytes) -> str:
    """The message of an error body in OpenAI's shape, or the start of the body; always one line."""
    try:
        found = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.MsgspecError:
        return _one_line(body)
    inner = found.error if isinstance(found.error, str) else found.error.message
    return inner or found.message or _one_line(body)


def _one_line(body: bytes) -> str:
    text = " ".join(body[:400].decode(errors="replace").split())
    return text if len(text) <= 120 else text[:117] + "..."
