"""From start to exit: loading, ready, draining, stopping.

loading    the modelled weights are being loaded: alive, not ready, requests get 503
ready      takes requests
marked     somebody asked for a drain (POST /drain): still ready and still serving, because routers that have not
           heard yet must lose nothing; says when it is empty; DELETE /drain takes the mark away
stopping   SIGTERM: not ready at once, new requests get 503, running ones finish, pinned KV waits to be pulled
"""

import asyncio
from enum import StrEnum


class Phase(StrEnum):
    """Where the process is in its life."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


class Lifecycle:
    """State that routes ask and signals change."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.marked = False
        self._stopping = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether new requests are taken."""
        return self.phase is Phase.READY

    @property
    def draining(self) -> bool:
        """Whether the worker is being emptied, for whatever reason."""
        return self.marked or self.phase is Phase.STOPPING

    def loaded(self) -> None:
        """The weights are there."""
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    def stop(self) -> None:
        """Begin the end: SIGTERM or SIGINT."""
        self.phase = Phase.STOPPING
        self._stopping.set()

    async def stopping(self) -> None:
        """Wait for `stop`."""
        await self._stopping.wait()
