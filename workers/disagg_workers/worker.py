"""One worker process put together: engine, clock, connections, life cycle.

Order of a start: the ports are opened first, so that a port in use is said at once, then the modelled weights load
while health says 503, then the worker is ready. Order of an end: readiness goes first, then new requests are refused,
running ones finish, pinned KV waits to be pulled or for its lease, and only then do the ports close (case KV10).
"""

import asyncio
import logging
import os
import time
import uuid
from pathlib import Path

from disagg_contract import __version__
from disagg_contract.chat import template_digest
from disagg_contract.config import WorkerConfig
from disagg_contract.discovery import WorkerInfo
from disagg_contract.hashing import scheme
from disagg_contract.listening import cannot_listen
from disagg_contract.openai import ApiError
from disagg_contract.tokens import TokenKeeper
from disagg_workers.clock import EngineClock
from disagg_workers.contents import ContentStore
from disagg_workers.driver import EngineDriver
from disagg_workers.http import Front, serve
from disagg_workers.instance import Simulated, build
from disagg_workers.iteration_log import IterationLog
from disagg_workers.lifecycle import Lifecycle
from disagg_workers.service import KvAddress, Service
from disagg_workers.strangers import Strangers
from disagg_workers.telemetry import Snapshot, Telemetry
from disagg_workers.transfer.inbound import PullSetup
from disagg_workers.transfer.link import LinkModel
from disagg_workers.transfer.pins import PinTable
from disagg_workers.transfer.server import PullServer

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
_WILDCARDS = ("", "0.0.0.0", "::")


