"""A router with a token in front of a real engine, which has keys of its own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from disagg_contract.config import RouterConfig
from disagg_contract.discovery import DiscoveredWorker, WorkerInfo
from disagg_contract.labels import Role
from disagg_router.shell.app import RouterApp

TOKEN, KEY = "deployment-token-0123456789", "Bearer sk-the-clients-own"


class Engine:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str | None] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.shown.append(request.headers.get("Authorization"))
        return web.json_response({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


class One:
    """A source of one worker that is described from outside."""

    def __init__(self, port: int) -> None:
        info = WorkerInfo(
            engine_id="e",
            role=Role.WORKER,
            model="m",
            gpu="h100",
            block_tokens=16,
            kv_capacity_tokens=0,
            max_context_tokens=0,
            tokenizer_digest="",
            template_digest="",
            hash_digest="",
        )
        self.row = DiscoveredWorker(uid="u", name="w", role=Role.WORKER, host="127.0.0.1", port=port, info=info)

    async def watch(self) -> AsyncIterator[tuple[DiscoveredWorker, ...]]:
        yield (self.row,)
        await asyncio.Event().wait()


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, int]]:
    engine = Engine()
    app = web.Application()
    app.router.add_get("/health", engine.answer)
    app.router.add_post("/v1/completions", engine.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield engine, runner.addresses[0][1]
    await runner.cleanup()


async def test_a_real_engine_sees_the_clients_key_and_never_the_token(
    engine: tuple[Engine, int], client: aiohttp.ClientSession, tmp_path: Path, tools: Any
) -> None:
    seen, port = engine
    file = tmp_path / "tokens"
    await asyncio.to_thread(file.write_text, TOKEN)
    router = RouterApp(RouterConfig(host="127.0.0.1", port=0, token_file=str(file)), One(port))
    await router.start()
    try:
        await tools.eventually(lambda: bool(router.fleet.servable_models))
        assert set(seen.shown) == {None}, "health is asked without"
        body = {"model": "m", "prompt": "x", "max_tokens": 1}
        async with client.post(router.url + "/v1/completions", json=body, headers={"Authorization": KEY}) as answer:
            assert answer.status == 200
        assert KEY in seen.shown
        assert not any(TOKEN in shown for shown in seen.shown if shown)
    finally:
        await router.stop()
