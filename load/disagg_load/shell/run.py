"""A whole replay as a command runs it: Ctrl-C included, from workload to report."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from disagg_contract.tokenizer import default_tokenizer
from disagg_load.report import ReplayFacts, Report, Slo, build_report
from disagg_load.requests import Workload

from .limits import allow_connections
from .progress import show_progress
from .replay import ReplayOptions, replay


async def replay_and_report(workload: Workload, options: ReplayOptions, *, slo: Slo, console: Console) -> Report:
    """Replay the workload with progress on `console`.

    The first Ctrl-C (or SIGTERM) ends it early; the report is then about what there is so far. Raises
    `ClientError` when the server can't be replayed against at all.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    allowed = allow_connections(options.max_connections)
    if allowed < options.max_connections:
        console.print(f"at most {allowed} connections: the limit of open files is too low for more", highlight=False)
    with _interruptible(loop, stop), show_progress(len(workload.requests), console, loop.time) as observer:
        result = await replay(
            workload,
            options.limited_to(allowed),
            tokenizer=default_tokenizer(),
            observer=observer,
            stop=stop,
        )
    return build_report(
        result.records,
        slo=slo,
        facts=ReplayFacts(
            trace=workload.name,
            url=options.url,
            model=result.model,
            seed=options.seed,
            rate_scale=options.rate_scale,
            time_scale=options.time_scale,
            planned=len(workload.requests),
            interrupted=result.interrupted,
        ),
    )


@contextmanager
def _interruptible(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])

    def interrupt() -> None:
        stop.set()
        restore()

    for number in numbers:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        restore()
