"""Health and metrics of the planner over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from disagg_contract.listening import cannot_listen
from disagg_contract.ports import HEALTH_PATH, METRICS_PATH
from disagg_planner.shell.exporter import CONTENT_TYPE, Exporter


def build_app(exporter: Exporter, healthy: Callable[[], bool]) -> web.Application:
    """`/health` is 200 while the loop makes decisions in time, else 503; `/metrics` is the exposition."""

    async def health(request: web.Request) -> web.Response:
        if healthy():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="no decision for too long\n")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=exporter.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get(HEALTH_PATH, health)
    app.router.add_get(METRICS_PATH, metrics)
    return app


async def start(app: web.Application, *, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen; returns the runner to clean up and the port that was taken. Raises ListenError when it cannot be had."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise cannot_listen(error, host=host, port=port) from error
    taken = runner.addresses[0][1] if runner.addresses else port
    return runner, int(taken)
