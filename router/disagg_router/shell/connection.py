"""One connection to a worker: requests out, answers in, framing by a C parser.

Whoever sent a request hears its answer through a :class:`LegHandler`: the head once, the body as it comes (one call a
read, however many chunks were in it), the end or the loss. Nothing else is read than the answer to the request that is
out: a worker that speaks out of turn is hung up on.
"""

import asyncio
from typing import Final, Protocol, cast

import httptools

from disagg_router.core.exchange import Failure
from disagg_router.shell.sockets import watch_peer

MAX_HEAD_BYTES: Final = 64 * 1024

Address = tuple[str, int]
Header = tuple[bytes, bytes]


class LegHandler(Protocol):
    """Who gets the answer of a request."""

    def leg_head(self, status: int, headers: list[Header]) -> None:
        """Status and headers; names in lower case."""

    def leg_data(self, data: bytes, *, done: bool) -> None:
        """A part of the body, decoded from its framing; ``done`` with the last one, which may be empty."""

    def leg_lost(self, failure: Failure, reason: str) -> None:
        """There will be no more; not called after ``done`` nor after :meth:`Ticket.cancel`."""


class Owner(Protocol):
    """What a connection tells of itself."""

    def now(self) -> float: ...

    def put_back(self, connection: "Connection") -> None:
        """Its answer is complete and it can take another request."""

    def forget(self, connection: "Connection") -> Address | None:
        """It is of no use any more; where it went to, if it was known until now."""
        ...

    def resend(self, connection: "Connection", request: bytes, handler: LegHandler) -> None:
        """It was kept and the worker closed it under a request, without a byte of an answer."""

    def idle_closed(self, address: Address) -> None:
        """The worker closed it while nobody used it."""


class Connection(asyncio.Protocol):
    """One connection to a worker."""

    def __init__(self, pool: Owner) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._handler: LegHandler | None = None
        self._request = b""
        self._fresh = True
        self._hung_up = False
        self.last_activity = 0.0
        self.paused = False
        self._reset()

    def _reset(self) -> None:
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._status = 0
        self._announced = False
        self._done = False
        self._keep = False
        self._framed = False
        self._heard = False

    # Used by the pool and the ticket.

    def send(self, request: bytes, handler: LegHandler) -> None:
        self._handler = handler
        self._request = request
        self.last_activity = self._pool.now()
        if self._transport is not None:
            self._transport.write(request)

    def pause(self) -> None:
        if self._transport is not None and not self.paused:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self.paused:
            self.paused = False
            self.last_activity = self._pool.now()
            self._transport.resume_reading()

    def hang_up(self) -> None:
        """Close our half: servers take it for a client that left. What was answered before can still be read."""
        self._hung_up = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        """Drop the connection; nobody is told."""
        self._handler = None
        if self._transport is not None:
            self._transport.abort()

    def fail(self, failure: Failure, reason: str) -> None:
        """Drop the connection and tell its user."""
        handler = self._handler
        self.abort()
        self._pool.forget(self)
        if handler is not None:
            handler.leg_lost(failure, reason)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        watch_peer(transport)

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            self.abort()  # nobody asked: the worker speaks out of turn
            return
        self._heard = True
        self.last_activity = self._pool.now()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(Failure.PROTOCOL, str(error))
            return
        self._deliver()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        handler = self._handler
        address = self._pool.forget(self)
        if handler is None:
            if address is not None:
                self._pool.idle_closed(address)
            return
        if self._status and not self._framed and exc is None:  # a body that lasts until the end of the connection
            self._done = True
            self._deliver()
            return
        self._handler = None
        if not self._heard and not self._fresh and not self._hung_up:
            self._pool.resend(self, self._request, handler)
            return
        handler.leg_lost(Failure.RESET, str(exc or "end of stream"))

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._done:
            return
        name = name.lower()
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head of the answer is too long")
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._done:  # an answer that nobody asked for, behind the one that was
            self._keep = False
            return
        status: int = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            return
        self._status = status
        if status in (204, 304):
            self._framed = True

    def on_body(self, body: bytes) -> None:
        if not self._done:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if not self._status or self._done:
            return
        self._done = True
        self._keep = self._parser.should_keep_alive()

    # How.

    def _deliver(self) -> None:
        handler = self._handler
        if handler is None or not self._status:
            return
        if not self._announced:
            self._announced = True
            handler.leg_head(self._status, self._headers)
            if self._handler is None:  # cancelled over its status
                return
        pieces, done = self._pieces, self._done
        if not pieces and not done:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        if done:
            self._handler = None
            self._finish()
        handler.leg_data(data, done=done)

    def _finish(self) -> None:
        """The answer is complete: back to the pool, or away."""
        keep = self._keep and not self._hung_up and self._transport is not None and not self._transport.is_closing()
        self._fresh = False
        self._request = b""
        self._reset()
        if keep:
            self.resume()
            self._pool.put_back(self)
        else:
            self._pool.forget(self)
            self.abort()
