"""Errors of the router.

    RouterError
    ├── RegistrationRefusedError   a worker disagrees with the deployment's other workers
    ├── DiscoveryError             the place that names the workers cannot be read
    └── StartError                 the router cannot start; the message says what to change

What clients are told is ``disagg_contract.openai.ApiError``, because it becomes an HTTP answer.
"""


class RouterError(Exception):
    """Something the router was given, or was told, cannot be used."""


class RegistrationRefusedError(RouterError):
    """A worker was not taken in. ``reason`` is the field that differs (a value of ``REFUSAL_REASONS``)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DiscoveryError(RouterError):
    """The list of workers cannot be read now; what was known stays."""


class StartError(RouterError):
    """The router cannot start."""
