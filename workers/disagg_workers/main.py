"""`disagg worker`: run one worker until it is told to stop.

Exit status 0 after a drain, also one that the grace period cut short. Raises StartError (a ConfigError) for settings
that can't work or ports that can't be had, and OSError for files, all of which the command turns into one sentence;
`main` does the same for ``python -m disagg_workers.main``.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence

import uvloop

from disagg_contract.config import WorkerConfig
from disagg_contract.errors import ConfigError
from disagg_contract.settings import parse
from disagg_workers.worker import Worker, pod_ip

USAGE_STATUS = 2
GC_THRESHOLDS = (5_000, 20, 100)
"""Net new objects before a collection of the youngest, and how many of those make one of the middle and of all."""


def run(config: WorkerConfig) -> int:
    """Run a worker in this process; returns the exit status."""
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))
    return 0


async def _serve(config: WorkerConfig) -> None:
    worker = Worker(config, pod_ip=pod_ip())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.start()
    # A full collection walks everything imported and every live request, and holds the engine's clock for some ten
    # milliseconds meanwhile; requests leave next to nothing for it. So the imports are left out, and it comes rarely.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        await worker.run()
    finally:
        await worker.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse flags and environment, run, and say in one sentence what is wrong."""
    try:
        return run(parse(WorkerConfig, sys.argv[1:] if argv is None else argv, os.environ))
    except ConfigError as error:
        print(f"disagg worker: {error}", file=sys.stderr)
        return USAGE_STATUS
    except OSError as error:
        print(f"disagg worker: {error.strerror or error}", file=sys.stderr)
        return USAGE_STATUS


if __name__ == "__main__":
    sys.exit(main())
