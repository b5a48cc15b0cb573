"""The planner's neighbours, over real HTTP on loopback: exporters, Prometheus, control API, API server.

`Prom` holds scraped samples and answers the shapes of queries that the planner sends, by parsing the PromQL: a query
with a selector that matches nothing gets nothing.
"""

from __future__ import annotations

import os

# Before anything loads the linear algebra; see disagg_planner.main.load_predictor.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from disagg_contract import control
from disagg_contract.control import Condition, Event, Scale
from disagg_contract.labels import Role
from disagg_contract.profile import DecodePoint, PrefillPoint, Profile

Labels = Mapping[str, str]
Serve = Callable[[web.Application], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts an aiohttp application on a free port and returns its URL."""
    runners: list[web.AppRunner] = []

    async def start(app: web.Application) -> str:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
def profile() -> Profile:
    """Prompts of 1,000 tokens take 0.1 s; 20 sequences decode at 0.02 s a step."""
    return Profile(
        "flat", "gpu", "gpu", 1, 1, 1, 1, 100_000, 1.0,
        (PrefillPoint(1000, 0.1, 10_000.0),), (DecodePoint(1000, 20, 0.02, 1000.0),),
    )  # fmt: skip


@dataclass
class Prom:
    """A Prometheus that knows two moments, `before` and `after`, of every target: the ends of the window."""

    before: list[tuple[str, Labels, float]] = field(default_factory=list)
    after: list[tuple[str, Labels, float]] = field(default_factory=list)
    age_seconds: float = 1.0
    queries: list[str] = field(default_factory=list)
    status: int = 200
    body: bytes | None = None
    override: dict[str, str] = field(default_factory=dict)
    history: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def scrape(self, text: str, *, late: bool, **labels: str) -> None:
        """Take a page in, as the earlier or the later sample of a target with these labels."""
        into = self.after if late else self.before
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                into.append((sample.name, {**sample.labels, **labels}, sample.value))

    def evaluate(self, query: str) -> list[tuple[Labels, str]]:
        """The shapes that `shell.queries` makes; an unknown shape is a test's error."""
        if query in self.override:
            return [({}, self.override[query])]
        if found := re.fullmatch(r"sum(?P<by> by \(le\))?\(increase\((?P<selector>.+)\[\d+ms\]\)\)", query):
            return self._increase(found["selector"], by_le=bool(found["by"]))
        if found := re.fullmatch(r"min\(time\(\) - timestamp\((?P<selector>.+)\)\)", query):
            return [({}, str(self.age_seconds))] if self.select(self.after, found["selector"]) else []
        if found := re.fullmatch(r"(?P<selector>up\{.+\}) == 0", query):
            return [(labels, "0") for labels, value in self.select(self.after, found["selector"]) if value == 0]
        raise AssertionError(f"a query of a shape unknown here: {query}")

    def select(self, samples: list[tuple[str, Labels, float]], selector: str) -> list[tuple[Labels, float]]:
        """Samples that a selector matches."""
        found = re.fullmatch(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{(?P<matchers>.*)\}", selector)
        assert found, selector
        matchers = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found["matchers"]))
        return [
            (labels, value)
            for name, labels, value in samples
            if name == found["name"] and all(labels.get(key) == wanted for key, wanted in matchers.items())
        ]

    def _increase(self, selector: str, *, by_le: bool) -> list[tuple[Labels, str]]:
        earlier = {tuple(sorted(labels.items())): value for labels, value in self.select(self.before, selector)}
        sums: dict[str, float] = {}
        for labels, value in self.select(self.after, selector):
            key = labels.get("le", "") if by_le else ""
            sums[key] = sums.get(key, 0.0) + value - earlier.get(tuple(sorted(labels.items())), 0.0)
        return [({"le": key} if by_le else {}, repr(value)) for key, value in sums.items()]

    def app(self) -> web.Application:
        async def query(request: web.Request) -> web.Response:
            self.queries.append(request.query["query"])
            if self.body is not None or self.status != 200:
                body = self.body or json.dumps({"status": "error", "error": "query timed out"}).encode()
                return web.Response(body=body, status=self.status)
            result = [
                {"metric": dict(labels), "value": [1000.0, text]}
                for labels, text in self.evaluate(request.query["query"])
            ]
            return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

        async def query_range(request: web.Request) -> web.Response:
            end = float(request.query["end"])
            result = [
                {"metric": {}, "values": [[end - ago, text] for ago, text in values]}
                for part, values in self.history.items()
                if part in request.query["query"]
            ]
            return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})

        app = web.Application()
        app.router.add_get("/api/v1/query", query)
        app.router.add_get("/api/v1/query_range", query_range)
        return app


@pytest.fixture
def prom() -> Prom:
    return Prom()


@pytest.fixture
def page() -> Callable[..., web.Application]:
    """An application whose /metrics is whatever `text()` returns at the moment; an int is a status."""

    def build(text: Callable[[], str | int]) -> web.Application:
        async def metrics(request: web.Request) -> web.Response:
            answer = text()
            return web.Response(status=answer) if isinstance(answer, int) else web.Response(text=answer)

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        return app

    return build


class ControlApi:
    """The control API with its conflict semantics."""

    def __init__(self) -> None:
        self.scales = {role: Scale(role, 1, "7", current=1, ready=1) for role in (Role.PREFILL, Role.DECODE)}
        self.conditions: list[Condition] = []
        self.events: list[Event] = []
        self.refuse = 0

    def app(self) -> web.Application:
        async def get(request: web.Request) -> web.Response:
            return web.Response(body=self.scales[Role(request.match_info["role"])].to_json())

        async def put(request: web.Request) -> web.Response:
            if self.refuse:
                return web.Response(status=self.refuse, text="not ready")
            asked = Scale.from_json(await request.read())
            held = self.scales[asked.role]
            if asked.resource_version != held.resource_version:
                return web.Response(status=409, text="stale")
            version = str(int(held.resource_version) + 1)
            self.scales[asked.role] = replace(held, replicas=asked.replicas, resource_version=version)
            return web.Response(body=self.scales[asked.role].to_json())

        async def condition(request: web.Request) -> web.Response:
            self.conditions.append(Condition.from_json(await request.read()))
            assert request.path == control.condition_path(self.conditions[-1].type)
            return web.Response(status=204)

        async def event(request: web.Request) -> web.Response:
            self.events.append(Event.from_json(await request.read()))
            return web.Response(status=204)

        app = web.Application()
        app.router.add_get("/v1/groups/{role}/scale", get)
        app.router.add_put("/v1/groups/{role}/scale", put)
        app.router.add_put("/v1/conditions/{type}", condition)
        app.router.add_post(control.EVENTS_PATH, event)
        return app


@pytest.fixture
def api() -> ControlApi:
    return ControlApi()
