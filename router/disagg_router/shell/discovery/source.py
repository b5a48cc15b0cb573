"""What a source of workers is.

A source yields the whole list of workers again and again: every time it changed and, for those that can lose an event,
every time it was read anew. Whole lists make a lost event harmless. When the list cannot be read the source keeps quiet
and logs: what was known stays.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from disagg_contract.discovery import DiscoveredWorker

Rows = tuple[DiscoveredWorker, ...]


class Source(Protocol):
    def watch(self) -> AsyncIterator[Rows]:
        """Lists of workers, the first one as soon as it can be read; never ends."""
        ...
