"""The client's side: HTTP/1.1 requests in, bytes out.

One :class:`Front` a connection. It parses (C parser), bounds what a client may send (head, body, time), hands complete
requests over one at a time and writes what it is told. Pipelined requests wait their turn. A client that closes, even
only its sending half, is gone: the request under way is cancelled, which is what frees the GPUs. Writing pauses the
worker's side while the client does not read.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol, cast

import httptools

from disagg_contract.openai import ApiError
from disagg_router.shell import wire
from disagg_router.shell.sockets import watch_peer

REQUEST_SECONDS: Final = 60.0
"""A request must be complete within this time, head and body."""
IDLE_SECONDS: Final = 300.0
"""A connection without a request is closed after this time."""
STALLED_SECONDS: Final = 120.0
"""A client that reads nothing for so long, with data waiting, is dropped."""
LINGER_SECONDS: Final = 2.0
"""After a refusal the rest of the request is read and dropped for so long; closing at once would reset the connection
and could take the refusal with it."""
MAX_PIPELINED: Final = 32
WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Unsent bytes after which the worker's side is paused."""


@dataclass(slots=True)
class Request:
    """A complete request. ``target`` is the path without its query; ``passed`` header lines for the legs."""

    method: bytes
    target: bytes
    body: bytes
    request_id: bytes
    passed: bytes
    keep_alive: bool
    chunked_ok: bool
    arrived: float


class Turn(Protocol):
    """What answers a request."""

    def client_gone(self) -> None:
        """The client went away before the answer was complete."""

    def pause_writing(self) -> None:
        """The client reads slower than the worker writes."""

    def resume_writing(self) -> None:
        """The client has caught up."""


class Site(Protocol):
    """What the fronts belong to."""

    @property
    def max_head_bytes(self) -> int: ...

    @property
    def max_body_bytes(self) -> int: ...

    @property
    def draining(self) -> bool:
        """No connection is kept after its answer."""
        ...

    def now(self) -> float: ...

    def opened(self, front: "Front") -> None: ...

    def closed(self, front: "Front") -> None: ...

    def handle(self, front: "Front", request: Request) -> Turn | None:
        """Answer a request through ``front``; None if it is answered already."""
        ...

    def refused(self, error: ApiError) -> None:
        """A request was refused before it was complete."""


