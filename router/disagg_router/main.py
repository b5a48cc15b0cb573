"""``disagg router``: start, serve until a signal, drain, exit."""

import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

from disagg_contract.config import RouterConfig
from disagg_contract.errors import ConfigError
from disagg_router.errors import StartError
from disagg_router.shell.app import RouterApp
from disagg_router.shell.discovery.file import FileSource
from disagg_router.shell.discovery.source import Source

log = logging.getLogger(__name__)


def run(config: RouterConfig) -> int:
    """Serve until SIGTERM or SIGINT. 0 after a clean drain, 1 if requests were cut, 2 if it could not start."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        return uvloop.run(_serve(config))
    except (StartError, ConfigError) as error:
        print(f"disagg router: {error}", file=sys.stderr)
        return 2


async def _serve(config: RouterConfig) -> int:
    app = RouterApp(config, make_source(config))
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await app.start()
    signalled = loop.create_task(stopping.wait())
    try:
        await asyncio.wait((signalled, app.registrar.follower), return_when=asyncio.FIRST_COMPLETED)
        if app.registrar.follower.done():
            app.registrar.follower.result()  # discovery never ends by itself
        log.info("draining: %d requests in flight", app.in_flight)
        return 0 if await app.drain(config.grace_seconds) else 1
    finally:
        signalled.cancel()
        await app.stop()


def make_source(config: RouterConfig) -> Source:
    """Where the workers are, by the settings. Raises StartError if they name no place."""
    if config.discovery_file:
        return FileSource(Path(config.discovery_file))
    if not config.deployment:
        raise StartError("workers: give --discovery-file=FILE, or --deployment=NAME to watch its pods")
    from disagg_router.shell.discovery import cluster
    from disagg_router.shell.discovery.kube import KubeSource

    return KubeSource(
        cluster.connect, namespace=config.namespace or cluster.own_namespace(), deployment=config.deployment
    )
