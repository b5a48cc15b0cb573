"""An HTTP/1.1 client for streams, on asyncio's protocols and httptools' parser.

It exists for two reasons. Bytes are stamped in `data_received`, before any task is woken, so a busy client does not
read its own delay as the server's. And it costs some ten microseconds a chunk, so that client, router and workers can
share two cores. Connections are kept alive and reused, newest first; TCP_NODELAY is set. One connection carries one
exchange at a time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from disagg_load.errors import UrlError

Sink = Callable[[bytes, float], None]
"""Takes body bytes and the loop time at which they arrived."""

MAX_KEPT_BODY_BYTES = 1024 * 1024


class ConnectionLostError(ConnectionError):
    """The connection ended before its answer did. `silent`: not a single byte of the answer had come."""

    def __init__(self, message: str, *, silent: bool) -> None:
        super().__init__(message)
        self.silent = silent


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    tls: bool
    path: str

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(url: str) -> Address:
    """The address of a base URL like http://127.0.0.1:8000 or 127.0.0.1:8000. Raises `UrlError`."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise UrlError(f"{url!r} has no valid port; a URL like http://127.0.0.1:8000 is needed") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UrlError(f"{url!r} is no URL of a server; one like http://127.0.0.1:8000 is needed")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Address(host=parts.hostname, port=port, tls=parts.scheme == "https", path=path)


@dataclass(frozen=True, slots=True)
class Response:
    """Status and, unless a sink took it, the body (at most `MAX_KEPT_BODY_BYTES` of it)."""

    status: int
    body: bytes


class _Connection(asyncio.Protocol):
    """One connection; the parser calls the `on_*` methods back."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self.reusable = False

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def exchange(self, request: bytes, sink: Sink | None) -> asyncio.Future[Response]:
        """Send a whole request; the future gets its response, or `ConnectionLostError`."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._sink = sink
        self._body = bytearray()
        self._status = 0
        self._silent = True
        self._ends_with_connection = True
        self.reusable = False
        self._waiter = self._loop.create_future()
        self._transport.write(request)
        return self._waiter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._now = self._loop.time()
        self._silent = False
        if self._waiter is None or self._waiter.done():
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is no HTTP ({error})")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._status and self._ends_with_connection and error is None:
            self._finish()
        else:
            self._fail(f"the connection was lost ({error or 'closed by the server'})")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._sink is not None and self._status == 200:
            self._sink(data, self._now)
        elif len(self._body) < MAX_KEPT_BODY_BYTES:
            self._body += data

    def on_message_complete(self) -> None:
        self.reusable = bool(self._parser.should_keep_alive())
        self._finish()

    def _finish(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(Response(self._status, bytes(self._body)))

    def _fail(self, message: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionLostError(message, silent=self._silent))


class HttpClient:
    """Exchanges with one server over at most `max_connections` connections at a time; more requests wait."""

    def __init__(self, url: str, *, max_connections: int) -> None:
        self.address = parse_url(url)
        self._tls = ssl.create_default_context() if self.address.tls else None
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(max_connections)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        sink: Sink | None = None,
        on_sent: Callable[[float], None] | None = None,
    ) -> Response:
        """One exchange. `sink` takes the body of a 200 as it comes.

        `on_sent` gets the time at which the request leaves the wait for a free connection; opening one is part of
        what the server takes.

        Raises OSError (`ConnectionLostError` among them) when there is no connection or it breaks.
        """
        lines = [f"{method} {self.address.path}{path} HTTP/1.1", f"Host: {self.address.authority}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        request = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        async with self._slots:
            if on_sent is not None:
                on_sent(asyncio.get_running_loop().time())
            while True:
                reused = self._take_idle()
                connection = reused or await self._connect()
                try:
                    response = await connection.exchange(request, sink)
                except ConnectionLostError as error:
                    if reused is not None and error.silent:
                        continue
                    raise
                finally:
                    if connection.reusable and connection.open:
                        self._idle.append(connection)
                    else:
                        connection.close()
                return response

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self.address.host, self.address.port, ssl=self._tls)
        return connection

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)
