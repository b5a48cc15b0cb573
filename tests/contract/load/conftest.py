"""A tiny server with vLLM's completion interface, whose answers a test decides."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

Answer = Callable[["Exchange"], Awaitable[None]]


@dataclass
class Exchange:
    """One request at the server, and the ways to answer it."""

    request: web.Request
    body: dict[str, Any]
    response: web.StreamResponse = field(init=False)

    async def open(self) -> None:
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await self.response.prepare(self.request)

    async def write(self, data: bytes) -> None:
        await self.response.write(data)

    async def event(self, value: dict[str, Any]) -> None:
        await self.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    async def token(self, text: str = " word") -> None:
        await self.event({"choices": [{"index": 0, "text": text, "finish_reason": None}], "usage": None})

    async def close(self, tokens: int, reason: str = "length") -> None:
        await self.event({"choices": [{"index": 0, "text": "", "finish_reason": reason}]})
        await self.event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}})
        await self.write(b"data: [DONE]\n\n")

    def drop(self) -> None:
        assert self.request.transport is not None
        self.request.transport.abort()


async def full_answer(exchange: Exchange) -> None:
    """What a good server does: all tokens, one an event."""
    await exchange.open()
    for _ in range(exchange.body["max_tokens"]):
        await exchange.token()
    await exchange.close(exchange.body["max_tokens"])


@dataclass
class FakeServer:
    """The server: what it was sent, and how it answers (a list is used up one request at a time)."""

    url: str = ""
    answer: Answer = full_answer
    script: list[Answer] = field(default_factory=list)
    status: int | None = None
    models: list[str] = field(default_factory=lambda: ["opt-13b"])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.connections.add(request.transport)
        if self.status is not None:
            error = {"error": {"message": "no worker is ready", "type": "server_error", "code": self.status}}
            return web.json_response(error, status=self.status)
        exchange = Exchange(request, body)
        try:
            await (self.script.pop(0) if self.script else self.answer)(exchange)
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        return exchange.response


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/v1/models", fake.list_models)
    app.router.add_post("/v1/completions", fake.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    fake.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    yield fake
    await runner.cleanup()
