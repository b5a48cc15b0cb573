"""Workers from a file that another program replaces (process runtime, or a hand-written one).

The file is polled: its identity (inode, size, time of change) is cheap to ask for, works on every file system, and a
replacement by rename changes it. A file that is missing or malformed leaves the last good list in force.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from disagg_contract.discovery import SCHEMA_VERSION, DiscoveryFile
from disagg_contract.errors import DocumentError
from disagg_router.errors import DiscoveryError
from disagg_router.shell.discovery.source import Rows

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2


class FileSource:
    """Watches ``path``."""

    def __init__(self, path: Path, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._path = path
        self._poll_seconds = poll_seconds

    async def watch(self) -> AsyncIterator[Rows]:
        seen: object = None
        problem = ""
        while True:
            try:
                identity = self._identity()
                if identity != seen:
                    rows = self._read()
                    seen = identity
                    problem = ""
                    yield rows
            except DiscoveryError as error:
                if str(error) != problem:
                    problem = str(error)
                    log.error("%s; the workers known so far stay in use", problem)
            await asyncio.sleep(self._poll_seconds)

    def _identity(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise DiscoveryError(f"discovery file {self._path}: {error.strerror}") from error
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> Rows:
        try:
            document = DiscoveryFile.from_json(self._path.read_bytes(), what=f"discovery file {self._path}")
        except OSError as error:
            raise DiscoveryError(f"discovery file {self._path}: {error.strerror}") from error
        except DocumentError as error:
            raise DiscoveryError(str(error)) from error
        if document.version != SCHEMA_VERSION:
            raise DiscoveryError(
                f"discovery file {self._path}: version is {document.version}; this router reads {SCHEMA_VERSION}"
            )
        return document.workers
