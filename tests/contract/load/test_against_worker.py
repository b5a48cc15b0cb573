"""What a client measures is what the worker counts: the replay against real worker processes."""

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from disagg_contract import metrics
from disagg_contract.tokenizer import default_tokenizer
from disagg_load.records import Outcome, RequestRecord
from disagg_load.report import ReplayFacts, Report, Slo, build_report
from disagg_load.requests import TraceRequest, Workload
from disagg_load.shell.http import HttpClient
from disagg_load.shell.replay import ReplayOptions, replay


class Silent:
    def sent(self, index: int) -> None:
        """Nothing to show."""

    def finished(self, record: RequestRecord) -> None:
        """Nothing to show."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def worker(*arguments: str) -> AsyncIterator[str]:
    """A colocated OPT-13B on an A100, ready; its URL."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "disagg_cli.main", "worker", "--model=opt-13b", "--gpu=a100-80gb"),
        *("--host=127.0.0.1", f"--port={port}", f"--kv-port={free_port()}", "--startup-seconds=0", *arguments),
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stderr=asyncio.subprocess.PIPE,
    )
    url = f"http://127.0.0.1:{port}"
    client = HttpClient(url, max_connections=1)
    try:
        async with asyncio.timeout(120):
            while True:
                assert process.returncode is None, await process.communicate()
                try:
                    if (await client.request("GET", "/health")).status == 200:
                        break
                except OSError:
                    pass
                await asyncio.sleep(0.1)
        yield url
    finally:
        await client.close()
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def run(url: str, load: Workload, **options: Any) -> Report:
    result = await replay(
        load,
        ReplayOptions(url=url, late_after_seconds=60, **options),
        tokenizer=default_tokenizer(),
        observer=Silent(),
        stop=asyncio.Event(),
    )
    facts = ReplayFacts(
        trace=load.name,
        url=url,
        model=result.model,
        seed=0,
        rate_scale=1,
        time_scale=1,
        planned=len(load.requests),
        interrupted=False,
    )
    return build_report(result.records, slo=Slo(ttft_seconds=1, tpot_seconds=1), facts=facts)


async def counted(url: str, series: str) -> float:
    client = HttpClient(url, max_connections=1)
    try:
        text = (await client.request("GET", "/metrics")).body.decode()
    finally:
        await client.close()
    return sum(float(value) for value in re.findall(rf"^{series}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


async def test_pm8_every_success_has_one_ttft_and_every_longer_one_a_tpot() -> None:
    """500 requests at concurrency 64, a third of them of one token."""
    load = Workload(
        name="many",
        requests=tuple(
            TraceRequest(arrival_seconds=0, input_tokens=20, output_tokens=1 + index % 3) for index in range(500)
        ),
    )
    async with worker("--time-scale=50") as url:
        report = await run(url, load, time_scale=50.0, max_connections=64)
        assert (report.completed, report.truncated, report.errors) == (500, 0, {})
        assert report.output_tokens == sum(request.output_tokens for request in load.requests)
        assert await counted(url, metrics.WORKER_TTFT.count) == 500
        longer = sum(request.output_tokens > 1 for request in load.requests)
        assert await counted(url, metrics.WORKER_TPOT.count) == longer
        assert sum(record.tpot_seconds is not None for record in report.records) == longer
        assert await counted(url, metrics.WORKER_GENERATED_TOKENS.series) == report.output_tokens


async def test_pm10_the_workers_ttft_includes_the_queue_that_clients_see() -> None:
    """One sequence at a time, ten requests at once, prefills of half a second: the last one waits for all others."""
    load = Workload(
        name="queue",
        requests=tuple(TraceRequest(arrival_seconds=0, input_tokens=2000, output_tokens=1) for _ in range(10)),
    )
    async with worker("--max-sequences=1", "--slowdown=2") as url:
        report = await run(url, load)
        assert report.completed == 10
        assert report.ttft_seconds is not None
        seen = sum(record.ttft_seconds or 0 for record in report.records)
        reported = await counted(url, metrics.WORKER_TTFT.sum)
        assert reported == pytest.approx(seen, rel=0.1)
        assert report.ttft_seconds.max == pytest.approx(10 * reported / 55, rel=0.2)


async def test_ap2_exactly_the_asked_tokens_whatever_the_length() -> None:
    load = Workload(
        name="lengths",
        requests=tuple(
            TraceRequest(arrival_seconds=0, input_tokens=inputs, output_tokens=outputs)
            for inputs in (1, 15, 16, 17, 300)
            for outputs in (1, 2, 17)
        ),
    )
    async with worker("--time-scale=20") as url:
        report = await run(url, load, time_scale=20.0)
        assert [record.tokens for record in report.records] == [request.output_tokens for request in load.requests]
        assert {record.outcome for record in report.records} == {Outcome.COMPLETED}
