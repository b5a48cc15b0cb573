"""Health and metrics of the operator over HTTP.

Alive: the loop answers, kopf's thread runs and the watches were heard lately. Ready means that the process does its
part; an operator that stands by for the lease is ready too, or a rollout with two of them would never end.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from disagg_contract.ports import HEALTH_PATH, METRICS_PATH

ALL_ADDRESSES = "0.0.0.0"


@asynccontextmanager
async def served(
    *, health_port: int, metrics_port: int, problem: Callable[[], str | None], exposition: Callable[[], bytes]
) -> AsyncIterator[tuple[int, int]]:
    """Serve both; gives the ports, which differ from those asked for where 0 was asked. Raises OSError."""

    async def health(request: web.Request) -> web.Response:
        found = problem()
        return web.Response(status=200 if found is None else 503, text=f"{found or 'ok'}\n")

    async def ready(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    health_app, metrics_app = web.Application(), web.Application()
    for path in (HEALTH_PATH, "/healthz"):
        health_app.router.add_get(path, health)
    health_app.router.add_get("/readyz", ready)
    metrics_app.router.add_get(METRICS_PATH, metrics)
    runners = [web.AppRunner(health_app, access_log=None), web.AppRunner(metrics_app, access_log=None)]
    ports: list[int] = []
    try:
        for runner, port in zip(runners, (health_port, metrics_port), strict=True):
            await runner.setup()
            await web.TCPSite(runner, ALL_ADDRESSES, port).start()
            ports.append(runner.addresses[0][1])
        yield ports[0], ports[1]
    finally:
        for runner in runners:
            await runner.cleanup()
