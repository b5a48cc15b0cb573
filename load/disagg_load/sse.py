"""Server-sent events, fed in pieces of any size.

Bytes in, the data of complete events out. The network cuts a stream wherever it likes, also inside a line end or a
character, so nothing is decided before an event's blank line has arrived. Comments and other fields are skipped.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 16 * 1024 * 1024


class SseParser:
    """Cuts one stream into events."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completes, in order.

        Raises ValueError when an event grows beyond `MAX_EVENT_BYTES`.
        """
        buffer = self._buffer + data if self._buffer else data
        if b"\r" in buffer:
            tail = buffer[-1:] if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(tail)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail
        *events, self._buffer = buffer.split(b"\n\n")
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [found for found in map(_data_of, events) if found is not None]

    @property
    def pending(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._buffer.strip())


def _data_of(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
