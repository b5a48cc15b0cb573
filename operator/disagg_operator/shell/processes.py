"""``disagg up FILE``: a deployment on this machine until Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from disagg_crds import DisaggDeployment, SpecError, load_deployment
from disagg_operator.errors import RuntimeStartError
from disagg_operator.shell.local.runtime import STOP_SECONDS, Runtime
from disagg_operator.shell.local.state import RunningState, default_state_dir, read_state, running, state_root

__all__ = [
    "RunningState",
    "Runtime",
    "default_state_dir",
    "read_file",
    "read_state",
    "running",
    "state_root",
    "up",
]

DEFAULT_PORT = 8000


def read_file(path: Path) -> DisaggDeployment:
    """The one DisaggDeployment of a file. Raises RuntimeStartError in a sentence."""
    try:
        found = load_deployment(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuntimeStartError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise RuntimeStartError(f"{path} is not UTF-8 text: {error}") from error
    except SpecError as error:
        raise RuntimeStartError(f"{path}: {error}") from error
    if len(found) != 1:
        names = ", ".join(deployment.name for deployment in found)
        raise RuntimeStartError(f"{path} holds {len(found)} deployments ({names}); put the one to run into a file")
    return found[0]


def up(
    path: Path,
    *,
    state_dir: Path | None = None,
    router_port: int = DEFAULT_PORT,
    catalogue: str = "",
    log_level: str = "info",
    ready_seconds: float = 300.0,
    stop_seconds: float = STOP_SECONDS,
    say: Callable[[str], None] = print,
) -> int:
    """Run the deployment of a file until SIGINT or SIGTERM; 0 after a clean stop. A second signal ends it at once.

    Raises RuntimeStartError when it cannot start.
    """
    deployment = read_file(path)
    runtime = Runtime(
        deployment,
        state_dir=state_dir,
        router_port=router_port,
        catalogue=catalogue,
        log_level=log_level,
        stop_seconds=stop_seconds,
    )
    return asyncio.run(_serve(runtime, ready_seconds=ready_seconds, say=say))


async def _serve(runtime: Runtime, *, ready_seconds: float, say: Callable[[str], None]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            runtime.hurry()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    async with runtime:
        say(f"{runtime.deployment.name}: starting; logs are in {runtime.logs}")
        stopped = loop.create_task(stop.wait())
        failed = loop.create_task(runtime.failure())
        ready = loop.create_task(runtime.wait_ready(timeout_seconds=ready_seconds))
        try:
            await asyncio.wait((ready, stopped, failed), return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
                say(f"{runtime.deployment.name}: ready at {runtime.router_url} (Ctrl-C stops it)")
                await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            for task in (stopped, failed, ready):
                task.cancel()
            await asyncio.gather(stopped, failed, ready, return_exceptions=True)
        say(
            f"{runtime.deployment.name}: stopping; requests in flight get {runtime.stop_seconds:g} s "
            "(Ctrl-C again: none)"
        )
    say(f"{runtime.deployment.name}: stopped")
    return 0