class Front(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._turn: Turn | None = None
        self._answering = False
        self._waiting: deque[Request] = deque()
        self._closing = False
        self._lingering = False
        self._deaf = False
        self._upgrade: Request | None = None
        self._paused_since: float | None = None
        self._since = 0.0
        self._partial = False
        self._refusal: ApiError | None = None
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._request_id = b""
        self._passed: list[bytes] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._content_length = 0
        self._head_bytes = 0
        self._raw_head_bytes = 0
        self._in_head = True
        self._expects_continue = False

    # Written by the turn.

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finish(self, *, keep_alive: bool) -> None:
        """The answer is complete."""
        self._turn = None
        self._answering = False
        self._since = self._site.now()
        if not keep_alive or self._site.draining:
            self.close()
            return
        if self._waiting or self._refusal is not None:
            asyncio.get_running_loop().call_soon(self._next)

    def close(self) -> None:
        """Close after what was written has been sent."""
        self._closing = True
        self._since = self._site.now()
        self._waiting.clear()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once: the client sees a broken answer."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        if not self._answering and not self._waiting:
            self.close()

    def sweep(self, now: float) -> None:
        """Enforce the time limits; called every second."""
        if self._paused_since is not None and now - self._paused_since > STALLED_SECONDS:
            self.abort()
        elif self._closing:
            if now - self._since > (LINGER_SECONDS if self._lingering else STALLED_SECONDS):
                self.abort()
        elif self._answering or self._paused_since is not None:
            return
        elif self._partial:
            if now - self._since > REQUEST_SECONDS:
                self._refuse(ApiError(f"the request was not complete within {REQUEST_SECONDS:g} s", status=408))
        elif now - self._since > IDLE_SECONDS:
            self.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        watch_peer(transport)
        self._since = self._site.now()
        self._site.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._closing or self._refusal is not None:
            return
        if self._deaf:
            self._take_unparsed(data)
        else:
            self._parse(data)
        if self._in_head and self._raw_head_bytes > self._site.max_head_bytes:
            self._refusal = self._head_too_long()
        if self._answering:
            return  # a refusal waits for its turn, too
        if self._waiting:
            self._next()
        elif self._refusal is not None:
            self._refuse(self._refusal)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closing = True
        self._waiting.clear()
        turn, self._turn = self._turn, None
        self._site.closed(self)
        if turn is not None:
            turn.client_gone()

    def pause_writing(self) -> None:
        self._paused_since = self._site.now()
        if self._turn is not None:
            self._turn.pause_writing()

    def resume_writing(self) -> None:
        self._paused_since = None
        if self._turn is not None:
            self._turn.resume_writing()

    # httptools

    def on_message_begin(self) -> None:
        if not self._partial:
            self._since = self._site.now()
        self._partial = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._head_bytes += len(name) + len(value) + 4
        if name == b"x-request-id":
            self._request_id = value[:128]
        elif name == b"content-length":
            self._content_length = int(value) if value.isdigit() else 0  # the parser refuses what is no number
            if self._content_length > self._site.max_body_bytes:
                self._refusal = self._body_too_long()
        elif name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"
        elif name in wire.PASSED_TO_WORKERS:
            self._passed.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        if self._head_bytes > self._site.max_head_bytes:
            self._refusal = self._head_too_long()
        self._in_head = False
        if self._expects_continue and self._refusal is None and not self._answering:
            self.write(wire.CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._site.max_body_bytes:
            self._refusal = self._body_too_long()
        if self._refusal is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._refusal is None:
            upgrade = self._parser.should_upgrade()
            request = Request(
                method=self._parser.get_method(),
                target=_path(self._url),
                body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
                request_id=self._request_id,
                passed=b"".join(self._passed),
                keep_alive=self._parser.should_keep_alive() and not upgrade,
                chunked_ok=self._parser.get_http_version() != "1.0",
                arrived=self._site.now(),
            )
            if upgrade:
                self._upgrade = request
                return
            self._waiting.append(request)
            if len(self._waiting) > MAX_PIPELINED:
                self._refusal = ApiError(f"more than {MAX_PIPELINED} pipelined requests", status=429)
        self._partial = False
        self._reset()

    # How.

    def _parse(self, data: bytes) -> None:
        if self._in_head:
            self._raw_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._deaf = True
            self._take_unparsed(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self._refusal is None:
                self._refusal = ApiError(f"malformed HTTP request: {error}")

    def _take_unparsed(self, data: bytes) -> None:
        """What follows a head that asks for another protocol.

        The wish is ignored, as RFC 9110 allows (Java's client asks for HTTP/2 with its first request); but the parser
        reads no further, so the body is collected here and the connection closed after the answer.
        """
        request = self._upgrade
        if request is None:
            return
        request.body += data
        if len(request.body) >= self._content_length:
            request.body = request.body[: self._content_length]
            self._upgrade = None
            self._partial = False
            self._waiting.append(request)

    def _next(self) -> None:
        """Answer what waits, as long as each answer is complete at once."""
        while self._waiting and not self._answering and not self._closing:
            request = self._waiting.popleft()
            self._answering = True
            turn = self._site.handle(self, request)
            if self._answering:
                self._turn = turn
                if turn is not None and self._paused_since is not None:
                    turn.pause_writing()
        if self._refusal is not None and not self._answering and not self._closing:
            self._refuse(self._refusal)

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that cannot be served, and close: where the next one begins is not known."""
        self._site.refused(error)
        self._closing = True
        self._lingering = True
        self._since = self._site.now()
        self._waiting.clear()
        self.write(wire.error_answer(error, close=True))
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def _head_too_long(self) -> ApiError:
        return ApiError(f"the head of the request is longer than {self._site.max_head_bytes} bytes", status=431)

    def _body_too_long(self) -> ApiError:
        return ApiError(f"the body is longer than {self._site.max_body_bytes} bytes", status=413)


def _path(url: bytes) -> bytes:
    """Path of a request target, in origin or absolute form."""
    if url[:1] != b"/":
        try:
            return httptools.parse_url(url).path or b"/"
        except httptools.HttpParserInvalidURLError:
            return b""
    end = url.find(b"?")
    return url if end < 0 else url[:end]
