"""Kubernetes as scaler and reporter, against an API server's answers over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from aiohttp import web
from kubernetes.aio import client

from disagg_contract.control import Condition, Event
from disagg_contract.labels import Role
from disagg_planner.core.fleet import Group
from disagg_planner.errors import ScaleConflict, ScaleRefused, ScalerError
from disagg_planner.shell.kubernetes import KubernetesRuntime

BASE = "/apis/disagg.dev/v1alpha1/namespaces/team-a"


class ApiServer:
    """Two groups and their deployment; remembers what was written and with which headers."""

    def __init__(self) -> None:
        self.groups = {
            f"chat-13b-{role}": {
                "metadata": {"name": f"chat-13b-{role}", "resourceVersion": "41"},
                "spec": {"deployment": "chat-13b", "role": role, "replicas": 2},
                "status": {"replicas": 2, "readyReplicas": 1},
            }
            for role in ("prefill", "decode")
        }
        self.deployment: dict[str, Any] = {
            "metadata": {"name": "chat-13b", "uid": "u-1", "generation": 3},
            "status": {
                "roles": {"decode": {"current": 2, "terminating": 3}},
                "conditions": [
                    {
                        "type": "MetricsAvailable",
                        "status": "False",
                        "reason": "MetricsMissing",
                        "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ],
            },
        }
        self.applied: list[tuple[dict[str, Any], dict[str, str], str]] = []
        self.events: list[dict[str, Any]] = []
        self.status = 0

    def app(self) -> web.Application:
        async def get_group(request: web.Request) -> web.Response:
            found = self.groups.get(request.match_info["name"])
            return web.json_response(found) if found else web.json_response({"reason": "NotFound"}, status=404)

        async def put_scale(request: web.Request) -> web.Response:
            if self.status:
                return web.json_response({"message": "no"}, status=self.status)
            body = await request.json()
            group = self.groups[request.match_info["name"]]
            assert body["kind"] == "Scale"
            assert request.query["fieldManager"] == "disagg-planner"
            if body["metadata"]["resourceVersion"] != group["metadata"]["resourceVersion"]:
                return web.json_response({"reason": "Conflict"}, status=409)
            group["spec"] = {**group["spec"], "replicas": body["spec"]["replicas"]}
            return web.json_response(body)

        async def get_deployment(request: web.Request) -> web.Response:
            return web.json_response(self.deployment)

        async def patch_status(request: web.Request) -> web.Response:
            body = yaml.safe_load(await request.text())
            self.applied.append((body, dict(request.query), request.headers["Content-Type"]))
            return web.json_response(self.deployment)

        async def post_event(request: web.Request) -> web.Response:
            self.events.append(await request.json())
            return web.json_response(self.events[-1], status=201)

        app = web.Application()
        app.router.add_get(BASE + "/disagggroups/{name}", get_group)
        app.router.add_put(BASE + "/disagggroups/{name}/scale", put_scale)
        app.router.add_get(BASE + "/disaggdeployments/chat-13b", get_deployment)
        app.router.add_patch(BASE + "/disaggdeployments/chat-13b/status", patch_status)
        app.router.add_post("/apis/events.k8s.io/v1/namespaces/team-a/events", post_event)
        return app


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def runtime(server: ApiServer, serve: Any) -> AsyncIterator[KubernetesRuntime]:
    settings = client.Configuration(host=await serve(server.app()))
    opened = KubernetesRuntime(client.ApiClient(settings), namespace="team-a", deployment="chat-13b")
    yield opened
    await opened.close()


async def test_a_group_is_read_with_the_instances_that_still_hold_gpus(runtime: KubernetesRuntime) -> None:
    assert (await runtime.read(Role.PREFILL)).group == Group(replicas=2, existing=2, ready=1)
    decode = await runtime.read(Role.DECODE)
    assert decode.group == Group(replicas=2, existing=5, ready=1)
    assert decode.resource_version == "41"


async def test_what_nobody_has_counted_yet_is_unknown(server: ApiServer, runtime: KubernetesRuntime) -> None:
    server.groups["chat-13b-prefill"]["status"] = {}
    server.deployment = {"metadata": {"name": "chat-13b"}}
    assert (await runtime.read(Role.PREFILL)).group == Group(replicas=2, existing=2, ready=None)


async def test_scale_is_written_with_the_version_that_was_read(server: ApiServer, runtime: KubernetesRuntime) -> None:
    await runtime.write(Role.DECODE, 4, "41")
    assert server.groups["chat-13b-decode"]["spec"]["replicas"] == 4
    with pytest.raises(ScaleConflict):
        await runtime.write(Role.DECODE, 5, "40")


@pytest.mark.parametrize(("status", "error"), [(422, ScaleRefused), (403, ScaleRefused), (429, ScaleRefused)])
async def test_pl6_refusals_are_deferred(
    server: ApiServer, runtime: KubernetesRuntime, status: int, error: type[Exception]
) -> None:
    server.status = status
    with pytest.raises(error, match=f"refused with {status}"):
        await runtime.write(Role.PREFILL, 3, "41")


async def test_a_missing_group_is_an_error(server: ApiServer, runtime: KubernetesRuntime) -> None:
    del server.groups["chat-13b-decode"]
    with pytest.raises(ScalerError, match="group chat-13b-decode: 404"):
        await runtime.read(Role.DECODE)


async def test_an_api_server_that_is_gone_is_an_error() -> None:
    settings = client.Configuration(host="http://127.0.0.1:9")
    runtime = KubernetesRuntime(client.ApiClient(settings), namespace="team-a", deployment="chat-13b")
    with pytest.raises(ScalerError, match="cannot be reached"):
        await runtime.read(Role.DECODE)
    await runtime.close()


async def test_conditions_are_applied_whole_under_the_planners_name(
    server: ApiServer, runtime: KubernetesRuntime
) -> None:
    conditions = (
        Condition("MetricsAvailable", "False", "MetricsStale", "old"),
        Condition("ScalingActive", "False", "Holding", "kept"),
    )
    await runtime.conditions(conditions)
    body, query, content_type = server.applied[0]
    assert content_type == "application/apply-patch+yaml"
    assert (query["fieldManager"], query["force"].lower()) == ("disagg-planner", "true")
    assert set(body) == {"apiVersion", "kind", "metadata", "status"}
    metrics, scaling = body["status"]["conditions"]
    assert metrics["lastTransitionTime"] == "2026-01-01T00:00:00Z", "the status did not change"
    assert (metrics["reason"], scaling["observedGeneration"]) == ("MetricsStale", 3)
    await runtime.conditions((Condition("MetricsAvailable", "True", "MetricsFresh"), conditions[1]))
    again = server.applied[1][0]["status"]["conditions"]
    assert again[0]["lastTransitionTime"] != metrics["lastTransitionTime"]
    assert again[1]["lastTransitionTime"] == scaling["lastTransitionTime"]


async def test_an_event_is_about_the_deployment(server: ApiServer, runtime: KubernetesRuntime) -> None:
    await runtime.event(Event("Normal", "TPOTAboveSLO", "decode 1 -> 2: " + "x" * 2000))
    event = server.events[0]
    assert (event["reason"], event["type"], event["regarding"]["uid"]) == ("TPOTAboveSLO", "Normal", "u-1")
    assert (event["reportingController"], event["action"]) == ("disagg.dev/planner", "Scale")
    assert len(event["note"]) == 1024
