"""A vLLM-shaped worker that does as it is told, and routers in front of such workers.

The worker speaks the protocol alone (no engine behind it): it records the legs it gets, streams words, and can be made
to fail in every way a worker fails. Waiting is for conditions, never for time.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from disagg_contract import headers, ports
from disagg_contract.config import RouterConfig
from disagg_contract.discovery import DiscoveredWorker, WorkerInfo
from disagg_contract.labels import Role
from disagg_contract.openai import DONE, STREAM_HEADERS, Choice, Endpoint, StreamWriter, Usage, build_response
from disagg_contract.transfer import RemoteKV
from disagg_router.shell.app import RouterApp
from disagg_router.shell.discovery.source import Rows

MODEL = "opt-13b"
DEADLINE_SECONDS = 20.0
_numbers = count(1)


@dataclass
class Leg:
    """A request as the worker got it."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass
class FakeWorker:
    """One worker. ``mode`` says what it does with a leg:

    ``ok`` · ``hang`` (accept, never answer) · ``busy`` (503) · ``broken`` (500) · ``bad-request`` (400) ·
    ``die`` (stream ``dies_after`` tokens, then reset) · ``cut`` (the same, then end politely) ·
    ``error-event`` (the same, then an error event) · ``hold`` (stream one token, then wait for ``go``).

    With ``waits`` a failing stream waits for ``go`` before it fails. A ``foreign`` prefill's answer names no transfer.
    """

    role: Role
    engine_id: str = ""
    uid: str = ""
    mode: str = "ok"
    dies_after: int = 5
    waits: bool = False
    foreign: bool = False
    words: int = 8
    with_usage: bool = True
    block_tokens: int = 16
    model: str = MODEL
    time_scale: float = 1.0
    ready: bool = True
    draining: bool = False
    revision: str = ""
    legs: list[Leg] = field(default_factory=list)
    running: int = 0
    cancelled: int = 0
    released: list[str] = field(default_factory=list)
    probes: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)
    host: str = "127.0.0.1"
    port: int = 0
    _runner: web.AppRunner | None = None

    def __post_init__(self) -> None:
        number = next(_numbers)
        self.engine_id = self.engine_id or f"engine-{number}"
        self.uid = self.uid or f"uid-{number}"

    @property
    def row(self) -> DiscoveredWorker:
        return DiscoveredWorker(
            uid=self.uid, name=f"{self.role}-{self.uid}", role=self.role, host=self.host, port=self.port
        )

    @property
    def info(self) -> WorkerInfo:
        return WorkerInfo(
            engine_id=self.engine_id,
            role=self.role,
            model=self.model,
            gpu="a100-80gb",
            block_tokens=self.block_tokens,
            kv_capacity_tokens=58_594,
            max_context_tokens=2048,
            tokenizer_digest="t",
            template_digest="c",
            hash_digest="h",
            time_scale=self.time_scale,
            revision=self.revision,
            ready=self.ready,
            draining=self.draining,
        )

    async def start(self) -> "FakeWorker":
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get(ports.INFO_PATH, self._info)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_delete(ports.TRANSFERS_PATH + "/{transfer_id}", self._release)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def restart(self) -> None:
        """A new process under the same uid and address."""
        await self.stop()
        self.engine_id += "-again"
        await self.start()

    async def _info(self, request: web.Request) -> web.Response:
        self.probes += 1
        if self.mode == "hang":
            await asyncio.Event().wait()
        return web.Response(body=self.info.to_json(), content_type="application/json")

    async def _release(self, request: web.Request) -> web.Response:
        if self.mode == "hang":
            await asyncio.Event().wait()
        self.released.append(request.match_info["transfer_id"])
        return web.Response(status=204)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.legs.append(Leg(request.path, body, {k.lower(): v for k, v in request.headers.items()}))
        self.running += 1
        try:
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if self.mode == "hang":
            await asyncio.Event().wait()
        refusals = {"busy": 503, "broken": 500, "bad-request": 400}
        if self.mode in refusals:
            error = {"message": f"temperature: {self.mode}", "type": "t", "param": "temperature", "code": "c"}
            return web.json_response({"error": error}, status=refusals[self.mode])
        endpoint = Endpoint.CHAT if request.path.endswith("chat/completions") else Endpoint.COMPLETIONS
        transfer = body.get("kv_transfer_params") or {}
        prefill = bool(transfer.get("do_remote_decode"))
        tokens = body.get("max_tokens") or body.get("max_completion_tokens") or self.words
        usage = Usage(prompt_tokens=11, completion_tokens=tokens * (body.get("n") or 1), cached_tokens=4)
        if body.get("stream"):
            return await self._stream(request, body, endpoint, tokens, usage)
        if self.mode == "hold":
            await self.go.wait()
        remote = RemoteKV(
            engine_id=self.engine_id,
            block_ids=(1, 2),
            host=self.host,
            port=5600,
            transfer_id=f"t-{next(_numbers)}",
            tokens=11,
            block_tokens=self.block_tokens,
        )
        params = remote.to_params()
        if self.foreign:
            del params["disagg"]
        answer = build_response(
            endpoint,
            identity="x",
            created=1,
            model=self.model,
            choices=[
                Choice(index=index, text=text(tokens), finish_reason="length") for index in range(body.get("n") or 1)
            ],
            usage=usage,
            kv_transfer_params=params if prefill else None,
        )
        timing = {headers.TTFT_SECONDS: "0.25", **({headers.TPOT_SECONDS: "0.05"} if tokens > 1 else {})}
        return web.Response(body=answer, content_type="application/json", headers=timing)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], endpoint: Endpoint, tokens: int, usage: Usage
    ) -> web.StreamResponse:
        include_usage = bool((body.get("stream_options") or {}).get("include_usage")) and self.with_usage
        writer = StreamWriter(endpoint, identity="x", created=1, model=self.model, include_usage=include_usage)
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(request)
        choices = range(body.get("n") or 1)
        for choice in choices:
            if opening := writer.opening(choice):
                await response.write(opening)
        for number in range(tokens):
            if self.mode == "hold" and number == 1:
                await self.go.wait()
            if number == self.dies_after and self.mode in ("die", "cut", "error-event"):
                if self.waits:
                    await self.go.wait()
                if self.mode == "error-event":
                    await response.write(b'data: {"error":{"message":"out of memory","type":"server_error"}}\n\n')
                if self.mode == "die":
                    assert request.transport is not None
                    request.transport.abort()
                return response
            last = number == tokens - 1
            for choice in choices:
                await response.write(writer.chunk(choice, word(number), finish_reason="length" if last else None))
        if include_usage:
            await response.write(writer.usage(usage))
        await response.write(DONE)
        return response


