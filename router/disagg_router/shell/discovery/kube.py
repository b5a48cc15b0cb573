"""Workers from the pods of a deployment: list, then watch, then list again.

A list is the truth of its moment; the watch that follows it carries changes at once. A watch that ends, breaks, goes
stale or gets an ``ERROR`` event is followed by a new list, and every watch ends after a while by itself, so an event
that was lost anywhere is made good within that time. Two clocks bound a watch: the server is asked to end it, and the
client stops waiting a little later in case the connection died without a word.

A pod counts while it has an address and is neither finished nor on its way out; what it says beyond that (Ready, the
draining label) is passed on, so that running streams of an unready pod are not cut. Only the few fields that matter are
decoded.

A real engine does not describe itself. Its pod says in an annotation what a worker of ours would, and the id of its
container, which is another one after a restart, stands for the engine id.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final, Protocol

import aiohttp
import msgspec

from disagg_contract import labels, ports
from disagg_contract.discovery import DiscoveredWorker, WorkerInfo
from disagg_contract.errors import DocumentError
from disagg_contract.labels import Role
from disagg_router.errors import DiscoveryError
from disagg_router.shell.discovery.source import Rows

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 60
"""The server ends a watch after this; then the pods are listed anew."""
STALE_SECONDS: Final = WATCH_SECONDS + 15
"""The client gives a watch up after this."""
LIST_TIMEOUT_SECONDS: Final = 15
FIRST_RETRY_SECONDS: Final = 0.2
LAST_RETRY_SECONDS: Final = 10.0
MAX_LINE_BYTES: Final = 4 * 1024 * 1024


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Container(msgspec.Struct):
    container_id: str = msgspec.field(default="", name="containerID")


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    container_statuses: list[_Container] = []
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: list[_Condition] = []


class _ObjectMeta(msgspec.Struct, rename="camel"):
    uid: str = ""
    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None
    resource_version: str = ""


class _Pod(msgspec.Struct):
    metadata: _ObjectMeta = msgspec.field(default_factory=_ObjectMeta)
    status: _Status = msgspec.field(default_factory=_Status)


class _List(msgspec.Struct):
    metadata: _ObjectMeta
    items: list[_Pod] = []


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_list: Final = msgspec.json.Decoder(_List)
_event: Final = msgspec.json.Decoder(_Event)
_pod: Final = msgspec.json.Decoder(_Pod)


class Pods(Protocol):
    """Reads pods from an API server."""

    async def get(
        self, namespace: str, query: Sequence[tuple[str, str]], *, timeout_seconds: float
    ) -> aiohttp.ClientResponse:
        """List or watch of the pods of a namespace, its body not read yet; to be entered as a context."""
        ...


Connect = Callable[[], AbstractAsyncContextManager[Pods]]
"""Opens the way to the API server; left when the source ends."""


class KubeSource:
    """Watches the worker pods of ``deployment``."""

    def __init__(self, connect: Connect, *, namespace: str, deployment: str) -> None:
        self._connect = connect
        self._namespace = namespace
        self._selector = labels.worker_selector(deployment)

    async def watch(self) -> AsyncIterator[Rows]:
        async with self._connect() as api:
            wait = FIRST_RETRY_SECONDS
            while True:
                try:
                    pods, version = await self._list(api)
                    wait = FIRST_RETRY_SECONDS
                    yield rows(pods)
                    async for changed in self._follow(api, pods, version):
                        yield rows(changed)
                    await asyncio.sleep(FIRST_RETRY_SECONDS)  # a server that ends every watch at once is not hammered
                except (DiscoveryError, aiohttp.ClientError, TimeoutError, OSError) as error:
                    log.warning("watching pods: %s; the workers known so far stay in use", _sentence(error))
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, LAST_RETRY_SECONDS)

    async def _list(self, api: Pods) -> tuple[dict[str, _Pod], str]:
        query = [("labelSelector", self._selector)]
        async with await api.get(self._namespace, query, timeout_seconds=LIST_TIMEOUT_SECONDS) as answer:
            body = await answer.read()
            if answer.status != 200:
                raise DiscoveryError(_refusal(answer.status, body, self._namespace))
        try:
            document = _list.decode(body)
        except msgspec.MsgspecError as error:
            raise DiscoveryError(f"list of pods: {error}") from error
        return {pod.metadata.uid: pod for pod in document.items}, document.metadata.resource_version

    async def _follow(self, api: Pods, pods: dict[str, _Pod], version: str) -> AsyncIterator[dict[str, _Pod]]:
        """``pods`` after each event, until the watch ends."""
        query = [
            ("labelSelector", self._selector),
            ("resourceVersion", version),
            ("watch", "true"),
            ("timeoutSeconds", str(WATCH_SECONDS)),
        ]
        async with await api.get(self._namespace, query, timeout_seconds=STALE_SECONDS) as answer:
            if answer.status != 200:
                raise DiscoveryError(_refusal(answer.status, await answer.read(), self._namespace))
            async for line in _lines(answer):
                if not _apply(line, pods):
                    return
                yield pods


def rows(pods: dict[str, _Pod]) -> Rows:
    """What the registrar sees of the pods."""
    found = (row_of(pod) for pod in pods.values())
    return tuple(row for row in found if row is not None)


def row_of(pod: _Pod) -> DiscoveredWorker | None:
    """A pod as a worker, or None if nothing can be sent to it: no address, finished, or not of ours."""
    meta, status = pod.metadata, pod.status
    role = meta.labels.get(labels.ROLE, "")
    if role not in tuple(Role) or not status.pod_ip or status.phase not in ("Running", "Pending"):
        return None
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions)
    return DiscoveredWorker(
        uid=meta.uid,
        name=meta.name,
        role=Role(role),
        host=status.pod_ip,
        port=ports.HTTP,
        ready=ready and meta.deletion_timestamp is None and status.phase == "Running",
        draining=meta.labels.get(labels.DRAINING) == "true" or meta.deletion_timestamp is not None,
        domain=meta.labels.get(labels.NVLINK_DOMAIN, ""),
        info=_info_of(pod),
    )


def _info_of(pod: _Pod) -> WorkerInfo | None:
    """What the pod says of an engine that says nothing itself. Without it, or with nonsense, the worker is asked."""
    text = pod.metadata.annotations.get(labels.WORKER_INFO)
    if text is None:
        return None
    try:
        info = WorkerInfo.from_json(text, what=f"pod {pod.metadata.name}: annotation {labels.WORKER_INFO}")
    except DocumentError as error:
        log.error("%s", error)
        return None
    containers = pod.status.container_statuses
    return replace(info, engine_id=containers[0].container_id if containers else "")


def _apply(line: bytes, pods: dict[str, _Pod]) -> bool:
    """Change ``pods`` by one event; False if the watch is of no use any more."""
    try:
        event = _event.decode(line)
        if event.type == "BOOKMARK":
            return True
        if event.type == "ERROR":
            return False
        pod = _pod.decode(event.object)
    except msgspec.MsgspecError as error:
        raise DiscoveryError(f"watch of pods: {error}") from error
    if event.type == "DELETED":
        pods.pop(pod.metadata.uid, None)
    else:
        pods[pod.metadata.uid] = pod
    return True


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    buffer = b""
    async for data in answer.content.iter_any():
        *lines, buffer = (buffer + data).split(b"\n")
        if len(buffer) > MAX_LINE_BYTES:
            raise DiscoveryError(f"watch of pods: an event is longer than {MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                yield line


def _refusal(status: int, body: bytes, namespace: str) -> str:
    hint = "; the router's ServiceAccount needs list and watch on pods" if status in (401, 403) else ""
    said = body[:300].decode("utf-8", "replace")
    return f"API server answered {status} for the pods of namespace {namespace}: {said}{hint}"


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__