class Worker:
    """A worker. `start`, then `run` until it is told to stop, then `close`.

    ``pod_ip`` is the address advertised for KV pulls where the configuration names none. Raises ConfigError for
    settings that cannot work.
    """

    def __init__(self, config: WorkerConfig, *, pod_ip: str = "") -> None:
        self.config = config
        self.engine_id = uuid.uuid4().hex
        self.simulated: Simulated = build(config)
        self.clock = EngineClock(time_scale=config.time_scale)
        self.lifecycle = Lifecycle()
        self.port = 0
        self._pod_ip = pod_ip
        self.keeper = _keeper(config)
        self.strangers = Strangers(monotonic=time.monotonic)
        self._log = IterationLog(config.iteration_log)
        self.telemetry = Telemetry(
            model=self.simulated.served_name,
            kv_capacity_tokens=self.simulated.capacity_tokens,
            time_scale=config.time_scale,
        )
        self._log.started(config, capacity_tokens=self.simulated.capacity_tokens)
        self.driver = EngineDriver(
            loop=self.simulated.loop,
            clock=self.clock,
            observer=self.telemetry,
            record=self._log if config.iteration_log else None,
        )
        self.store = ContentStore(block_tokens=config.block_tokens, root=self.simulated.root)
        self.pins = PinTable(lease_seconds=config.lease_seconds, monotonic=time.monotonic, release=self.driver.release)
        self.pulls = PullServer(
            engine_id=self.engine_id,
            pins=self.pins,
            store=self.store,
            wire_bytes=round(self.simulated.kv_bytes_per_token * config.block_tokens * config.kv_bytes_scale),
            keeper=self.keeper,
            strangers=self.strangers,
        )
        self.service = Service(
            simulated=self.simulated,
            driver=self.driver,
            store=self.store,
            lifecycle=self.lifecycle,
            telemetry=self.telemetry,
            pins=self.pins,
            pulls=PullSetup(
                driver=self.driver,
                clock=self.clock,
                store=self.store,
                link=LinkModel(
                    bytes_per_second=self.simulated.link_bytes_per_second,
                    latency_seconds=self.simulated.link_latency_seconds,
                ),
                kv_bytes_per_token=self.simulated.kv_bytes_per_token,
                lease_seconds=config.lease_seconds,
                done=self.telemetry.pulled,
                keeper=self.keeper,
            ),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] | None = None

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the ports and begin to load. Raises ListenError if a port can't be had."""
        front = Front(
            service=self.service,
            driver=self.driver,
            lifecycle=self.lifecycle,
            telemetry=self.telemetry,
            info=self.info,
            expose=self.expose,
            pinned=lambda: len(self.pins),
            created=int(time.time()),
            debug_endpoints=self.config.debug_endpoints,
            keeper=self.keeper,
            strangers=self.strangers,
        )
        host = self.config.host
        try:
            await self.pulls.start(host=host, port=self.config.kv_port)
        except OSError as error:
            raise cannot_listen(error, host=host, port=self.config.kv_port, flag="--kv-port") from error
        try:
            self._runner, self.port = await serve(front.application(), host=host, port=self.config.port)
        except OSError as error:
            await self.pulls.close()
            raise cannot_listen(error, host=host, port=self.config.port) from error
        self.service.address = KvAddress(engine_id=self.engine_id, host=self._kv_host(), port=self.pulls.port)
        self._failure = asyncio.get_running_loop().create_future()
        for coroutine, name in (
            (self.driver.run(), "engine"),
            (self._expire(), "leases"),
            (self._load(), "load"),
        ):
            task = asyncio.create_task(coroutine, name=name)
            task.add_done_callback(self._ended)
            self._tasks.add(task)
        _log.info(
            "%s worker %s of %s on %d × %s: HTTP on %s:%d, KV on port %d, %d tokens of KV",
            self.config.role.value,
            self.engine_id[:8],
            self.simulated.served_name,
            self.simulated.instance.gpus,
            self.simulated.instance.gpu.name,
            self.config.host,
            self.port,
            self.pulls.port,
            self.simulated.capacity_tokens,
        )

        if self.keeper is None:
            _log.info("no --token-file: whoever reaches these ports is served")

    async def run(self) -> None:
        """Serve until `stop`, then drain. Raises whatever ended a part of the worker that must not end."""
        failure = self._failure
        if failure is None:
            raise RuntimeError("start the worker first")
        stopping = asyncio.create_task(self._drain(), name="drain")
        try:
            await asyncio.wait((stopping, failure), return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                failure.result()
        finally:
            stopping.cancel()

    def stop(self) -> None:
        """Begin to drain; safe to call from a signal handler of the event loop."""
        _log.info("stopping: %d requests run, %d pins wait", len(self.service.live), len(self.pins))
        self.lifecycle.stop()

    async def close(self) -> None:
        """Close the ports and end everything, finished or not."""
        for generation in list(self.service.live):
            generation.fail(_cut_off())
        await self._runner.cleanup()
        await self.service.close()
        await self.pulls.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._log.close()

    async def _drain(self) -> None:
        await self.lifecycle.stopping()
        deadline = time.monotonic() + self.config.grace_seconds
        while self.service.live or len(self.pins):
            if time.monotonic() >= deadline:
                _log.warning(
                    "the grace period of %g s is over; %d requests are cut off and %d pins dropped",
                    self.config.grace_seconds,
                    len(self.service.live),
                    len(self.pins),
                )
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or self._failure is None or self._failure.done():
            return
        error = task.exception()
        if error is not None:
            for generation in list(self.service.live):
                generation.fail(ApiError("the engine has failed", status=500, code="engine_failed"))
            self._failure.set_exception(error)

    async def _load(self) -> None:
        await asyncio.sleep(self.clock.wall_duration(self.simulated.load_seconds))
        self.lifecycle.loaded()
        _log.info("ready after %g modelled seconds of loading", self.simulated.load_seconds)

    async def _expire(self) -> None:
        while True:
            due = self.pins.next_deadline_seconds()
            # A pin that is added meanwhile expires a whole lease later, so a nap of half a lease misses none.
            nap = self.config.lease_seconds / 2 if due is None else max(0.0, due)
            await asyncio.sleep(min(nap, self.config.lease_seconds / 2))
            for pin in self.pins.expire():
                _log.warning("transfer %s: nobody asked for its KV for %g s", pin.transfer_id, self.pins.lease_seconds)

    def _kv_host(self) -> str:
        if self.config.kv_host:
            return self.config.kv_host
        if self.config.host not in _WILDCARDS:
            return self.config.host
        return self._pod_ip or "127.0.0.1"

    # ---- what others ask ---------------------------------------------------------------------------------------

    def info(self) -> WorkerInfo:
        """What this worker says of itself."""
        simulated, config = self.simulated, self.config
        return WorkerInfo(
            engine_id=self.engine_id,
            role=config.role,
            model=simulated.served_name,
            gpu=simulated.instance.gpu.name,
            block_tokens=config.block_tokens,
            kv_capacity_tokens=simulated.capacity_tokens,
            max_context_tokens=simulated.context_tokens,
            tokenizer_digest=simulated.tokenizer.digest,
            template_digest=template_digest(),
            hash_digest=f"{scheme()}:{simulated.root.hex()}",
            time_scale=config.time_scale,
            tensor=config.tensor,
            pipeline=config.pipeline,
            kv_host=self._kv_host(),
            kv_port=self.pulls.port,
            revision=config.revision,
            version=__version__,
            ready=self.lifecycle.ready,
            draining=self.lifecycle.draining,
        )

    def expose(self) -> bytes:
        """The metrics as text."""
        ledger = self.simulated.loop.ledger
        return self.telemetry.expose(
            Snapshot(
                counts=self.driver.counts(),
                waiting_tokens=self.driver.waiting_prompt_tokens(),
                kv_usage=ledger.used_tokens / ledger.capacity_tokens,
                pinned_blocks=self.pins.pinned_blocks,
                leases_expired=self.pins.expired_count,
                ready=self.lifecycle.ready,
                draining=self.lifecycle.draining,
            )
        )


def _keeper(config: WorkerConfig) -> TokenKeeper | None:
    if not config.token_file:
        return None
    path = Path(config.token_file)
    return TokenKeeper(f"--token-file={path}", path.read_bytes, monotonic=time.monotonic, say=_log.info)


def _cut_off() -> ApiError:
    return ApiError("the worker was stopped before the answer was complete", status=503, code="worker_stopped")


def pod_ip() -> str:
    """The pod's own address, where the pod says so (downward API)."""
    return os.environ.get("POD_IP", "")
