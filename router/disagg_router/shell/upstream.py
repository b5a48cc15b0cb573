"""Connections to workers: pooled, kept alive, one request at a time on each.

A :class:`Connection` is an asyncio protocol around a C parser that does the framing; whoever sent the request gets the
head once, the body as it comes (one call a read, however many chunks were in it) and the end. A request that goes out
on a kept connection which the worker closed in that moment is sent again on a fresh one, because not a byte of an
answer has come: that is the race every keep-alive client has to live with, not a failure of the worker.

Nothing here decides anything about a request. Timeouts are found by a sweep over the connections in use instead of a
timer each: a stream of tokens would have to move its timer at every token.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

from disagg_router.core.exchange import Failure
from disagg_router.shell.sockets import watch_peer
from disagg_router.shell.wire import authority

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 30.0
"""A connection unused for longer is closed; less than the servers' own keep-alive time."""
MAX_IDLE: Final = 256
"""Idle connections kept to one worker."""
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


class Connection(asyncio.Protocol):
    """One connection to a worker."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._handler: LegHandler | None = None
        self._request = b""
        self._fresh = True
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
                self._pool.on_idle_closed(address)
            return
        if self._status and not self._framed and exc is None:  # a body that lasts until the end of the connection
            self._done = True
            self._deliver()
            return
        self._handler = None
        if not self._heard and not self._fresh:
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
        keep = self._keep and self._transport is not None and not self._transport.is_closing()
        self._fresh = False
        self._request = b""
        self._reset()
        if keep:
            self.resume()
            self._pool.put_back(self)
        else:
            self._pool.forget(self)
            self.abort()


class Ticket:
    """A request that is under way. ``cancel`` closes its connection, which is how a worker learns of it."""

    __slots__ = ("_connection", "_paused", "_pool", "_task", "address", "handler", "request")

    def __init__(self, pool: "Pool", address: Address, request: bytes, handler: LegHandler) -> None:
        self._pool = pool
        self.address = address
        self.request = request
        self.handler: LegHandler | None = handler
        self._connection: Connection | None = None
        self._paused = False
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self.handler = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._connection is not None:
            self._pool.forget(self._connection)
            self._connection.abort()
            self._connection = None

    def pause(self) -> None:
        """Stop reading the answer."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    # What follows is the pool's.

    def ride(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(self.request, self)
        if self._paused:
            connection.pause()

    def connect(self, connecting: "asyncio.Task[None] | None") -> None:
        self._task = connecting

    def leg_head(self, status: int, headers: list[Header]) -> None:
        if self.handler is not None:
            self.handler.leg_head(status, headers)

    def leg_data(self, data: bytes, *, done: bool) -> None:
        handler = self.handler
        if done:
            self._connection = None
            self.handler = None
        if handler is not None:
            handler.leg_data(data, done=done)

    def leg_lost(self, failure: Failure, reason: str) -> None:
        self._connection = None
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.leg_lost(failure, reason)


class Pool:
    """Connections to all workers. ``answer_timeout_seconds``: without a byte for so long an answer has failed."""

    def __init__(self, *, connect_timeout_seconds: float, answer_timeout_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._connect_timeout_seconds = connect_timeout_seconds
        self._answer_timeout_seconds = answer_timeout_seconds
        self._idle: dict[Address, list[Connection]] = {}
        self._address: dict[Connection, Address] = {}
        self._busy: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.on_idle_closed: Callable[[Address], None] = lambda address: None
        """A worker closed a connection that nobody used: it may be gone, or another process by now."""
        self._sweeper = self._loop.call_later(self._sweep_seconds, self._sweep)

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        return len(self._address)

    def send(self, address: Address, request: bytes, handler: LegHandler) -> Ticket:
        """Send a request's bytes; the handler hears of the answer, never before this returns."""
        ticket = Ticket(self, address, request, handler)
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection in self._address:
                self._busy.add(connection)
                ticket.ride(connection)
                return ticket
        self._connect(ticket)
        return ticket

    def drop(self, address: Address) -> None:
        """Close the idle connections to a worker that left."""
        for connection in self._idle.pop(address, ()):
            self.forget(connection)
            connection.abort()

    async def close(self) -> None:
        self._closed = True
        self._sweeper.cancel()
        for connection in list(self._address):
            connection.abort()
        self._address.clear()
        self._idle.clear()
        self._busy.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports are closed in the loop's next turn

    # Called by connections.

    def put_back(self, connection: Connection) -> None:
        self._busy.discard(connection)
        address = self._address.get(connection)
        if address is None or self._closed:
            connection.abort()
            return
        idle = self._idle.setdefault(address, [])
        if len(idle) >= MAX_IDLE:
            self.forget(connection)
            connection.abort()
            return
        idle.append(connection)

    def forget(self, connection: Connection) -> Address | None:
        """Where the connection went to, if it was known until now."""
        self._busy.discard(connection)
        address = self._address.pop(connection, None)
        idle = self._idle.get(address) if address is not None else None
        if idle and connection in idle:
            idle.remove(connection)
        return address

    def resend(self, connection: Connection, request: bytes, handler: LegHandler) -> None:
        """The worker closed a kept connection under a request: once more on a fresh one."""
        assert isinstance(handler, Ticket)
        self._connect(handler)

    # How.

    def _connect(self, ticket: Ticket) -> None:
        task = self._loop.create_task(self._dial(ticket))
        ticket.connect(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, ticket: Ticket) -> None:
        host, port = ticket.address
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                _, connection = await self._loop.create_connection(lambda: Connection(self), host, port)
        except TimeoutError:
            ticket.connect(None)
            ticket.leg_lost(Failure.CONNECT, f"no connection within {self._connect_timeout_seconds:g} s")
            return
        except OSError as error:
            ticket.connect(None)
            ticket.leg_lost(Failure.CONNECT, str(error))
            return
        ticket.connect(None)
        if ticket.handler is None or self._closed:
            connection.abort()
            return
        self._address[connection] = ticket.address
        self._busy.add(connection)
        ticket.ride(connection)

    @property
    def _sweep_seconds(self) -> float:
        return min(1.0, self._answer_timeout_seconds / 4)

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(self._sweep_seconds, self._sweep)
        now = self.now()
        stale = now - self._answer_timeout_seconds
        for connection in [c for c in self._busy if c.last_activity < stale and not c.paused]:
            connection.fail(Failure.TIMEOUT, f"no byte for {self._answer_timeout_seconds:g} s")
        old = now - IDLE_SECONDS
        for idle in list(self._idle.values()):
            for connection in [c for c in idle if c.last_activity < old]:
                self.forget(connection)
                connection.abort()


class Fetch:
    """A small request of the router's own, awaited: its status and its whole body."""

    def __init__(self) -> None:
        self._future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._parts: list[bytes] = []

    @staticmethod
    async def get(pool: Pool, address: Address, path: str, *, timeout_seconds: float) -> tuple[int, bytes]:
        """Raises OSError if there is no answer, TimeoutError if there is none in time."""
        fetch = Fetch()
        head = b"GET %b HTTP/1.1\r\nHost: %b\r\nAccept: application/json\r\n\r\n"
        ticket = pool.send(address, head % (path.encode(), authority(*address)), fetch)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await fetch._future
        finally:
            ticket.cancel()

    def leg_head(self, status: int, headers: list[Header]) -> None:
        self._status = status

    def leg_data(self, data: bytes, *, done: bool) -> None:
        self._parts.append(data)
        if done and not self._future.done():
            self._future.set_result((self._status, b"".join(self._parts)))

    def leg_lost(self, failure: Failure, reason: str) -> None:
        if not self._future.done():
            self._future.set_exception(ConnectionError(f"{failure}: {reason}"))
