"""Errors of the operator.

OperatorError
├── QuantityError      an object of the cluster carries an amount nobody can read
├── ManifestError      a file of Kubernetes objects holds something else
├── ApiError           the API server refused or could not be reached
│   ├── NotFound       the object is gone; the next observation will say so
│   ├── Conflict       somebody wrote first; read again and retry, nothing is wrong
│   └── Forbidden      a missing right, a quota or an admission rule
├── LeaseLost          another operator holds the lease; this one must stop acting
└── RuntimeStartError  ``disagg up`` cannot start: port, state folder or a program that exits at once
"""


class OperatorError(Exception):
    """Something the operator could not do. The message says what, and what would be right."""


class QuantityError(OperatorError):
    """An amount that is not a Kubernetes quantity."""


class ManifestError(OperatorError):
    """A document that is no Kubernetes object, or lacks what the API server always gives."""


class ApiError(OperatorError):
    """The API server's answer, with its status code (0: no answer) and machine-readable reason."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "") -> None:
        self.code = code
        self.reason = reason
        super().__init__(message)


class NotFound(ApiError):
    """404: the object is gone."""


class Conflict(ApiError):
    """409: the object changed, or exists already."""


class Forbidden(ApiError):
    """403: a right is missing, or an admission plugin such as ResourceQuota refused."""


class LeaseLost(OperatorError):
    """The leader lease could not be renewed in time."""


class RuntimeStartError(OperatorError):
    """The process runtime cannot start."""
