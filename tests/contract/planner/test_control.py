"""The process runtime's control API, over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from disagg_contract.control import Condition, Event
from disagg_contract.labels import Role
from disagg_planner.core.fleet import Group
from disagg_planner.errors import ScaleConflict, ScaleRefused, ScalerError
from disagg_planner.shell.control import ControlRuntime


@pytest.fixture
async def runtime(api: Any, serve: Any) -> AsyncIterator[ControlRuntime]:
    opened = ControlRuntime(url=await serve(api.app()), timeout_seconds=5.0)
    yield opened
    await opened.close()


async def test_a_scale_is_read_and_written(api: Any, runtime: ControlRuntime) -> None:
    state = await runtime.read(Role.DECODE)
    assert state.group == Group(replicas=1, existing=1, ready=1)
    await runtime.write(Role.DECODE, 3, state.resource_version)
    assert api.scales[Role.DECODE].replicas == 3
    assert (await runtime.read(Role.DECODE)).group.replicas == 3


async def test_a_stale_version_is_a_conflict(api: Any, runtime: ControlRuntime) -> None:
    state = await runtime.read(Role.PREFILL)
    await runtime.write(Role.PREFILL, 2, state.resource_version)
    with pytest.raises(ScaleConflict):
        await runtime.write(Role.PREFILL, 4, state.resource_version)
    assert api.scales[Role.PREFILL].replicas == 2


async def test_pl6_a_refusal_is_told_apart(api: Any, runtime: ControlRuntime) -> None:
    api.refuse = 422
    with pytest.raises(ScaleRefused, match="refused with 422: not ready"):
        await runtime.write(Role.PREFILL, 2, "7")


async def test_a_runtime_that_is_gone_is_an_error(serve: Any) -> None:
    runtime = ControlRuntime(url="http://127.0.0.1:9", timeout_seconds=5.0)
    with pytest.raises(ScalerError, match="failed"):
        await runtime.read(Role.PREFILL)
    await runtime.close()


async def test_an_answer_that_is_no_scale_is_an_error(serve: Any) -> None:
    async def nonsense(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/v1/groups/{role}/scale", nonsense)
    runtime = ControlRuntime(url=await serve(app), timeout_seconds=5.0)
    with pytest.raises(ScalerError, match="not JSON"):
        await runtime.read(Role.PREFILL)
    await runtime.close()


async def test_conditions_and_events_arrive(api: Any, runtime: ControlRuntime) -> None:
    conditions = (Condition("MetricsAvailable", "True", "MetricsFresh"), Condition("ScalingActive", "False", "Holding"))
    event = Event("Normal", "LoadForecast", "prefill 1 -> 2")
    await runtime.conditions(conditions)
    await runtime.event(event)
    assert (tuple(api.conditions), api.events) == (conditions, [event])
