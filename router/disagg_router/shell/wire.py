"""HTTP/1.1 bytes that the router writes: heads of answers, heads of legs, chunks.

Nothing that came from outside is written into a head unchecked: header values that hold a line break cannot come out of
the parser, and names are passed on from closed lists.
"""

from collections.abc import Iterable
from http import HTTPStatus
from math import ceil
from typing import Final

from disagg_contract import headers
from disagg_contract.openai import STREAM_HEADERS, ApiError

JSON: Final = b"application/json"
LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

PASSED_TO_WORKERS: Final = frozenset({b"authorization", b"traceparent", b"tracestate"})
"""Headers of a request that its legs carry; the request id is added besides."""
_DROPPED_FROM_ANSWERS: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"server",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        headers.REQUEST_ID.encode(),
        headers.TTFT_SECONDS.encode(),
        headers.TPOT_SECONDS.encode(),
    }
)
"""Hop-by-hop, or written anew, or for the router alone."""

_STATUS: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_STREAM_LINES: Final = b"".join(f"{name}: {value}\r\n".encode() for name, value in STREAM_HEADERS.items())
_STREAM_NAMES: Final = frozenset(name.lower().encode() for name in STREAM_HEADERS)
_REQUEST_ID: Final = headers.REQUEST_ID.title().encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; ``data`` is not empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def authority(host: str, port: int) -> bytes:
    """Value of a Host header."""
    return f"[{host}]:{port}".encode() if ":" in host else f"{host}:{port}".encode()


def leg_request(path: bytes, host: bytes, body: bytes, *, request_id: bytes, passed: bytes) -> bytes:
    """Request of a leg. ``passed`` holds header lines of the client that are passed on."""
    return (
        b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b: %b\r\n%b\r\n%b"
        % (path, host, len(body), _REQUEST_ID, request_id, passed, body)
    )


def with_credentials(passed: bytes, credentials: bytes) -> bytes:
    """Header lines for a leg to a member of the deployment: what the client showed to us stays with us.

    ``credentials`` is a header line, or empty where the deployment has no token; then ``passed`` is left as it is.
    """
    if not credentials or not passed:
        return credentials or passed
    kept = [line for line in passed.splitlines(keepends=True) if not line.startswith(b"authorization:")]
    return credentials + b"".join(kept)


def answer_head(
    status: int,
    fields: Iterable[tuple[bytes, bytes]],
    *,
    request_id: bytes = b"",
    length: int | None = None,
    chunked: bool = False,
    streamed: bool = False,
    close: bool = False,
) -> bytes:
    """Head of an answer.

    ``fields`` are the worker's, of which the end-to-end ones are kept. Exactly one of ``length`` (bytes of the body),
    ``chunked`` and, for HTTP/1.0, ``close`` says where the body ends.
    """
    dropped = _DROPPED_FROM_ANSWERS | _STREAM_NAMES if streamed else _DROPPED_FROM_ANSWERS
    lines = [_STATUS.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status]
    lines += [b"%b: %b\r\n" % field for field in fields if field[0] not in dropped]
    if streamed:
        lines.append(_STREAM_LINES)
    if length is not None:
        lines.append(b"content-length: %d\r\n" % length)
    elif chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    if request_id:
        lines.append(b"%b: %b\r\n" % (_REQUEST_ID, request_id))
    lines.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(lines)


def answer(
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON,
    fields: tuple[tuple[bytes, bytes], ...] = (),
    request_id: bytes = b"",
    close: bool = False,
    head_only: bool = False,
) -> bytes:
    """A whole answer; ``head_only`` for HEAD."""
    head = answer_head(
        status, ((b"content-type", content_type), *fields), request_id=request_id, length=len(body), close=close
    )
    return head if head_only else head + body


def error_answer(error: ApiError, *, request_id: bytes = b"", allow: bytes = b"", close: bool = False) -> bytes:
    """An error in OpenAI's shape; ``allow`` names the method that a 405 would have taken."""
    fields: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after_seconds is not None:
        fields = ((b"retry-after", b"%d" % max(1, ceil(error.retry_after_seconds))),)
    if allow:
        fields = (*fields, (b"allow", allow))
    return answer(error.status, error.body(), fields=fields, request_id=request_id, close=close)


def header(fields: Iterable[tuple[bytes, bytes]], name: str) -> bytes | None:
    """Value of a header whose name is in lower case."""
    wanted = name.encode()
    return next((value for key, value in fields if key == wanted), None)


def seconds(fields: Iterable[tuple[bytes, bytes]], name: str) -> float | None:
    """A header's value as a non-negative, finite number of seconds; None if it has none."""
    value = header(fields, name)
    try:
        number = float(value) if value is not None else -1.0
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
