"""Connections to workers: pooled, kept alive, one request at a time on each.

A request that goes out on a kept connection which the worker closed in that moment is sent again on a fresh one,
because not a byte of an answer has come: that is the race every keep-alive client has to live with, not a failure of
the worker.

Nothing here decides anything about a request. Timeouts are found by a sweep over the connections in use instead of a
timer each: a stream of tokens would have to move its timer at every token.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from disagg_router.core.exchange import Failure
from disagg_router.shell.connection import Address, Connection, Header, LegHandler
from disagg_router.shell.wire import authority

IDLE_SECONDS: Final = 30.0
"""A connection unused for longer is closed; less than the servers' own keep-alive time."""
MAX_IDLE: Final = 256
"""Idle connections kept to one worker."""


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

    def hang_up(self, handler: LegHandler) -> None:
        """Tell the worker that nobody waits any more, yet hear, through ``handler``, an answer that is on its way."""
        if self._connection is None or self._task is not None:
            self.cancel()
            handler.leg_lost(Failure.RESET, "nothing was sent")
            return
        self.handler = handler
        self.resume()
        self._connection.hang_up()

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
        self.credentials: Callable[[], bytes] = lambda: b""
        """The header line that shows a worker that this router belongs to its deployment; empty without a token."""
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

    def idle_closed(self, address: Address) -> None:
        self.on_idle_closed(address)

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
    async def get(
        pool: Pool, address: Address, path: str, *, timeout_seconds: float, credentials: bytes = b""
    ) -> tuple[int, bytes]:
        """Raises OSError if there is no answer, TimeoutError if there is none in time."""
        fetch = Fetch()
        head = b"GET %b HTTP/1.1\r\nHost: %b\r\nAccept: application/json\r\n%b\r\n"
        ticket = pool.send(address, head % (path.encode(), authority(*address), credentials), fetch)
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
