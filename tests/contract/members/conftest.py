"""Whole deployments in this process, each program with a token file of its own: real sockets, real protocol."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from disagg_contract.config import RouterConfig, WorkerConfig
from disagg_contract.discovery import DiscoveredWorker
from disagg_contract.labels import Role
from disagg_contract.tokens import Tokens
from disagg_router.shell.app import RouterApp
from disagg_router.shell.discovery.source import Rows
from disagg_workers.worker import Worker

PATIENCE_SECONDS = 60.0


class Listed:
    """A source that names the same workers for ever."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def watch(self) -> AsyncIterator[Rows]:
        yield self._rows
        await asyncio.Event().wait()


@dataclass
class Tenant:
    """A prefill worker, a decode worker and a router. ``files``: the token file of each, by its name."""

    files: dict[str, Path]
    prefill: Worker
    decode: Worker
    router: RouterApp
    running: list["asyncio.Task[None]"] = field(default_factory=list)

    def write(self, name: str, *tokens: str) -> None:
        """What one program is to see from now on."""
        write(self.files[name], *tokens)


def write(path: Path, *tokens: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(Tokens(tokens).render())
    draft.replace(path)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


Begin = Callable[..., Awaitable[Tenant]]


@pytest.fixture
async def tenant(tmp_path: Path) -> AsyncIterator[Begin]:
    """``await tenant(name, *tokens)``; without tokens everything is open."""
    tenants: list[Tenant] = []

    async def begin(name: str, *tokens: str) -> Tenant:
        files = {program: tmp_path / f"{name}-{program}" for program in ("prefill", "decode", "router")}
        for path in files.values() if tokens else ():
            write(path, *tokens)

        def worker(role: Role) -> Worker:
            return Worker(
                WorkerConfig(
                    role=role,
                    model="opt-13b",
                    gpu="a100-80gb",
                    host="127.0.0.1",
                    port=0,
                    kv_port=0,
                    time_scale=50.0,
                    startup_seconds=0.0,
                    debug_endpoints=True,
                    token_file=str(files[role.value]) if tokens else "",
                )
            )

        workers = {role: worker(role) for role in (Role.PREFILL, Role.DECODE)}
        for each in workers.values():
            await each.start()
        rows = tuple(
            DiscoveredWorker(uid=role.value, name=role.value, role=role, host="127.0.0.1", port=each.port)
            for role, each in workers.items()
        )
        config = RouterConfig(host="127.0.0.1", port=0, token_file=str(files["router"]) if tokens else "")
        router = RouterApp(config, Listed(rows))
        made = Tenant(files, workers[Role.PREFILL], workers[Role.DECODE], router)
        tenants.append(made)
        made.running = [asyncio.create_task(each.run()) for each in workers.values()]
        await router.start()
        return made

    yield begin
    for made in tenants:
        await made.router.stop()
        for task in made.running:
            task.cancel()
        await asyncio.gather(*made.running, return_exceptions=True)
        await made.prefill.close()
        await made.decode.close()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
def tools() -> Any:
    """Helpers of this file, for tests."""
    return Tools


class Tools:
    eventually = staticmethod(eventually)
