"""Workers in this process, on loopback and free ports, with a fast clock."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from disagg_contract.config import WorkerConfig
from disagg_contract.labels import Role
from disagg_contract.transfer import PREFILL_LEG
from disagg_workers.worker import Worker

PATIENCE_SECONDS = 60.0
WORDS = "The quick brown fox jumps over the lazy dog and then sleeps. "


async def eventually(condition: Callable[[], bool | Awaitable[bool]], *, what: str = "") -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            held = condition()
            if not isinstance(held, bool):
                held = await held
            if held:
                return
            await asyncio.sleep(0.005)


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """Text of the first choice, streamed or not."""
        return self.texts[0]

    @property
    def texts(self) -> dict[int, str]:
        if not self.headers["Content-Type"].startswith("text/event-stream"):
            return {c["index"]: c["text"] if "text" in c else c["message"]["content"] for c in self.json["choices"]}
        found: dict[int, str] = {}
        for event in self.events:
            for choice in event.get("choices", []):
                part = choice["text"] if "text" in choice else choice["delta"].get("content", "")
                found[choice["index"]] = found.get(choice["index"], "") + part
        return found

    @property
    def events(self) -> list[Any]:
        """Events of a stream without the last ``[DONE]``."""
        parts = [part for part in self.body.decode().split("\n\n") if part]
        assert all(part.startswith("data: ") for part in parts)
        return [json.loads(part[6:]) for part in parts if part != "data: [DONE]"]

    @property
    def done(self) -> bool:
        return self.body.endswith(b"data: [DONE]\n\n")

    @property
    def reasons(self) -> list[str]:
        choices = [c for e in self.events for c in e.get("choices", [])]
        return [c["finish_reason"] for c in choices if c["finish_reason"]]


class Site:
    """A running worker and a client of it."""

    def __init__(self, worker: Worker, session: aiohttp.ClientSession, running: "asyncio.Task[None]") -> None:
        self.worker = worker
        self.session = session
        self.running = running

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.worker.port}"

    async def send(self, method: str, path: str, **kwargs: Any) -> Reply:
        async with self.session.request(method, self.url + path, **kwargs) as response:
            return Reply(response.status, dict(response.headers), await response.read())

    async def complete(self, prompt: Any = WORDS, **fields: Any) -> Reply:
        headers = fields.pop("headers", None)
        return await self.send("POST", "/v1/completions", json={"prompt": prompt, **fields}, headers=headers)

    async def prefill(self, prompt: Any = WORDS, **fields: Any) -> dict[str, Any]:
        """The prefill leg; returns its kv_transfer_params."""
        leg = {**fields, "max_tokens": 1, "min_tokens": 1, "stream": False, "kv_transfer_params": PREFILL_LEG}
        reply = await self.complete(prompt, **leg)
        assert reply.status == 200, reply.body
        params: dict[str, Any] = reply.json["kv_transfer_params"]
        return params

    async def metric(self, name: str, **labels: str) -> float:
        return sample((await self.send("GET", "/metrics")).body.decode(), name, **labels)

    @property
    def used_tokens(self) -> int:
        return self.worker.simulated.loop.ledger.used_tokens

    async def idle(self) -> None:
        """Wait until nothing runs and nothing is held."""
        await eventually(lambda: not self.worker.service.live and self.used_tokens == 0)


def sample(text: str, name: str, **labels: str) -> float:
    """Value of one series of an exposition; its only one if no labels are given."""
    from prometheus_client.parser import text_string_to_metric_families

    found = [
        item.value
        for family in text_string_to_metric_families(text)
        for item in family.samples
        if item.name == name and labels.items() <= item.labels.items()
    ]
    assert len(found) == 1, f"{name} {labels}: {len(found)} series"
    return float(found[0])


Start = Callable[..., Awaitable[Site]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts workers: ``await start(role, **settings)``; ready unless ``wait=False``."""
    sites: list[Site] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def begin(role: Role = Role.WORKER, *, wait: bool = True, **settings: Any) -> Site:
            config = WorkerConfig(
                **{
                    "role": role,
                    "model": "opt-13b",
                    "gpu": "a100-80gb",
                    "host": "127.0.0.1",
                    "port": 0,
                    "kv_port": 0,
                    "time_scale": 50.0,
                    "startup_seconds": 0.0,
                    **settings,
                }
            )
            worker = Worker(config)
            await worker.start()
            site = Site(worker, session, asyncio.create_task(worker.run()))
            sites.append(site)
            if wait:
                await eventually(lambda: worker.lifecycle.ready)
            return site

        yield begin
        for site in sites:
            site.running.cancel()
            await asyncio.gather(site.running, return_exceptions=True)
            await site.worker.close()


@dataclass(slots=True)
class Pair:
    """A prefill and a decode worker and the two legs a router would send."""

    prefill: Site
    decode: Site

    async def complete(self, prompt: Any = WORDS, **fields: Any) -> Reply:
        shared = {key: value for key, value in fields.items() if key in ("seed", "temperature", "stop", "n")}
        params = await self.prefill.prefill(prompt, **shared)
        return await self.decode.complete(prompt, **fields, kv_transfer_params=params)


@pytest.fixture
async def pair(start: Start) -> Pair:
    return Pair(await start(Role.PREFILL), await start(Role.DECODE))
