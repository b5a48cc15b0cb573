"""The one place that talks to the API server: plain JSON, typed errors, no model classes.

Reads go to the server and not to a cache, so what a reconcile sees includes what it wrote. Writes are server-side apply
with one field manager, or patches; a conflict is an error of its own that callers answer by reading again.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from disagg_contract.labels import OPERATOR_FIELD_MANAGER
from disagg_operator.errors import ApiError, Conflict, Forbidden, NotFound
from disagg_operator.shell.kube.connect import Connection
from disagg_operator.shell.kube.resources import Resource

Object = dict[str, Any]
Call = tuple[str, str, str]
"""API group, resource with subresource, verb: what RBAC decides about."""

REQUEST_SECONDS: Final = 30.0
PAGE: Final = 500
TLS_CLOSE_SECONDS: Final = 0.25
"""TLS connections take a moment to close after their session was closed; a loop that ends before leaks them."""
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
LARGEST_LINE_BYTES: Final = 8 * 1024 * 1024
"""Bound of one watch event; objects are at most 1.5 MiB in etcd."""


class Api:
    """A client. ``record`` is told of every call, for the test that compares calls with rights."""

    def __init__(self, connection: Connection, *, record: Callable[[Call], None] | None = None) -> None:
        self.connection = connection
        self._record = record
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.connection.tls or True, limit=100),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            read_bufsize=LARGEST_LINE_BYTES // 2,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(TLS_CLOSE_SECONDS)

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Object:
        """Raises NotFound."""
        return await self._call(resource, "get", "GET", namespace=namespace, name=name)

    async def find(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        """The object, or None."""
        try:
            return await self.get(resource, name, namespace=namespace)
        except NotFound:
            return None

    async def objects(self, resource: Resource, *, namespace: str = "", selector: str = "") -> list[Object]:
        """All objects, page by page."""
        items, _ = await self.objects_with_version(resource, namespace=namespace, selector=selector)
        return items

    async def objects_with_version(
        self, resource: Resource, *, namespace: str = "", selector: str = ""
    ) -> tuple[list[Object], str]:
        """All objects, and the resource version to watch from."""
        items: list[Object] = []
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._call(resource, "list", "GET", namespace=namespace, query=query)
            items += page.get("items") or []
            more = page["metadata"].get("continue")
            if not more:
                return items, page["metadata"]["resourceVersion"]
            query["continue"] = more

    async def create(self, resource: Resource, body: Object, *, namespace: str = "") -> Object:
        """Raises Conflict when the name is taken, Forbidden on quota and admission."""
        query = {"fieldManager": OPERATOR_FIELD_MANAGER}
        return await self._call(resource, "create", "POST", namespace=namespace, body=body, query=query)

    async def replace(self, resource: Resource, body: Object, *, namespace: str = "") -> Object:
        """Update with the resource version that ``body`` carries. Raises Conflict when it is stale."""
        name = body["metadata"]["name"]
        return await self._call(resource, "update", "PUT", namespace=namespace, name=name, body=body)

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        namespace: str = "",
        subresource: str = "",
        manager: str = OPERATOR_FIELD_MANAGER,
    ) -> Object:
        """Server-side apply as a field manager: what ``body`` leaves out and ``manager`` once set is taken away."""
        return await self._call(
            resource,
            "patch",
            "PATCH",
            namespace=namespace,
            name=body["metadata"]["name"],
            subresource=subresource,
            query={"fieldManager": manager, "force": "true"},
            body=body,
            content_type=APPLY,
        )

    async def patch(
        self, resource: Resource, name: str, body: Object, *, namespace: str = "", content_type: str = MERGE
    ) -> Object:
        """Merge or strategic merge patch."""
        query = {"fieldManager": OPERATOR_FIELD_MANAGER}
        return await self._call(
            resource,
            "patch",
            "PATCH",
            namespace=namespace,
            name=name,
            query=query,
            body=body,
            content_type=content_type,
        )

    async def delete(self, resource: Resource, name: str, *, namespace: str = "", uid: str = "") -> None:
        """Delete that very object; one that is gone already is fine."""
        body: Object = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._call(resource, "delete", "DELETE", namespace=namespace, name=name, body=body)
        except NotFound:
            return

    async def watch(
        self, resource: Resource, *, version: str, seconds: float, namespace: str = "", selector: str = ""
    ) -> AsyncIterator[Object]:
        """Events after ``version`` for about ``seconds``, bookmarks included.

        Raises ApiError with code 410 when the version is too old, so that the caller lists anew.
        """
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
            **({"labelSelector": selector} if selector else {}),
        }
        self._note(resource, "", "watch")
        # The server ends the stream in time; a silent one is given up a little later.
        timeout = aiohttp.ClientTimeout(total=seconds + 10, sock_connect=REQUEST_SECONDS, sock_read=seconds + 10)
        try:
            async with self._live.get(
                self._url(resource.path(namespace)), params=query, headers=await self._headers(), timeout=timeout
            ) as answer:
                if answer.status != 200:
                    raise await _error(answer)
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _status_error(event["object"])
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(f"watch of {resource.plural} broke: {type(error).__name__} {error}".rstrip()) from error

    @property
    def _live(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use the client as an async context manager")
        return self._session

    def _url(self, path: str) -> str:
        return self.connection.server + path

    def _note(self, resource: Resource, subresource: str, verb: str) -> None:
        if self._record is not None:
            self._record((resource.group, "/".join(filter(None, (resource.plural, subresource))), verb))

    async def _headers(self, content_type: str = "") -> dict[str, str]:
        token = await self.connection.token()
        headers = {"Accept": "application/json", "User-Agent": "disagg-operator"}
        if token:
            headers["Authorization"] = bearer(token)
        return {**headers, "Content-Type": content_type} if content_type else headers

    async def _call(
        self,
        resource: Resource,
        verb: str,
        method: str,
        *,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        self._note(resource, subresource, verb)
        headers = await self._headers(content_type if body is not None else "")
        data = json.dumps(body).encode() if body is not None else None
        url = self._url(resource.path(namespace, name, subresource))
        try:
            async with self._live.request(method, url, params=query, data=data, headers=headers) as answer:
                if answer.status >= 300:
                    raise await _error(answer)
                found: Object = json.loads(await answer.read())
                return found
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            target = "/".join(filter(None, (resource.plural, namespace, name)))
            raise ApiError(f"{verb} {target}: {type(error).__name__} {error}".rstrip()) from error


def bearer(token: str) -> str:
    """Value of the Authorization header; some sources of tokens put the scheme in front themselves."""
    return token if " " in token else f"Bearer {token}"


async def _error(answer: aiohttp.ClientResponse) -> ApiError:
    text = await answer.text(errors="replace")
    try:
        status = json.loads(text)
    except ValueError:
        status = {"message": text[:500]}
    return _status_error({"code": answer.status, **status} if isinstance(status, dict) else {"code": answer.status})


def _status_error(status: Mapping[str, Any]) -> ApiError:
    code, reason = int(status.get("code", 0)), str(status.get("reason", ""))
    message = str(status.get("message") or f"the API server answered {code}")
    kinds: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 403: Forbidden}
    return kinds.get(code, ApiError)(message, code=code, reason=reason)
