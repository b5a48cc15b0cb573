"""The relayed stream, looked at but not re-encoded.

Events pass as the bytes they came in; only whole events are let through, so that a stream whose worker dies never ends
in half of one. Three things are read off on the way:

- when the first and the last token passed (TTFT and TPOT of the request);
- the engine's own token counts. The router asks every stream for usage. If the client did not, the extra chunk is
  taken out again, and so is the ``"usage":null`` that all other chunks carry then. An unescaped quote cannot occur
  inside a JSON string, so those bytes are never part of a text;
- how it ended: ``data: [DONE]``, an error event, or neither, which is a truncation however politely the connection was
  closed.
"""

from enum import StrEnum
from typing import Final

import msgspec

from disagg_router.core.bodies import UsageCount

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""A longer event is let through in parts."""

_USAGE: Final = b'"usage":{'
_NO_USAGE: Final = b',"usage":null'
_CHUNK: Final = b'"choices":[{'
_ERROR: Final = b'{"error"'
_DONE: Final = b"[DONE]"


class Verdict(StrEnum):
    """How a stream ended."""

    DONE = "done"
    ERROR = "error"
    """The worker said so itself."""
    TRUNCATED = "truncated"


class StreamMeter:
    """Bytes of a stream in, bytes for the client out. ``strip_usage``: the client did not ask for usage."""

    __slots__ = ("_before", "_held", "_last_piece", "_strip", "chunks", "first", "last", "usage")

    def __init__(self, *, strip_usage: bool) -> None:
        self._strip = strip_usage
        self._held = b""
        self._last_piece = b""
        self._before = b""
        self.first: float | None = None
        self.last: float | None = None
        self.usage: UsageCount | None = None
        self.chunks = 0
        """Chunks with a choice: the number of tokens where a worker sends one a token and no usage."""

    def feed(self, data: bytes, now: float) -> bytes:
        """Bytes to relay. ``now`` in seconds of any clock; it becomes ``first`` and ``last``."""
        if self._held:
            data = self._held + data
            self._held = b""
        if not data.endswith(b"\n\n"):
            end = _end_of_events(data)
            if end == 0 and len(data) > MAX_EVENT_BYTES:
                end = len(data)
            self._held = data[end:]
            data = data[:end]
        if not data:
            return data
        self._before, self._last_piece = self._last_piece, data
        chunks = data.count(_CHUNK)
        if chunks:
            self.chunks += chunks
            self.last = now
            if self.first is None and _has_token(data):
                self.first = now
        if _USAGE in data:
            data = self._read_usage(data)
        if self._strip and _NO_USAGE in data:
            data = data.replace(_NO_USAGE, b"")
        return data

    @property
    def verdict(self) -> Verdict:
        """How the stream ended, once nothing more comes."""
        if self._held:
            return Verdict.TRUNCATED
        tail = _payloads(self._before + self._last_piece)
        if any(payload.startswith(_ERROR) for payload in tail[-2:]):
            return Verdict.ERROR
        return Verdict.DONE if tail and tail[-1] == _DONE else Verdict.TRUNCATED

    @property
    def output_tokens(self) -> int:
        if self.usage is not None:
            return self.usage.completion_tokens or 0
        return self.chunks

    def _read_usage(self, data: bytes) -> bytes:
        events = data.split(b"\n\n")
        kept = []
        for event in events:
            if _USAGE in event and (chunk := _read(event)) is not None and chunk.usage is not None:
                self.usage = chunk.usage
                if self._strip and not chunk.choices:
                    continue
            kept.append(event)
        return b"\n\n".join(kept) if len(kept) < len(events) else data


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_token(self) -> bool:
        if self.text or self.finish_reason:
            return True
        delta = self.delta
        return delta is not None and bool(
            delta.content or delta.reasoning_content or delta.tool_calls != msgspec.Raw(b"null")
        )


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: UsageCount | None = None


_chunk: Final = msgspec.json.Decoder(_Chunk)


def _read(event: bytes) -> _Chunk | None:
    for line in event.splitlines():
        if line.startswith(b"data:"):
            try:
                return _chunk.decode(line[5:])
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return None
    return None


def _has_token(data: bytes) -> bool:
    """Whether a chunk carries text or an end; the opening chunk of a chat names a role and carries neither."""
    for event in data.split(b"\n\n"):
        chunk = _read(event) if _CHUNK in event else None
        if chunk is not None and any(choice.has_token for choice in chunk.choices):
            return True
    return False


def _end_of_events(data: bytes) -> int:
    """Index behind the last blank line, 0 if there is none."""
    unix, dos = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
    return max(unix + 2 if unix >= 0 else 0, dos + 4 if dos >= 0 else 0)


def _payloads(data: bytes) -> list[bytes]:
    return [line[5:].strip() for line in data.splitlines() if line.startswith(b"data:")]
