"""kopf, which does one thing here: it says which object changed.

It watches our two kinds, and of pods and Deployments those that we made. Its handlers only enqueue: an error in them
would be dropped, and work in them would hold up the stream. No handler needs a finalizer, a progress annotation or
peering, so an object can be deleted while no operator runs.

kopf cancels every task of its loop when it ends, and catches signals in the main thread; so it has a thread and a loop
of its own, and reaches the queue through ``call_soon_threadsafe``.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import aiohttp
import kopf

from disagg_contract import labels
from disagg_crds import DEPLOYMENT_PLURAL, GROUP, GROUP_PLURAL, VERSION
from disagg_operator.shell.kube.api import bearer
from disagg_operator.shell.kube.connect import Connection
from disagg_operator.shell.kube.wishes import Wishes

log = logging.getLogger(__name__)

OURS = f"{labels.MANAGED_BY}={labels.MANAGER}"


FAREWELL_SECONDS = 2.0


class Key(NamedTuple):
    """An object to reconcile: ``dd`` or ``dg``, namespace, name."""

    kind: str
    namespace: str
    name: str


class Watcher:
    """Runs kopf until ``stop``. ``enqueue`` is called in ``loop``."""

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str,
        enqueue: Callable[[Key], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._namespace = namespace
        self._enqueue = enqueue
        self._loop = loop
        self._connection = connection
        self._sessions: list[aiohttp.ClientSession] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._error: BaseException | None = None
        self.ended = asyncio.Event()
        """Set in ``loop`` when kopf ran and runs no more, asked or not."""

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether changes are still told."""
        return not self.ended.is_set()

    @property
    def error(self) -> BaseException | None:
        """What ended it, if it was not asked to end."""
        return self._error

    async def stop(self, *, seconds: float = 10.0) -> None:
        """Ask it to end and wait a while. Its thread may linger to close connections; it acts no more."""
        self._stop.set()
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            log.warning("kopf did not end within %.0f s", seconds)

    def _run(self) -> None:
        options: dict[str, Any] = {"namespaces": [self._namespace]} if self._namespace else {"clusterwide": True}
        try:
            asyncio.run(self._watch(options))
        except BaseException as error:  # noqa: BLE001 - the thread's end is judged by the main loop
            self._error = error
            log.error("kopf ended: %r", error)
            self._tell_end()

    def _tell_end(self) -> None:
        # The loop may be gone already when the whole process ends.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.ended.set)

    async def _watch(self, options: Mapping[str, Any]) -> None:
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=settings(namespaced=bool(self._namespace)),
                standalone=True,
                # Its own guess asks for a user name, which an arbitrary uid in a container does not have.
                identity=cast(Any, socket.gethostname()),
                stop_flag=self._stop,
                **options,
            )
        finally:
            for session in self._sessions:
                await session.close()
            self._tell_end()
            # A watch that was cut off says good-bye to a server that may be slow to answer. Nobody waits for that, but
            # a loop that ends before leaks the connection.
            await asyncio.sleep(FAREWELL_SECONDS)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        wishes = Wishes()

        async def deployment_changed(
            event: Mapping[str, Any], namespace: str | None, name: str | None, **_: Any
        ) -> None:
            if wishes.are_new(event):
                self._say("dd", namespace, name)

        async def group_changed(
            event: Mapping[str, Any], namespace: str | None, name: str | None, spec: Mapping[str, Any], **_: Any
        ) -> None:
            if wishes.are_new(event):
                self._say("dg", namespace, name)
                self._say("dd", namespace, spec.get("deployment"))

        async def child_changed(namespace: str | None, meta: Mapping[str, Any], **_: Any) -> None:
            own = meta.get("labels") or {}
            self._say("dd", namespace, own.get(labels.DEPLOYMENT))
            self._say("dg", namespace, own.get(labels.GROUP_LABEL))

        async def login(**_: Any) -> kopf.AiohttpSession:
            # Called again when the API server no longer accepts the token: the new session carries the new one.
            token = await self._connection.token()
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._connection.tls or True, limit=0),
                headers={"Authorization": bearer(token)} if token else None,
            )
            self._sessions.append(session)
            return kopf.AiohttpSession(
                server=self._connection.server,
                default_namespace=self._connection.namespace,
                aiohttp_session=session,
            )

        kopf.on.login(registry=registry)(login)
        kopf.on.event(GROUP, VERSION, DEPLOYMENT_PLURAL, registry=registry)(deployment_changed)
        kopf.on.event(GROUP, VERSION, GROUP_PLURAL, registry=registry)(group_changed)
        kopf.on.event("v1", "pods", registry=registry)(child_changed)
        kopf.on.event("apps", "v1", "deployments", registry=registry)(child_changed)
        return registry

    def _say(self, kind: str, namespace: str | None, name: str | None) -> None:
        if namespace and name and not self._stop.is_set():
            self._loop.call_soon_threadsafe(self._enqueue, Key(kind, namespace, name))


def settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """kopf's settings; times in seconds."""
    found = kopf.OperatorSettings()
    found.peering.standalone = True
    found.posting.enabled = False  # we post our own Events
    found.watching.server_timeout = 300
    found.watching.client_timeout = 310
    found.watching.connect_timeout = 30
    found.watching.label_selectors["v1", "pods"] = OURS
    found.watching.label_selectors["apps", "v1", "deployments"] = OURS
    found.networking.request_timeout = 30
    found.process.ultimate_exiting_timeout = 5  # below the pod's grace period
    found.scanning.disabled = namespaced  # looking for new kinds takes rights on the whole cluster
    return found
