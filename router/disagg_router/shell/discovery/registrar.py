"""Keeps the fleet equal to what the source names and to what each worker says of itself.

Every named worker is asked ``/disagg/info``: at once when it appears, becomes ready again or failed a request, often
while it is not ready, and now and then afterwards, which finds a restarted process and a drain that was asked of the
worker itself. A worker enters the fleet only with an answer, so nothing is chosen on hearsay, and one that failed a
request comes back with its next answer.

A real engine has no such page. Where the source says what it is, its health page is asked instead.

One task follows the source and one each worker probes; all are owned here and end with their worker.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Final

from disagg_contract import ports
from disagg_contract.discovery import DiscoveredWorker, WorkerInfo
from disagg_contract.errors import DocumentError
from disagg_router.core.fleet import Fleet
from disagg_router.core.tally import Tally
from disagg_router.errors import RegistrationRefusedError
from disagg_router.shell.discovery.source import Rows, Source
from disagg_router.shell.upstream import Fetch, Pool

log = logging.getLogger(__name__)

PROBE_TIMEOUT_SECONDS: Final = 3.0
PATIENCE: Final = 2
"""Probes in a row without an answer in time after which a worker is suspect; a refused connection is enough at once."""
FIRST_RETRY_SECONDS: Final = 0.05
LAST_RETRY_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 5.0
"""A worker may end before discovery knows: only one that is named and silent for so long is worth a warning."""
STEADY_SECONDS: Final = 2.0
"""Between two probes of a worker that serves, in a fleet of up to two hundred; a larger one is asked more slowly."""
PROBES_PER_SECOND: Final = 100


class Registrar:
    """Owns the discovery tasks."""

    def __init__(self, fleet: Fleet, pool: Pool, tally: Tally, source: Source) -> None:
        self.fleet = fleet
        self.pool = pool
        self.tally = tally
        self._source = source
        self._probes: dict[str, _Probe] = {}

    def start(self) -> None:
        self.follower = asyncio.get_running_loop().create_task(self._follow(), name="discovery")

    async def stop(self) -> None:
        tasks = [self.follower, *(probe.task for probe in self._probes.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._probes.clear()

    def nudge(self, uid: str) -> None:
        """Ask this worker now."""
        probe = self._probes.get(uid)
        if probe is not None:
            probe.nudge()

    @property
    def steady_seconds(self) -> float:
        return max(STEADY_SECONDS, len(self._probes) / PROBES_PER_SECOND)

    @property
    def tasks(self) -> int:
        """Tasks that probe workers."""
        return len(self._probes)

    async def _follow(self) -> None:
        async for rows in self._source.watch():
            self.update(rows)

    def update(self, rows: Rows) -> None:
        """The whole list of workers as it is now."""
        named = {row.uid: row for row in rows}
        for uid in [uid for uid in self._probes if uid not in named]:
            self._probes.pop(uid).task.cancel()
            self.fleet.leave(uid)
        for uid, row in named.items():
            probe = self._probes.get(uid)
            if probe is None:
                self._probes[uid] = _Probe(row, self)
            elif probe.row != row:
                probe.change(row)


class _Probe:
    """Asks one worker who it is, again and again."""

    def __init__(self, row: DiscoveredWorker, registrar: Registrar) -> None:
        self.row = row
        self._registrar = registrar
        self._fleet = registrar.fleet
        self._pool = registrar.pool
        self._tally = registrar.tally
        self._late = 0
        self._silent_since: float | None = None
        self._warned = False
        self._wanted = asyncio.Event()
        self._refusal = ""
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"probe {row.name}")

    def nudge(self) -> None:
        self._wanted.set()

    def change(self, row: DiscoveredWorker) -> None:
        self.row = row
        self._fleet.mark(row.uid, ready=row.ready, draining=row.draining)
        self.nudge()

    async def _run(self) -> None:
        wait = FIRST_RETRY_SECONDS
        while True:
            self._wanted.clear()
            if self.row.ready and await self._ask():
                pause, wait = self._registrar.steady_seconds, FIRST_RETRY_SECONDS
            else:
                pause, wait = wait, min(2 * wait, LAST_RETRY_SECONDS)
            try:
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
                    wait = FIRST_RETRY_SECONDS
            except TimeoutError:
                pass

    async def _ask(self) -> bool:
        """True if the worker is part of the fleet and ready now."""
        row = self.row
        if row.info is None:
            path, credentials = ports.INFO_PATH, self._pool.credentials()
        else:
            path, credentials = ports.HEALTH_PATH, b""
        try:
            status, body = await Fetch.get(
                self._pool,
                (row.host, row.port),
                path,
                timeout_seconds=PROBE_TIMEOUT_SECONDS,
                credentials=credentials,
            )
        except TimeoutError:
            self._late += 1
            if self._late >= PATIENCE:
                self._silent(row, f"no answer within {PROBE_TIMEOUT_SECONDS:g} s")
            return False
        except OSError as error:
            self._silent(row, str(error))
            return False
        self._late = 0
        self._silent_since, self._warned = None, False
        if row is not self.row:  # changed meanwhile: the answer may be of the process before
            self.nudge()
            return False
        try:
            if row.info is not None:
                info = replace(row.info, ready=status == 200)
            elif status != 200:
                hint = "; it does not know this router's token (--token-file)" if status == 401 else ""
                raise RegistrationRefusedError(
                    "malformed", f"worker {row.name}: {ports.INFO_PATH} answered {status}{hint}"
                )
            else:
                info = WorkerInfo.from_json(body, what=f"worker {row.name}: {ports.INFO_PATH}")
            before = self._fleet.get(row.uid)
            worker = self._fleet.join(row, info)
        except DocumentError as error:
            self._refuse(RegistrationRefusedError("malformed", str(error)))
            return False
        except RegistrationRefusedError as error:
            self._refuse(error)
            return False
        self._refusal = ""
        self._tally.model(info.model)
        if worker is not before:
            log.info("%r joined", worker)
        return worker.ready

    def _silent(self, row: DiscoveredWorker, reason: str) -> None:
        """No answer. The worker stays known but is not chosen: its process may be gone."""
        worker = self._fleet.get(row.uid)
        if worker is None:
            return
        now = self._pool.now()
        if self._silent_since is None:
            self._silent_since = now
            log.info("%r does not answer (%s); not chosen until it does", worker, reason)
        elif not self._warned and now - self._silent_since >= SILENT_SECONDS:
            self._warned = True
            log.warning("%r has not answered for %.0f s (%s)", worker, now - self._silent_since, reason)
        self._fleet.suspect(worker)

    def _refuse(self, error: RegistrationRefusedError) -> None:
        self._fleet.leave(self.row.uid)
        if str(error) != self._refusal:
            self._refusal = str(error)
            self._tally.refused[error.reason] += 1
            log.error("%s", error)
