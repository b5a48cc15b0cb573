"""`disagg replay` as its users run it: a process, a table, a report, Ctrl-C."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "disagg_cli.main",
        "replay",
        *arguments,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "COLUMNS": "100"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finish(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_table_and_a_report(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    trace = "builtin:chat?rate=200&requests=40&input=20&output=4&lengths=fixed"
    status, out, _ = await finish(
        await start("--url", server.url, "--trace", trace, "--json", str(path), "--late-after", "60s")
    )
    assert status == 0
    assert f"{trace} on opt-13b at {server.url}" in out
    assert "first token (TTFT)" in out
    assert "40 requests: 40 completed, 0 truncated, 0 errors, 0 sent late" in out
    assert "where to look" in out
    report = json.loads(path.read_text())
    assert (report["requests"], report["completed"], report["output_tokens"]) == (40, 40, 160)
    assert {len(body["prompt"]) for body in server.bodies} == {20}


async def test_the_report_as_one_line(server: Any) -> None:
    status, out, err = await finish(
        await start("--url", server.url, "--trace", "builtin:chat?rate=100", "--limit", "3", "--json", "-")
    )
    assert status == 0
    (line,) = out.splitlines()
    assert json.loads(line)["requests"] == 3
    assert "first token (TTFT)" in err


async def test_a_real_file_format(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,37,4\n"
        "2023-11-16 18:15:50.9951690,39,5\n"
        "2023-11-16 18:15:50.9951690,87,6\n"
    )
    status, out, _ = await finish(await start("--url", server.url, "--trace", str(path), "--rate-scale", "100"))
    assert status == 0
    assert "3 requests: 3 completed" in out
    assert sorted((len(body["prompt"]), body["max_tokens"]) for body in server.bodies) == [(37, 4), (39, 5), (87, 6)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_prints_what_there_is(server: Any, number: signal.Signals, tmp_path: Path) -> None:
    second = asyncio.Event()
    full = server.answer

    async def answer(exchange: Any) -> None:
        if len(server.bodies) > 1:
            second.set()
            await exchange.open()
            await asyncio.sleep(3600)
        await full(exchange)

    server.answer = answer
    path = tmp_path / "report.json"
    trace = "builtin:chat?rate=2&requests=1000&lengths=fixed&input=5&output=3"
    process = await start("--url", server.url, "--trace", trace, "--json", str(path))
    await asyncio.wait_for(second.wait(), 60)
    process.send_signal(number)
    status, out, _ = await finish(process)
    assert status == 130
    assert "interrupted: " in out
    assert "of 1000 requests were sent" in out
    report = json.loads(path.read_text())
    assert report["interrupted"] is True
    assert report["completed"] == 1
    assert report["unfinished"] == report["requests"] - 1
    assert report["attainment"] is not None


async def test_only_failures_are_a_failure(server: Any) -> None:
    server.status = 503
    status, out, _ = await finish(
        await start("--url", server.url, "--trace", "builtin:chat?rate=100", "--limit", "4", "--late-after", "60s")
    )
    assert status == 1
    assert "errors (4 status) are misses; the first: HTTP 503: no worker is ready" in out
    assert "SLO attainment (both): 0.0 %" in out


async def test_some_failures_are_none(server: Any) -> None:
    full = server.answer

    async def answer(exchange: Any) -> None:
        server.status = 503
        await full(exchange)

    server.answer = answer
    trace = "builtin:chat?rate=2&requests=3&lengths=fixed&input=5&output=3"
    status, out, _ = await finish(await start("--url", server.url, "--trace", trace, "--late-after", "60s"))
    assert status == 0
    assert "3 requests: 1 completed, 0 truncated, 2 errors" in out


async def test_only_truncated_answers_are_a_failure(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        await exchange.token()
        await exchange.close(1)

    server.answer = answer
    trace = "builtin:chat?rate=100&requests=3&lengths=fixed&input=5&output=3"
    status, out, _ = await finish(await start("--url", server.url, "--trace", trace, "--late-after", "60s"))
    assert status == 1
    assert "3 requests: 0 completed, 3 truncated" in out


async def test_help_says_what_the_status_means() -> None:
    status, out, _ = await finish(await start("--help"))
    assert status == 0
    assert "Exit status: 0 when at least one request was completed, 1 when none was" in out


async def test_times_are_modelled_seconds_under_a_time_scale(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await asyncio.sleep(0.05)
        await exchange.open()
        for _ in range(exchange.body["max_tokens"]):
            await exchange.token()
        await exchange.close(exchange.body["max_tokens"])

    server.answer = answer
    status, out, _ = await finish(
        await start(
            "--url",
            server.url,
            "--trace",
            "builtin:chat?rate=1&requests=10&output=2&input=3&lengths=fixed",
            "--time-scale",
            "20",
            "--json",
            "-",
        )
    )
    report = json.loads(out)
    assert status == 0
    assert report["ttft_seconds"]["mean"] >= 1.0
    assert report["time_scale"] == 20
    scheduled = [row["scheduled_seconds"] for row in report["per_request"]]
    assert scheduled[0] == pytest.approx(0)
    assert scheduled == sorted(scheduled)
    assert scheduled[-1] > 1
