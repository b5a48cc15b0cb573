"""Draining, and the program as a process."""

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager

from disagg_contract.config import RouterConfig
from disagg_contract.discovery import DiscoveryFile
from disagg_contract.settings import to_args

PROGRAM = """
import os, sys
from disagg_contract.config import RouterConfig
from disagg_contract.settings import parse
from disagg_router.main import run
sys.exit(run(parse(RouterConfig, sys.argv[1:], os.environ)))
"""


@asynccontextmanager
async def router_process(**settings):
    arguments = to_args(RouterConfig(host="127.0.0.1", **settings))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def url_of(process):
    async for line in process.stderr:
        if found := re.search(rb"listening on (http://\S+:\d+)", line):
            return found[1].decode()
    raise AssertionError("it never listened")


async def test_kv10_running_streams_outlive_sigterm(bench, pair, tools, tmp_path):
    pair[1].mode = "hold"
    client = await bench(*pair)  # its own router is not used, only its client and its clean-up
    path = tmp_path / "workers.json"
    path.write_bytes(DiscoveryFile(workers=tuple(worker.row for worker in pair)).to_json())
    async with router_process(port=0, discovery_file=str(path)) as process:
        client.app.url = await url_of(process)

        async def ready():
            return (await client.get("/health")).status == 200

        await tools.eventually(ready, "it serves")
        streams = [await client.post({"stream": True}) for _ in range(20)]
        process.send_signal(signal.SIGTERM)

        async def unready():
            return (await client.get("/health")).status == 503

        await tools.eventually(unready, "readiness turns")
        refused = await client.post()
        assert refused.status == 503
        assert (await refused.json())["error"]["code"] == "draining"
        assert "retry-after" in refused.headers
        assert process.returncode is None
        pair[1].go.set()
        for stream in streams:
            assert b"[DONE]" in await stream.read()
        rest = (await asyncio.wait_for(process.communicate(), 20))[1]
        assert process.returncode == 0, rest


async def test_a_drain_has_an_end(bench, pair, tools):
    pair[1].mode = "hold"
    router = await bench(*pair)
    stream = await router.post({"stream": True})
    assert not await router.app.drain(0.05)
    assert router.app.in_flight == 1
    pair[1].go.set()
    assert b"[DONE]" in await stream.read()
    assert await router.app.drain(5)


async def test_ap3_what_outlives_the_grace_time_is_cut_with_an_error(bench, pair, tools):
    pair[1].mode = "hold"
    router = await bench(*pair)
    stream = await router.post({"stream": True})
    whole = asyncio.create_task(router.post())
    await tools.eventually(lambda: pair[1].running == 2, "both are under way")
    assert not await router.app.drain(0.05)
    await router.app.stop()
    *tokens, last = tools.events(await stream.read())
    assert tokens
    assert last["error"]["code"] == "router_stopped"
    assert not any(choice["finish_reason"] for event in tokens for choice in event["choices"])
    refused = await whole
    assert (refused.status, (await refused.json())["error"]["code"]) == (503, "router_stopped")
    assert "retry-after" in refused.headers
    assert router.app.in_flight == 0
    await tools.eventually(lambda: pair[1].cancelled == 2, "the worker stops, too")


async def test_a_port_in_use_is_said_in_one_sentence(bench, pair, tmp_path):
    router = await bench(*pair)
    path = tmp_path / "workers.json"
    path.write_bytes(DiscoveryFile().to_json())
    async with router_process(port=router.app.port, discovery_file=str(path)) as process:
        _, said = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    lines = said.decode().splitlines()
    assert len(lines) == 1
    wanted = f"disagg router: port {router.app.port} on 127.0.0.1 is in use; choose another with --port"
    assert lines[0] == wanted


async def test_without_a_place_to_find_workers_it_does_not_start():
    async with router_process(port=0) as process:
        _, said = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert b"give --discovery-file=FILE, or --deployment=NAME" in said
