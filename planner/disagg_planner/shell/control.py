"""The process runtime's control API (`contract.control`), as scaler and reporter."""

from __future__ import annotations

import aiohttp

from disagg_contract import control
from disagg_contract.control import Condition, Event, Scale
from disagg_contract.documents import encode
from disagg_contract.errors import DocumentError
from disagg_contract.labels import Role
from disagg_planner.core.fleet import Group
from disagg_planner.errors import ScaleConflict, ScaleRefused, ScalerError
from disagg_planner.shell.scaling import ScaleState

_HEADERS = {"Content-Type": "application/json"}


class ControlRuntime:
    """Talks to `url`. `timeout_seconds` bounds each call."""

    def __init__(self, *, url: str, timeout_seconds: float = 10.0) -> None:
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_seconds))

    async def close(self) -> None:
        await self._session.close()

    async def read(self, role: Role) -> ScaleState:
        answer = await self._call("GET", control.scale_path(role))
        try:
            scale = Scale.from_json(answer)
        except DocumentError as error:
            raise ScalerError(f"GET {self._url}{control.scale_path(role)}: {error}") from error
        # `current` may count a process that is still to be started; never fewer than serve.
        group = Group(replicas=scale.replicas, existing=max(scale.current, scale.ready), ready=scale.ready)
        return ScaleState(group=group, resource_version=scale.resource_version)

    async def write(self, role: Role, replicas: int, resource_version: str) -> None:
        scale = Scale(role=role, replicas=replicas, resource_version=resource_version)
        await self._call("PUT", control.scale_path(role), scale.to_json())

    async def conditions(self, conditions: tuple[Condition, ...]) -> None:
        for condition in conditions:
            await self._call("PUT", control.condition_path(condition.type), encode(condition))

    async def event(self, event: Event) -> None:
        await self._call("POST", control.EVENTS_PATH, encode(event))

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        what = f"{method} {self._url}{path}"
        try:
            async with self._session.request(method, self._url + path, data=body, headers=_HEADERS) as response:
                answer = await response.read()
                if response.status == 409:
                    raise ScaleConflict(f"{what}: the scale was changed in between")
                if response.status >= 400:
                    text = answer[:200].decode(errors="replace")
                    raise ScaleRefused(f"{what} was refused with {response.status}: {text}")
                return answer
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ScalerError(f"{what} failed: {error or type(error).__name__}") from error
