"""The leader lease against an API server in memory that bumps resource versions and refuses stale writes."""

import asyncio
from typing import Any

import pytest

from disagg_operator.errors import ApiError, Conflict, LeaseLost
from disagg_operator.shell.kube.api import Object
from disagg_operator.shell.kube.lease import Lease
from disagg_operator.shell.kube.resources import Resource


class Memory:
    """One object."""

    def __init__(self) -> None:
        self.item: Object | None = None
        self.version = 0
        self.down = False

    async def find(self, resource: Resource, name: str, *, namespace: str = "") -> Object | None:
        if self.down:
            raise ApiError("connection refused")
        return (
            None
            if self.item is None
            else {key: dict(value) if isinstance(value, dict) else value for key, value in self.item.items()}
        )

    async def create(self, resource: Resource, body: Object, *, namespace: str = "") -> Object:
        if self.item is not None:
            raise Conflict("exists", code=409)
        return self._store(body)

    async def replace(self, resource: Resource, body: Object, *, namespace: str = "") -> Object:
        assert self.item is not None
        if body["metadata"]["resourceVersion"] != self.item["metadata"]["resourceVersion"]:
            raise Conflict("stale", code=409)
        return self._store(body)

    def _store(self, body: Object) -> Object:
        self.version += 1
        self.item = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.item


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lease(api: Any, identity: str, clock: Clock, seconds: float = 0.3) -> Lease:
    return Lease(api, namespace="system", identity=identity, seconds=seconds, clock=clock)


def holder(api: Memory) -> str:
    assert api.item is not None
    return str(api.item["spec"]["holderIdentity"])


async def test_op17_a_second_one_waits_until_the_first_is_silent_on_its_own_clock() -> None:
    api, clock = Memory(), Clock()
    await lease(api, "first", clock).acquire()
    waiting = asyncio.create_task(lease(api, "second", clock).acquire())
    await asyncio.sleep(0.2)
    assert holder(api) == "first"
    clock.now = 0.9
    await asyncio.sleep(0.1)
    assert holder(api) == "first", "the lease lasts for a second as written"
    clock.now = 1.1
    await asyncio.wait_for(waiting, 10)
    assert holder(api) == "second"
    assert api.item is not None
    assert api.item["spec"]["leaseTransitions"] == 1


async def test_a_released_lease_is_taken_at_once() -> None:
    api, clock = Memory(), Clock()
    first = lease(api, "first", clock)
    await first.acquire()
    await first.release()
    await asyncio.wait_for(lease(api, "second", clock).acquire(), 10)
    assert holder(api) == "second"


async def test_a_holder_that_cannot_renew_stops_before_another_may_start() -> None:
    api, clock = Memory(), Clock()
    first = lease(api, "first", clock)
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    await asyncio.sleep(0.25)
    assert not keeping.done()
    api.down = True
    clock.now = 0.2  # two thirds of the duration
    with pytest.raises(LeaseLost, match="not renewed"):
        await asyncio.wait_for(keeping, 10)


async def test_a_lease_that_another_took_is_lost() -> None:
    api, clock = Memory(), Clock()
    first = lease(api, "first", clock)
    await first.acquire()
    assert api.item is not None
    api.item["spec"]["holderIdentity"] = "second"
    with pytest.raises(LeaseLost, match="held by second"):
        await asyncio.wait_for(first.keep(), 10)
