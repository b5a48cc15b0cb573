"""How many connections this process may hold."""

from __future__ import annotations

import resource

_SPARE_FILES = 64
"""Files that the rest of the process needs: the standard streams, the event loop, reports, name lookups."""


def allow_connections(wanted: int) -> int:
    """Raise the soft limit of open files as far as it goes, and say how many of `wanted` connections fit below it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - _SPARE_FILES))
