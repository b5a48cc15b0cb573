"""Discovery by pods, with the real Kubernetes client against an API server that does as it is told."""

import asyncio
import json
from itertools import count

import pytest
from aiohttp import web

from disagg_contract import labels
from disagg_router.shell.discovery import kube
from disagg_router.shell.discovery.cluster import connect
from disagg_router.shell.discovery.kube import KubeSource


class ApiServer:
    """Lists and watches pods of namespace ``ns``."""

    def __init__(self):
        self.pods = {}
        self.lists = 0
        self.watches = []
        self.status = 200
        self.selectors = set()
        self._versions = count(100)

    async def start(self, folder, monkeypatch):
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/ns/pods", self._get)
        self.runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        port = self.runner.addresses[0][1]
        config = folder / "kubeconfig"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
        monkeypatch.setenv("KUBECONFIG", str(config))

    async def _get(self, request):
        self.selectors.add(request.query["labelSelector"])
        assert request.headers["authorization"] == "Bearer t"
        if self.status != 200:
            return web.json_response({"kind": "Status", "message": "no"}, status=self.status)
        if request.query.get("watch") not in ("true", "True"):
            self.lists += 1
            items = list(self.pods.values())
            return web.json_response({"metadata": {"resourceVersion": str(next(self._versions))}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        queue = asyncio.Queue()
        self.watches.append(queue)
        while (event := await queue.get()) is not None:
            await response.write(event)
        return response

    def send(self, kind, pod, *, silently=False):
        """Change a pod; the watch hears of it unless ``silently``."""
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = pod
        if not silently:
            self.watches[-1].put_nowait(json.dumps({"type": kind, "object": pod}).encode() + b"\n")

    def cut(self):
        self.watches[-1].put_nowait(None)


def pod(uid, *, role="decode", ip="10.0.0.7", ready=True, phase="Running", deleting=False, **extra):
    meta = {
        "uid": uid,
        "name": f"pod-{uid}",
        "labels": {labels.ROLE: role, labels.DEPLOYMENT: "chat", labels.LEADER: "true", **extra},
        "resourceVersion": "1",
        "managedFields": [{"manager": "kubelet"}],
    }
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": meta, "spec": {}, "status": {"phase": phase, "podIP": ip, "conditions": conditions}}


class Seen:
    """What the source says now: row by uid."""

    def __init__(self, rows):
        self.rows = rows

    def eligible(self, uid):
        row = self.rows.get(uid)
        return row is not None and row.ready and not row.draining


@pytest.fixture
async def api(tmp_path, monkeypatch):
    server = ApiServer()
    await server.start(tmp_path, monkeypatch)
    yield server
    for watch in server.watches:
        watch.put_nowait(None)
    await server.runner.cleanup()


@pytest.fixture
async def seen(api, tools):
    rows = {}

    async def follow():
        async for found in KubeSource(connect, namespace="ns", deployment="chat").watch():
            rows.clear()
            rows.update({row.uid: row for row in found})

    api.pods = {"a": pod("a"), "b": pod("b", role="prefill", ip="10.0.0.8")}
    task = asyncio.ensure_future(follow())
    await tools.eventually(lambda: len(rows) == 2 and bool(api.watches), "the pods are listed and watched")
    yield Seen(rows)
    assert not task.done(), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_pods_become_workers(api, seen):
    assert api.selectors == {labels.worker_selector("chat")}
    row = seen.rows["b"]
    assert (row.role, row.host, row.port, row.name) == ("prefill", "10.0.0.8", 8000, "pod-b")
    assert seen.eligible("a")


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({"deleting": True}, True),
        ({"ready": False}, True),
        ({"phase": "Failed"}, False),
        ({"ip": None}, False),
        ({"ip": ""}, False),
        ({"phase": "Succeeded"}, False),
        ({labels.DRAINING: "true"}, True),
    ],
)
async def test_rt3_rt4_every_way_to_lose_eligibility(api, seen, tools, change, known):
    api.send("MODIFIED", pod("a", **change))
    await tools.eventually(lambda: not seen.eligible("a"), "it is not eligible")
    assert ("a" in seen.rows) is known, "running streams of a known worker go on"
    assert seen.eligible("b")
    api.send("MODIFIED", pod("a"))
    await tools.eventually(lambda: seen.eligible("a"), "it is eligible again")


async def test_rt4_a_pod_that_no_longer_matches_is_gone(api, seen, tools):
    api.send("DELETED", pod("a"))  # what a watch with a selector says of a removed label
    await tools.eventually(lambda: "a" not in seen.rows, "it is gone")


async def test_a_new_pod_is_seen_at_once(api, seen, tools):
    api.send("ADDED", pod("c", ready=False))
    await tools.eventually(lambda: "c" in seen.rows, "it is named")
    assert not seen.eligible("c")
    api.send("MODIFIED", pod("c"))
    await tools.eventually(lambda: seen.eligible("c"), "it is ready")


async def test_rt2_an_event_lost_in_a_cut_watch_is_made_good(api, seen, tools):
    api.send("DELETED", pod("a"), silently=True)
    lists = api.lists
    api.cut()
    await tools.eventually(lambda: "a" not in seen.rows, "it is gone")
    assert api.lists == lists + 1, "within one list"
    await tools.eventually(lambda: len(api.watches) == 2, "the watch goes on")
    api.send("ADDED", pod("d"))
    await tools.eventually(lambda: seen.eligible("d"), "and is heard")


async def test_rt2_an_expired_watch_is_made_good(api, seen, tools):
    api.send("DELETED", pod("a"), silently=True)
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    api.watches[-1].put_nowait(json.dumps(gone).encode() + b"\n")
    await tools.eventually(lambda: "a" not in seen.rows, "it is gone")


async def test_rt2_a_watch_that_died_without_a_word_is_given_up(api, tools, monkeypatch):
    monkeypatch.setattr(kube, "STALE_SECONDS", 0.2)
    rows = {}

    async def follow():
        async for found in KubeSource(connect, namespace="ns", deployment="chat").watch():
            rows.clear()
            rows.update({row.uid: row for row in found})

    api.pods = {"a": pod("a")}
    task = asyncio.ensure_future(follow())
    await tools.eventually(lambda: "a" in rows and bool(api.watches), "it is listed and watched")
    api.send("DELETED", pod("a"), silently=True)
    await tools.eventually(lambda: not rows, "it is gone")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("status", [403, 500])
async def test_what_is_known_stays_while_the_server_fails(api, seen, tools, caplog, status):
    api.status = status
    api.cut()
    await tools.eventually(lambda: f"answered {status}" in caplog.text, "it is said")
    assert ("ServiceAccount needs list and watch" in caplog.text) is (status == 403)
    assert seen.eligible("a")
    api.status = 200
    api.send("DELETED", pod("a"), silently=True)
    await tools.eventually(lambda: "a" not in seen.rows, "it goes on")


async def test_bookmarks_and_blank_lines_mean_nothing(api, seen, tools):
    api.watches[-1].put_nowait(b"\n" + json.dumps({"type": "BOOKMARK", "object": pod("a")}).encode() + b"\n")
    half = json.dumps({"type": "ADDED", "object": pod("e")}).encode() + b"\n"
    api.watches[-1].put_nowait(half[:40])
    api.watches[-1].put_nowait(half[40:])
    await tools.eventually(lambda: seen.eligible("e"), "an event in two parts is one event")
