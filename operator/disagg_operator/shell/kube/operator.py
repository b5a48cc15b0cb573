"""The operator, put together.

Order matters twice. At start: health first (so that a pod that waits for the lease is not restarted), then the lease,
then everything that acts. At the end: stop acting, then give the lease away.
"""

import asyncio
import logging
import os
import random
import secrets
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from disagg_contract import __version__
from disagg_contract.config import OperatorConfig
from disagg_operator.core.placement import Ledger
from disagg_operator.core.tokens import TokenRules
from disagg_operator.errors import ApiError, Conflict, NotFound, OperatorError
from disagg_operator.render.configs import Surroundings
from disagg_operator.shell.catalogues import read_catalogue
from disagg_operator.shell.kube.api import Api, Call
from disagg_operator.shell.kube.cluster import ClusterView
from disagg_operator.shell.kube.connect import Connection, connect
from disagg_operator.shell.kube.deployments import DeploymentReconciler
from disagg_operator.shell.kube.drains import Drains
from disagg_operator.shell.kube.events import Recorder
from disagg_operator.shell.kube.groups import GroupReconciler
from disagg_operator.shell.kube.health import served
from disagg_operator.shell.kube.lease import Lease
from disagg_operator.shell.kube.metrics import Metrics
from disagg_operator.shell.kube.placing import Placer
from disagg_operator.shell.kube.queue import WorkQueue
from disagg_operator.shell.kube.resources import DEPLOYMENTS, GROUPS
from disagg_operator.shell.kube.tokens import TokenSecrets
from disagg_operator.shell.kube.versions import compare_versions
from disagg_operator.shell.kube.watcher import Key, Watcher

log = logging.getLogger(__name__)

WORKERS: Final = 8
FREED_SECONDS: Final = 0.3
"""Room often appears in pieces (all pods of a gang go): wait a little before waiting gangs are tried again."""
CONFLICT_SECONDS: Final = 0.2
BURST_SECONDS: Final = 0.05
"""Events come in bursts (a pod that starts is six of them); one reconcile answers them all."""


