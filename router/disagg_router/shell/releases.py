"""Gives back KV that no decode worker will pull: ``DELETE /disagg/transfers/{id}`` to the worker that holds it.

A request that ends between its two legs leaves its prompt's KV pinned, and the prefill worker cannot know it before the
lease is over. Nobody waits for these messages: a few are under way to each worker at a time, each for a bounded time,
the others queue up to a bound, and one that is lost costs what it would have cost anyway, the rest of the lease. They
are sent to workers that left the fleet as well: one that drains waits for its KV to be pulled or given back.

A prefill whose client leaves is hung up on, not cut off: its answer may be on its way already, and is the only thing
that names its KV.
"""

import asyncio
import logging
from collections import deque
from typing import Final
from urllib.parse import quote

from disagg_contract import ports
from disagg_router.core.bodies import read_prefill, transfer_id
from disagg_router.core.exchange import Failure
from disagg_router.shell.connection import Address, Header
from disagg_router.shell.upstream import Pool, Ticket
from disagg_router.shell.wire import authority

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 1.0
"""Time for one message, and for the answer of a prefill that was hung up on."""
OPEN_PER_WORKER: Final = 8
QUEUED_PER_WORKER: Final = 4096
LONGEST_ANSWER_BYTES: Final = 4 * 1024 * 1024
_REQUEST: Final = b"DELETE %b HTTP/1.1\r\nHost: %b\r\nContent-Length: 0\r\n%b\r\n"


class Releases:
    """All messages of a router. Owned by the event loop's thread."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._open: dict[Address, set[_Message]] = {}
        self._queued: dict[Address, deque[str]] = {}
        self._orphans: set[_Orphan] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """Messages and orphans under way or queued."""
        return sum(map(len, self._open.values())) + sum(map(len, self._queued.values())) + len(self._orphans)

    def release(self, address: Address, transfer: str) -> None:
        """Tell the worker there to free a transfer's KV. Returns at once."""
        self._queued.setdefault(address, deque(maxlen=QUEUED_PER_WORKER)).append(transfer)
        self._idle.clear()
        # In the loop's next turn, so that a decode leg given up in this one is cut off first.
        self._loop.call_soon(self._send, address)

    def hang_up(self, ticket: Ticket, *, heard: bytes) -> None:
        """Nobody wants the answer of this prefill any more; free what it holds if it comes all the same.

        ``heard`` is what has come of the answer's body so far.
        """
        orphan = _Orphan(self, ticket, heard)
        self._orphans.add(orphan)
        self._idle.clear()
        ticket.hang_up(orphan)
        orphan.timer = self._loop.call_later(ANSWER_SECONDS, orphan.end)

    async def finish(self, seconds: float) -> None:
        """Wait for what is under way, but not for long."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.info("%d transfers are left to their leases", self.pending)

    def close(self) -> None:
        """Forget everything."""
        self._queued.clear()
        for orphan in list(self._orphans):
            orphan.end()
        for message in [message for messages in self._open.values() for message in messages]:
            message.end()

    # How.

    def ended(self, message: "_Message") -> None:
        messages = self._open.get(message.address)
        if messages is not None:
            messages.discard(message)
            if not messages:
                del self._open[message.address]
        self._send(message.address)

    def orphan_ended(self, orphan: "_Orphan") -> None:
        self._orphans.discard(orphan)
        self._settle()

    def _send(self, address: Address) -> None:
        queued = self._queued.get(address)
        while queued and len(self._open.get(address, ())) < OPEN_PER_WORKER:
            message = _Message(self, address)
            self._open.setdefault(address, set()).add(message)
            path = f"{ports.TRANSFERS_PATH}/{quote(queued.popleft(), safe='')}".encode()
            # Only our own workers name a transfer, so only they are shown the token.
            request = _REQUEST % (path, authority(*address), self._pool.credentials())
            message.ticket = self._pool.send(address, request, message)
            message.timer = self._loop.call_later(ANSWER_SECONDS, message.end)
        if queued is not None and not queued:
            self._queued.pop(address, None)
        self._settle()

    def _settle(self) -> None:
        if not self.pending:
            self._idle.set()


class _Message:
    """One release under way. Whatever is answered is fine: freed, or not there any more."""

    def __init__(self, releases: Releases, address: Address) -> None:
        self._releases = releases
        self.address = address
        self.ticket: Ticket | None = None
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Over, answered or not."""
        if self.timer is not None:
            self.timer.cancel()
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.cancel()
            self._releases.ended(self)

    def leg_head(self, status: int, headers: list[Header]) -> None:
        if status not in (200, 202, 204, 404):
            log.info("giving back KV: %s:%d answered %d; its lease will free it", *self.address, status)

    def leg_data(self, data: bytes, *, done: bool) -> None:
        if done:
            self.end()

    def leg_lost(self, failure: Failure, reason: str) -> None:
        log.info("giving back KV: %s:%d %s (%s); its lease will free it", *self.address, failure, reason)
        self.end()


class _Orphan:
    """A prefill that was hung up on."""

    def __init__(self, releases: Releases, ticket: Ticket, heard: bytes) -> None:
        self._releases = releases
        self._ticket: Ticket | None = ticket
        self._address = ticket.address
        self._body = bytearray(heard)
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Over, answered or not."""
        if self.timer is not None:
            self.timer.cancel()
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.cancel()
            self._releases.orphan_ended(self)

    def leg_head(self, status: int, headers: list[Header]) -> None:
        """Nothing: what is no prefill's answer names no transfer."""

    def leg_data(self, data: bytes, *, done: bool) -> None:
        self._body += data
        if len(self._body) > LONGEST_ANSWER_BYTES:
            self.end()
        elif done:
            answer = read_prefill(bytes(self._body))
            if answer is not None and answer.transfer is not None and (name := transfer_id(answer.transfer)):
                self._releases.release(self._address, name)
            self.end()

    def leg_lost(self, failure: Failure, reason: str) -> None:
        self.end()
