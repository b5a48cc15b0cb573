"""What can go wrong, as one small tree. Every message says what was wrong and what to do about it.

ClusterError
├── SpecError       an option or a setting makes no sense
├── PreflightError  this machine lacks something
├── CommandError    a program that was run to completion failed
├── BuildError      a Go program or an image could not be built
└── NotReadyError   something was started and did not become ready in time
"""

from __future__ import annotations


class ClusterError(Exception):
    """The root: `cli` prints it as one message and exits 1."""


class SpecError(ClusterError):
    """An option or a setting makes no sense."""


class PreflightError(ClusterError):
    """This machine lacks something that a cluster needs."""


class CommandError(ClusterError):
    """A program that was run to completion failed."""


class BuildError(ClusterError):
    """A Go program or an image could not be built."""


class NotReadyError(ClusterError):
    """Something was started and did not become ready in time."""