@dataclass(slots=True, kw_only=True)
class Operator:
    """One running operator. ``record`` is told of every API call."""

    config: OperatorConfig
    connection: Connection
    record: Callable[[Call], None] | None = None
    identity: str

    @staticmethod
    async def build(config: OperatorConfig, *, record: Callable[[Call], None] | None = None) -> "Operator":
        return Operator(config=config, connection=await connect(), record=record, identity=_identity())

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop``. Raises OperatorError when it must not go on."""
        metrics = Metrics()
        vitals = _Vitals(self.config.event_age_limit_seconds)
        async with (
            Api(self.connection, record=self.record) as api,
            served(
                health_port=self.config.health_port,
                metrics_port=self.config.metrics_port,
                problem=vitals.problem,
                exposition=metrics.exposition,
            ) as ports,
        ):
            log.info("health on port %d, metrics on port %d", *ports)
            if not self.config.lease:
                await self._act(api, metrics, vitals, stop, [])
                return
            lease = Lease(
                api,
                namespace=self.config.lease_namespace or self.connection.namespace,
                identity=self.identity,
                seconds=self.config.lease_seconds,
            )
            if not await _unless(stop, lease.acquire()):
                return
            await self._act(api, metrics, vitals, stop, [lease.keep()])
            await lease.release()

    async def _act(
        self,
        api: Api,
        metrics: Metrics,
        vitals: "_Vitals",
        stop: asyncio.Event,
        more: list[Coroutine[Any, Any, None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        await compare_versions(api, own=__version__)
        ledger = Ledger()
        waiting: set[tuple[str, str]] = set()
        pending: list[asyncio.TimerHandle] = []

        def freed() -> None:
            if not pending and waiting:
                pending.append(loop.call_later(FREED_SECONDS, wake))

        def wake() -> None:
            pending.clear()
            for namespace, name in tuple(waiting):
                queue.add(Key("dd", namespace, name))

        async with aiohttp.ClientSession() as session:
            view = ClusterView(api, ledger=ledger, freed=freed)
            reconcilers = self._reconcilers(api, session, metrics, view, ledger)
            waiting = reconcilers[0].waiting
            queue: WorkQueue[Key] = WorkQueue(
                _reconcile(dict(zip(("dd", "dg"), reconcilers, strict=True)), metrics),
                rng=random.Random(secrets.randbits(64)),
                report=_report,
            )
            watcher = Watcher(
                self.connection,
                namespace=self.config.namespace,
                enqueue=lambda key: queue.add_after(key, BURST_SECONDS),
                loop=loop,
            )
            metrics.watch(queue_length=lambda: float(len(queue)), last_event_age=lambda: view.last_event_age)
            vitals.watch(lambda: view.last_event_age, lambda: watcher.alive)
            watcher.start()
            try:
                await _until(
                    stop,
                    view.run(),
                    queue.run(WORKERS),
                    self._resync(api, queue),
                    _outlive(watcher),
                    *more,
                )
            finally:
                for timer in pending:
                    timer.cancel()
                vitals.rest()
                await watcher.stop()

    def _reconcilers(
        self, api: Api, session: aiohttp.ClientSession, metrics: Metrics, view: ClusterView, ledger: Ledger
    ) -> tuple[DeploymentReconciler, GroupReconciler]:
        around = Surroundings(
            image=self.config.image,
            image_pull_policy=self.config.image_pull_policy,
            image_pull_secrets=_names(self.config.image_pull_secrets),
            network_policies=self.config.network_policies,
            trusted_namespaces=_names(self.config.trusted_namespaces),
            prometheus_url=self.config.prometheus_url,
            version=__version__,
        )
        deployments = DeploymentReconciler(
            api,
            placer=Placer(api, view, ledger),
            recorder=Recorder(api, identity=self.identity),
            drains=Drains(session),
            tokens=TokenSecrets(
                api,
                rules=TokenRules(
                    step_seconds=self.config.token_step_seconds, max_age_seconds=self.config.token_max_age_seconds
                ),
                version=__version__,
            ),
            around=around,
            catalogue=read_catalogue(self.config.catalogue),
            metrics=metrics,
        )
        return deployments, GroupReconciler(api, around=around)

    async def _resync(self, api: Api, queue: WorkQueue[Key]) -> None:
        """Reconcile everything now and then: whatever event was lost is made good."""
        while True:
            await asyncio.sleep(self.config.resync_seconds)
            try:
                for kind, resource in (("dd", DEPLOYMENTS), ("dg", GROUPS)):
                    for item in await api.objects(resource, namespace=self.config.namespace):
                        queue.add(Key(kind, item["metadata"]["namespace"], item["metadata"]["name"]))
            except ApiError as error:
                log.warning("resync: %s", error)


class _Vitals:
    """What liveness looks at."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._age: Callable[[], float] | None = None
        self._alive: Callable[[], bool] | None = None

    def watch(self, age: Callable[[], float], alive: Callable[[], bool]) -> None:
        self._age, self._alive = age, alive

    def rest(self) -> None:
        self._age = self._alive = None

    def problem(self) -> str | None:
        """Why this process should be restarted, or None."""
        if self._age is not None and self._age() > self._limit:
            return f"no watch event for {self._age():.0f} s; the limit is {self._limit:g} s"
        if self._alive is not None and not self._alive():
            return "the watch of our objects has ended"
        return None


def _reconcile(
    reconcilers: dict[str, Callable[[str, str], Coroutine[Any, Any, float | None]]], metrics: Metrics
) -> Callable[[Key], Coroutine[Any, Any, float | None]]:
    async def reconcile(key: Key) -> float | None:
        started = time.monotonic()
        result = "error"
        try:
            again = await reconcilers[key.kind](key.namespace, key.name)
            result = "ok"
        except (Conflict, NotFound) as error:
            # Somebody was faster: read again. Nothing is wrong.
            result = "conflict"
            log.info("%s %s/%s: %s; trying again", key.kind, key.namespace, key.name, error)
            again = CONFLICT_SECONDS
        finally:
            metrics.reconciled(key.kind, result, time.monotonic() - started)
        return again

    return reconcile


def _report(key: Key, error: Exception) -> None:
    if isinstance(error, OperatorError):
        log.warning("%s %s/%s: %s", key.kind, key.namespace, key.name, error)
    else:
        log.error("%s %s/%s: %r", key.kind, key.namespace, key.name, error, exc_info=error)


async def _outlive(watcher: Watcher) -> None:
    await watcher.ended.wait()
    raise OperatorError(f"the watch of our objects has ended: {watcher.error!r}")


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether ``work`` was done before ``stop``."""
    await _until(stop, work)
    return not stop.is_set()


async def _until(stop: asyncio.Event, *work: Coroutine[Any, Any, None]) -> None:
    """Run until ``stop`` is set or one of them ends; the first error is raised."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(coroutine) for coroutine in (stop.wait(), *work)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _names(text: str) -> tuple[str, ...]:
    """Names that are separated by commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _identity() -> str:
    """Who holds the lease: another one for each start, or a second process could take it for its own."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}"


async def operate(config: OperatorConfig) -> None:
    """Run until SIGINT or SIGTERM. Raises OperatorError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    operator = await Operator.build(config)
    await operator.run(stop)
