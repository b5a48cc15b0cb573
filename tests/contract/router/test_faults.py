"""Workers that fail, clients that leave: no hang, no duplicate, no load left behind."""

import asyncio
import json

import openai
import pytest

from disagg_router.shell import front


@pytest.fixture
def several(tools):
    """Two of each role."""
    role = tools.Role
    return [tools.FakeWorker(role.PREFILL) for _ in range(2)] + [tools.FakeWorker(role.DECODE) for _ in range(2)]


def loads_are_zero(router):
    return all(load == (0, 0, 0) for load in router.load())


@pytest.mark.parametrize("mode", ["die", "cut", "error-event"])
async def test_ap3_a_stream_that_breaks_says_so(bench, pair, tools, mode):
    pair[1].mode, pair[1].waits = mode, True
    router = await bench(*pair)
    async with tools.raw(router.url) as (reader, writer):
        body = json.dumps({"model": tools.MODEL, "prompt": "x", "stream": True, "max_tokens": 1000}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        data = await reader.readuntil(b" w4")
        pair[1].go.set()
        data += await reader.read()  # ends: the connection is closed
    *tokens, last = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
    assert "message" in last["error"]
    assert len(tokens) == 5
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in tokens)
    assert b"[DONE]" not in data
    assert data.endswith(b"\r\n0\r\n\r\n"), "well-formed to its end"
    assert loads_are_zero(router)
    series = await router.metrics()
    assert series[f'disagg_router_requests_total{{model="{tools.MODEL}",outcome="failed"}}'] == 1
    assert series[f'disagg_router_leg_errors_total{{leg="decode",model="{tools.MODEL}"}}'] == 1


@pytest.mark.parametrize("mode", ["die", "cut", "error-event"])
async def test_a_stream_that_breaks_before_the_client_saw_any_of_it_is_tried_again(bench, several, tools, mode):
    bad, good = several[2:]
    bad.mode, bad.dies_after = mode, 0
    router = await bench(*several)
    for _ in range(6):
        chunks = tools.events(await (await router.post({"stream": True})).read())
        assert len(chunks) == 9
        assert chunks[-1] == "[DONE]"
    assert bad.legs
    assert good.legs


async def test_ap3_the_openai_client_raises(bench, pair, tools):
    pair[1].mode = "die"
    router = await bench(*pair)
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.completions.create(model=tools.MODEL, prompt="x", max_tokens=100, stream=True)
        with pytest.raises(openai.APIError, match="decode worker"):
            async for _ in stream:
                pass


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("failing", ["prefill", "decode"])
@pytest.mark.parametrize("mode", ["broken", "busy", "dead"])
async def test_kv5_a_leg_that_fails_is_tried_on_another_worker(bench, several, tools, stream, failing, mode):
    router = await bench(*several)
    bad = next(worker for worker in several if worker.role == failing)
    if mode == "dead":
        await bad.stop()
    else:
        bad.mode = mode
    for _ in range(8):
        answer = await router.post({"stream": stream})
        body = await answer.read()
        assert answer.status == 200
        expected = b"[DONE]" if stream else tools.text(8).encode()
        assert expected in body
    assert loads_are_zero(router)


async def test_kv5_decode_that_dies_before_its_first_token_costs_a_new_prefill(bench, several, tools):
    router = await bench(*several)
    for worker in several[2:]:
        worker.mode, worker.dies_after = "die", 0
    answer = await router.post({"stream": True})
    assert answer.status == 502
    legs = [leg for worker in several[2:] for leg in worker.legs]
    ids = {leg.body["kv_transfer_params"]["disagg"]["transfer_id"] for leg in legs}
    assert len(ids) == len(legs) == 3, "KV6: an attempt never reuses the transfer of another"
    several[2].mode = several[3].mode = "ok"
    await tools.eventually(lambda: all(map(router.eligible, several)), "they answer probes and are back")
    assert (await router.post({"stream": True})).status == 200


async def test_rt17_a_worker_that_hangs_delays_nobody_else(bench, tools):
    hanging, healthy = tools.FakeWorker(tools.Role.WORKER), tools.FakeWorker(tools.Role.WORKER)
    router = await bench(hanging, healthy, leg_timeout_seconds=0.5, policy="round-robin")
    hanging.mode = "hang"
    answers = await asyncio.gather(*(router.post() for _ in range(200)))
    assert [answer.status for answer in answers] == [200] * 200
    assert healthy.legs
    assert not router.eligible(hanging)
    assert len(healthy.legs) == 200
    assert loads_are_zero(router)
    await tools.eventually(lambda: hanging.cancelled == len(hanging.legs), "the hanging legs were closed")


