"""Errors of the worker.

WorkerError
├── StartError       the worker can't start as configured (a ConfigError of the contract too); exit status 2
└── PullError        KV could not be pulled; the prompt is computed here instead
    └── MismatchError   it never can be: the two workers don't fit together; the request is refused by name
"""

from disagg_contract.errors import ConfigError


class WorkerError(Exception):
    """Base of the worker's errors."""


class StartError(WorkerError, ConfigError):
    """The worker can't start as configured. One sentence: what is wrong, and what would be right."""


class PullError(WorkerError):
    """A pull failed. The message says at which worker and why."""
