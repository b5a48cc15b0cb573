"""The one error of the HTTP interface, in OpenAI's shape.

    ApiError   an HTTP status and {"error": {"message", "type", "param", "code"}}

``param`` names the request's field at fault, so that a client's developer need not guess. Nothing a client sends may
become a 500.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    499: "client_closed_request",
    500: "server_error",
    502: "server_error",
    503: "service_unavailable_error",
    504: "server_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiErrorBody:
    """What goes into ``error`` of the body."""

    message: str
    type: str
    param: str | None
    code: str | None


class ApiError(Exception):
    """A refused or failed request.

    ``status`` is the HTTP status, ``param`` the field at fault (None where none is), ``code`` a machine-readable
    reason, ``retry_after_seconds`` becomes a Retry-After header (whole seconds, rounded up by the server).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_seconds = retry_after_seconds

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> bytes:
        """The JSON body."""
        detail = ApiErrorBody(message=self.message, type=self.type, param=self.param, code=self.code)
        return msgspec.json.encode({"error": detail})


def invalid(param: str, problem: str) -> ApiError:
    """400 for a field; the message opens with the field's name."""
    return ApiError(f"{param}: {problem}", param=param, code="invalid_value")


def unsupported(param: str, instead: str) -> ApiError:
    """400 for a field that is understood but not served."""
    return ApiError(f"{param}: not supported; {instead}", param=param, code="unsupported_parameter")


def model_not_found(model: str, *, known: tuple[str, ...]) -> ApiError:
    """404 for a model that isn't served here."""
    return ApiError(
        f"model: {model!r} does not exist; served here: {', '.join(known) or 'none'}",
        status=404,
        param="model",
        code="model_not_found",
    )


def unavailable(message: str, *, code: str = "unavailable", retry_after_seconds: float = 1.0) -> ApiError:
    """503 for a request that could be served at another time or elsewhere."""
    return ApiError(message, status=503, code=code, retry_after_seconds=retry_after_seconds)