async def test_rt17_when_all_hang_it_is_504_within_the_limit(bench, tools):
    worker = tools.FakeWorker(tools.Role.WORKER)
    router = await bench(worker, leg_timeout_seconds=0.2, leg_attempts=1)
    worker.mode = "hang"
    answer = await router.post()
    assert answer.status == 504


@pytest.mark.parametrize("policy", ["kv", "least-loaded", "round-robin"])
async def test_rt9_a_dead_worker_with_the_best_prefix_is_not_chosen(bench, tools, policy):
    workers = [tools.FakeWorker(tools.Role.WORKER) for _ in range(3)]
    router = await bench(*workers, policy=policy)
    prompt = {"prompt": "the quick brown fox " * 100}
    await router.post(prompt)
    warm = next(worker for worker in workers if worker.legs)
    await warm.stop()
    for _ in range(20):
        assert (await router.post(prompt)).status == 200
    assert not router.eligible(warm)
    if policy == "kv":
        key = router.app.fleet.get(warm.uid).key
        assert router.app._policy._index.blocks(key) == 0


async def test_rt14_a_restarted_worker_is_found_under_its_old_address(bench, tools):
    worker = tools.FakeWorker(tools.Role.WORKER)
    router = await bench(worker)
    prompt = {"prompt": "the quick brown fox " * 100}
    await router.post(prompt)
    old = router.app.fleet.get(worker.uid).key
    assert router.app._policy._index.blocks(old) > 0
    await worker.restart()
    assert (await router.post(prompt)).status == 200, "a kept connection that was closed costs nothing"
    await tools.eventually(lambda: router.eligible(worker), "the new process is taken in")
    assert router.app._policy._index.blocks(old) == 0


async def test_rt10_a_worker_at_capacity_once_is_chosen_again(bench, tools):
    worker = tools.FakeWorker(tools.Role.WORKER)
    router = await bench(worker)
    worker.mode = "busy"
    assert (await router.post()).status == 503
    worker.mode = "ok"
    assert (await router.post()).status == 200


@pytest.mark.parametrize("stage", ["prefill", "decode", "streaming"])
async def test_ap7_a_client_that_leaves_stops_the_workers(bench, pair, tools, stage):
    router = await bench(*pair)
    running = pair[0] if stage == "prefill" else pair[1]
    running.mode = "hang" if stage == "prefill" else "hold"
    async with tools.raw(router.url) as (reader, writer):
        body = json.dumps(
            {"model": tools.MODEL, "prompt": "x", "stream": stage == "streaming", "max_tokens": 1000}
        ).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        if stage == "streaming":
            await reader.readuntil(b"data: {")
        await tools.eventually(lambda: running.running == 1, "the leg runs")
    await tools.eventually(lambda: running.cancelled == 1 and running.running == 0, "the worker is told")
    await tools.eventually(lambda: loads_are_zero(router), "the load is back")
    series = await router.metrics()
    assert series[f'disagg_router_requests_total{{model="{tools.MODEL}",outcome="cancelled"}}'] == 1
    assert series[f'disagg_router_requests_in_flight{{model="{tools.MODEL}"}}'] == 0


async def test_ap7_a_client_that_leaves_the_queue_is_forgotten(bench, pair, tools):
    router = await bench(model=tools.MODEL)
    waiting = asyncio.ensure_future(router.post())
    await tools.eventually(lambda: len(router.app._queue) == 1, "the request queues")
    waiting.cancel()
    await tools.eventually(lambda: not router.app._queue, "it is gone")
    await router.add(*pair)
    assert pair[0].legs == []


async def test_a_half_closed_client_is_gone(bench, pair, tools):
    pair[1].mode = "hold"
    router = await bench(*pair)
    async with tools.raw(router.url) as (reader, writer):
        body = json.dumps({"model": tools.MODEL, "prompt": "x", "max_tokens": 10}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await tools.eventually(lambda: pair[1].running == 1, "the leg runs")
        writer.write_eof()
        assert await reader.read() == b""
    await tools.eventually(lambda: pair[1].cancelled == 1, "the worker is told")


async def test_a_client_that_stops_reading_is_dropped(bench, pair, tools, monkeypatch):
    monkeypatch.setattr(front, "STALLED_SECONDS", 0.2)
    router = await bench(*pair)
    async with tools.raw(router.url) as (_, writer):
        body = json.dumps({"model": tools.MODEL, "prompt": "x", "stream": True, "max_tokens": 200_000}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await tools.eventually(lambda: pair[1].cancelled == 1, "the worker is told")
    assert loads_are_zero(router)