def word(number: int) -> str:
    return f" w{number}"


def text(tokens: int) -> str:
    return "".join(map(word, range(tokens)))


class ListSource:
    """Workers as the test says."""

    def __init__(self) -> None:
        self._rows: asyncio.Queue[Rows] = asyncio.Queue()
        self._now: dict[str, DiscoveredWorker] = {}

    async def watch(self) -> AsyncIterator[Rows]:
        while True:
            yield await self._rows.get()

    def put(self, *rows: DiscoveredWorker) -> None:
        """Add workers or change them."""
        for row in rows:
            self._now[row.uid] = row
        self._rows.put_nowait(tuple(self._now.values()))

    def remove(self, *uids: str) -> None:
        for uid in uids:
            del self._now[uid]
        self._rows.put_nowait(tuple(self._now.values()))


@dataclass
class Bench:
    """A router, its workers and a client."""

    app: RouterApp
    source: ListSource
    client: aiohttp.ClientSession
    workers: list[FakeWorker]

    @property
    def url(self) -> str:
        return self.app.url

    async def post(self, body: Any = None, *, path: str = "/v1/completions", **kwargs: Any) -> aiohttp.ClientResponse:
        if body is None or isinstance(body, dict):
            body = json.dumps({"model": MODEL, "prompt": "hello world", "max_tokens": 8, **(body or {})})
        kwargs.setdefault("headers", {"content-type": "application/json"})
        return await self.client.post(self.url + path, data=body, **kwargs)

    async def get(self, path: str) -> aiohttp.ClientResponse:
        return await self.client.get(self.url + path)

    async def add(self, *workers: FakeWorker) -> None:
        """Start workers and wait until the router may choose them."""
        for worker in workers:
            await worker.start()
            self.workers.append(worker)
        self.source.put(*(worker.row for worker in workers))
        await eventually(lambda: all(self.eligible(worker) for worker in workers), "workers join")

    def eligible(self, worker: FakeWorker) -> bool:
        known = self.app.fleet.get(worker.uid)
        return known is not None and known.eligible and known.key.engine_id == worker.engine_id

    def load(self) -> list[tuple[int, int, int]]:
        return [(worker.requests, worker.tokens, worker.blocks) for worker in self.app.fleet.workers]

    async def metrics(self) -> dict[str, float]:
        """Series by name and sorted labels, as in ``disagg_router_requests_total{model="m",outcome="completed"}``."""
        answer = await self.get(ports.METRICS_PATH)
        page = await answer.text()
        lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
        return {series: float(value) for series, _, value in lines}


async def eventually(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], what: str, *, seconds: float = DEADLINE_SECONDS
) -> None:
    """Wait for a condition; fail with ``what`` after a generous deadline."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        result = condition()
        if await result if isinstance(result, Awaitable) else result:
            return
        assert asyncio.get_running_loop().time() < end, f"in vain: {what}"
        await asyncio.sleep(0.005)


def config(**changes: Any) -> RouterConfig:
    base = RouterConfig(host="127.0.0.1", port=0, connect_timeout_seconds=2.0, queue_seconds=10.0, seed=1)
    return replace(base, **changes)


Start = Callable[..., Any]


@pytest.fixture
async def bench() -> AsyncIterator[Start]:
    """``await bench(*workers, **settings)``: a router in front of these workers, all of them known to it."""
    benches: list[Bench] = []

    async def start(*workers: FakeWorker, **settings: Any) -> Bench:
        source = ListSource()
        app = RouterApp(config(**settings), source)
        await app.start()
        client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
        )
        made = Bench(app, source, client, [])
        benches.append(made)
        await made.add(*workers)
        return made

    yield start
    for made in benches:
        await made.client.close()
        await made.app.stop()
        for worker in made.workers:
            await worker.stop()


@pytest.fixture
def pair() -> tuple[FakeWorker, FakeWorker]:
    return FakeWorker(Role.PREFILL), FakeWorker(Role.DECODE)


def events(data: bytes) -> list[Any]:
    """Payloads of a stream; ``[DONE]`` as that string."""
    found = [line[6:] for line in data.decode().split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in found]


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection to a router."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.fixture
def tools() -> Any:
    """Helpers of this file, for tests (the suite has no importable test packages)."""
    return Tools


class Tools:
    FakeWorker = FakeWorker
    Role = Role
    MODEL = MODEL
    eventually = staticmethod(eventually)
    events = staticmethod(events)
    raw = staticmethod(raw)
    text = staticmethod(text)
