"""The slim view of nodes and pods against scripted watches."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from disagg_operator.core.placement import Ledger, PodUse
from disagg_operator.errors import ApiError, Forbidden
from disagg_operator.shell.kube import cluster
from disagg_operator.shell.kube.api import Object
from disagg_operator.shell.kube.cluster import ClusterView
from disagg_operator.shell.kube.resources import NODES, Resource


def node(name: str, gpus: int) -> Object:
    return {
        "metadata": {"name": name, "resourceVersion": "5", "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus), "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, at: str, gpus: int = 1, **status: Any) -> Object:
    container = {"resources": {"requests": {"nvidia.com/gpu": gpus}}}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "6"},
        "spec": {"nodeName": at, "containers": [container]},
        "status": status,
    }


class Script:
    """Lists and watches that the test writes."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Object]] = {"nodes": [node("n1", 4)], "pods": [pod("a", "n1")]}
        self.events: dict[str, asyncio.Queue[Object | ApiError]] = {"nodes": asyncio.Queue(), "pods": asyncio.Queue()}
        self.listed = {"nodes": 0, "pods": 0}
        self.forbidden = False

    async def objects_with_version(self, resource: Resource, **_: Any) -> tuple[list[Object], str]:
        self.listed[resource.plural] += 1
        if self.forbidden:
            raise Forbidden(f"{resource.plural} is forbidden", code=403)
        return self.lists[resource.plural], "1"

    async def watch(self, resource: Resource, *, version: str, seconds: float) -> AsyncIterator[Object]:
        while True:
            event = await self.events[resource.plural].get()
            if isinstance(event, ApiError):
                raise event
            yield event


async def until(holds: Any) -> None:
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


def free(view: ClusterView, name: str = "n1") -> int:
    return view.snapshot(now=0.0).free[name]["nvidia.com/gpu"]


async def test_op14_the_view_follows_events_and_lists_again_when_its_version_is_gone() -> None:
    script, freed, ledger = Script(), [], Ledger()
    view = ClusterView(script, ledger=ledger, freed=lambda: freed.append(1))  # type: ignore[arg-type]
    task = asyncio.create_task(view.run())
    try:
        await asyncio.wait_for(view.synced(), 10)
        assert free(view) == 3
        script.events["pods"].put_nowait({"type": "ADDED", "object": pod("b", "n1", 2)})
        await until(lambda: free(view) == 1)
        freed.clear()
        script.events["pods"].put_nowait({"type": "MODIFIED", "object": pod("b", "n1", 2, phase="Succeeded")})
        await until(lambda: free(view) == 3)
        assert freed, "room that appears wakes those who wait"
        script.lists["nodes"] = [node("n2", 8)]
        script.events["nodes"].put_nowait(ApiError("too old resource version", code=410))
        await until(lambda: "n2" in view.nodes)
        assert "n1" not in view.nodes
        assert script.listed == {"nodes": 2, "pods": 1}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_promise_counts_until_the_watch_shows_the_pod_or_its_end() -> None:
    script, ledger = Script(), Ledger()
    view = ClusterView(script, ledger=ledger, freed=lambda: None)  # type: ignore[arg-type]
    task = asyncio.create_task(view.run())
    try:
        await asyncio.wait_for(view.synced(), 10)
        ledger.promise([PodUse("uid-b", "n1", (("nvidia.com/gpu", 2),))], now=0.0)
        assert free(view) == 1
        script.events["pods"].put_nowait({"type": "MODIFIED", "object": pod("b", "n1", 2)})
        await until(lambda: "uid-b" in view.uses)
        assert free(view) == 1, "counted once"
        ledger.promise([PodUse("uid-c", "n1", (("nvidia.com/gpu", 1),))], now=0.0)
        assert free(view) == 0
        script.events["pods"].put_nowait({"type": "DELETED", "object": pod("c", "n1")})
        await until(lambda: free(view) == 1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_heartbeat_of_a_node_frees_nothing() -> None:
    script, freed = Script(), []
    view = ClusterView(script, ledger=Ledger(), freed=lambda: freed.append(1))  # type: ignore[arg-type]
    task = asyncio.create_task(view.run())
    try:
        await asyncio.wait_for(view.synced(), 10)
        freed.clear()
        script.events["nodes"].put_nowait({"type": "MODIFIED", "object": node("n1", 4)})
        script.events["nodes"].put_nowait({"type": "MODIFIED", "object": node("n1", 6)})
        await until(lambda: free(view) == 5)
        assert len(freed) == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert NODES.plural in script.listed


async def test_a_node_is_lost_when_it_is_gone_or_not_heard_of_and_not_when_it_is_cordoned() -> None:
    script = Script()
    view = ClusterView(script, ledger=Ledger(), freed=lambda: None)  # type: ignore[arg-type]
    assert not view.is_lost("n1"), "nothing is known before the first list"
    task = asyncio.create_task(view.run())
    try:
        await asyncio.wait_for(view.synced(), 10)
        assert not view.is_lost("n1")
        assert view.is_lost("n2")
        cordoned = node("n1", 4) | {"spec": {"unschedulable": True}}
        script.events["nodes"].put_nowait({"type": "MODIFIED", "object": cordoned})
        await until(lambda: not view.nodes["n1"].schedulable)
        assert not view.is_lost("n1")
        silent = node("n1", 4)
        silent["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
        script.events["nodes"].put_nowait({"type": "MODIFIED", "object": silent})
        await until(lambda: view.is_lost("n1"))
        script.events["nodes"].put_nowait({"type": "MODIFIED", "object": node("n1", 4)})
        await until(lambda: not view.is_lost("n1"))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_hc3_without_the_right_to_read_nodes_it_says_so_and_asks_rarely() -> None:
    script = Script()
    script.forbidden = True
    view = ClusterView(script, ledger=Ledger(), freed=lambda: None)  # type: ignore[arg-type]
    task = asyncio.create_task(view.run())
    try:
        await asyncio.wait_for(view.synced(), 10)
        assert view.blind is not None
        assert "nodes and pods" in view.blind
        assert "rbac.readNodes=true" in view.blind
        await asyncio.sleep(0.05)
        assert script.listed == {"nodes": 1, "pods": 1}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_hc3_a_right_that_comes_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LONGEST_PAUSE_SECONDS", 0.01)
    script, freed = Script(), []
    script.forbidden = True
    view = ClusterView(script, ledger=Ledger(), freed=lambda: freed.append(1))  # type: ignore[arg-type]
    task = asyncio.create_task(view.run())
    try:
        await asyncio.wait_for(view.synced(), 10)
        assert not freed
        script.forbidden = False
        await until(lambda: view.blind is None)
        assert free(view) == 3
        assert freed, "those who wait are woken"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
