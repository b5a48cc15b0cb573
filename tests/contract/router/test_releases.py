"""KV between the two legs of a request that ends there is given back to the worker that holds it."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from disagg_contract.labels import Role
from disagg_router.shell import releases
from tests.contract.router import conftest as fakes
from tests.contract.workers import conftest as workers

real = workers.start
"""Starts real workers."""


@asynccontextmanager
async def client(router, tools, **fields):
    """A client with a request under way; it leaves at the end."""
    body = json.dumps({"model": tools.MODEL, "prompt": "hello world", "max_tokens": 100, **fields}).encode()
    async with tools.raw(router.url) as (_, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        yield


def transfer_of(leg):
    return leg.body["kv_transfer_params"]["disagg"]["transfer_id"]


@pytest.mark.parametrize("stream", [True, False])
async def test_ap7_a_client_that_leaves_between_the_legs(bench, pair, tools, stream):
    prefill, decode = pair
    router = await bench(*pair)
    decode.mode = "hang"
    async with client(router, tools, stream=stream):
        await tools.eventually(lambda: decode.running == 1, "the decode leg is out")
    await tools.eventually(lambda: prefill.released == [transfer_of(decode.legs[0])], "the KV is given back")
    await tools.eventually(lambda: not router.app.releases.pending, "nothing is left under way")


async def test_ap7_a_client_that_leaves_while_the_prefills_answer_travels(bench, pair, tools):
    prefill, decode = pair
    prefill.mode = "hold"
    router = await bench(*pair)
    async with client(router, tools):
        await tools.eventually(lambda: prefill.running == 1, "the prefill leg is out")
        (call,) = router.app._calls
        call._ticket.pause()
        prefill.go.set()
        await tools.eventually(lambda: prefill.running == 0, "it is answered, and the answer not read")
    await tools.eventually(lambda: len(prefill.released) == 1, "the KV is given back")
    assert decode.legs == []
    await tools.eventually(lambda: not router.app.releases.pending, "nothing is left under way")


class Halves(fakes.FakeWorker):
    """A prefill worker that waits in the middle of its answer."""

    async def _answer(self, request, body):
        whole = await super()._answer(request, body)
        response = fakes.web.StreamResponse(headers={"content-type": "application/json"})
        response.content_length = len(whole.body)
        await response.prepare(request)
        await response.write(whole.body[:40])
        await self.go.wait()
        await response.write(whole.body[40:])
        await response.write_eof()
        return response


async def test_ap7_a_client_that_leaves_in_the_middle_of_the_prefills_answer(bench, pair, tools):
    prefill, decode = Halves(Role.PREFILL), pair[1]
    router = await bench(prefill, decode)
    async with client(router, tools):
        await tools.eventually(lambda: any(call._held for call in router.app._calls), "half of the answer is there")
        (call,) = router.app._calls
        call._ticket.pause()
        prefill.go.set()
        await tools.eventually(lambda: prefill.running == 0, "the other half is on its way")
    await tools.eventually(lambda: len(prefill.released) == 1, "the KV is given back")


async def test_kv6_failed_attempts_give_back_what_they_held(bench, pair, tools):
    prefill, decode = pair
    another = tools.FakeWorker(Role.DECODE, mode="broken")
    decode.mode = "broken"
    router = await bench(prefill, decode, another)
    assert (await router.post()).status >= 500
    legs = decode.legs + another.legs
    assert len(legs) == 2
    await tools.eventually(lambda: len(prefill.released) == len(prefill.legs), "every prefill's KV is given back")
    assert set(prefill.released) >= set(map(transfer_of, legs))


async def test_an_answered_request_gives_nothing_back(bench, pair, tools):
    router = await bench(*pair)
    for stream in (True, False):
        answer = await router.post({"stream": stream})
        assert answer.status == 200
        await answer.read()
    pair[1].mode = "hold"
    async with client(router, tools, stream=True):
        await tools.eventually(lambda: pair[1].running == 1, "the decode leg is out")
        (call,) = router.app._calls
        await tools.eventually(lambda: call._exchange.state == "relaying", "its first token was passed on")
    await tools.eventually(lambda: pair[1].cancelled == 1, "the worker is told")
    assert not router.app.releases.pending
    assert pair[0].released == []


async def test_foreign_engines_are_sent_nothing(bench, pair, tools):
    pair[0].foreign = True
    router = await bench(*pair)
    pair[1].mode = "hang"
    async with client(router, tools):
        await tools.eventually(lambda: pair[1].running == 1, "the decode leg is out")
    await tools.eventually(lambda: pair[1].cancelled == 1, "the worker is told")
    assert not router.app.releases.pending
    assert pair[0].released == []


async def test_messages_to_a_worker_that_hangs_are_bounded(bench, pair, tools, monkeypatch):
    monkeypatch.setattr(releases, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(releases, "QUEUED_PER_WORKER", 10)
    router = await bench(*pair)
    pair[0].mode = "hang"
    before = router.app.pool.connections
    for number in range(100):
        router.app.releases.release(("127.0.0.1", pair[0].port), f"t-{number}")
    assert router.app.releases.pending == 10
    await asyncio.sleep(0)
    assert router.app.pool.connections <= before + releases.OPEN_PER_WORKER
    await tools.eventually(lambda: not router.app.releases.pending, "they were given up")
    assert pair[0].released == []


async def test_names_of_transfers_are_quoted(bench, pair, tools):
    router = await bench(*pair)
    router.app.releases.release(("127.0.0.1", pair[0].port), "a/../b c\r\nx")
    await tools.eventually(lambda: pair[0].released == ["a/../b c\r\nx"], "the worker gets it as it was")


async def test_ap7_a_router_that_stops_gives_back_first(bench, pair, tools):
    router = await bench(*pair)
    pair[1].mode = "hang"
    async with client(router, tools):
        await tools.eventually(lambda: pair[1].running == 1, "the decode leg is out")
        await router.app.stop()
    assert pair[0].released == [transfer_of(pair[1].legs[0])]


class Deaf(fakes.FakeWorker):
    """A decode worker of the same kind as a real prefill worker, which takes legs and never reads them."""

    like = None

    @property
    def info(self):
        return fakes.replace(self.like.worker.info(), role=Role.DECODE, engine_id=self.engine_id)


async def test_ap7_kv_of_a_client_that_went_away_is_free(real, bench, tools):
    prefill = await real(Role.PREFILL)
    decode = Deaf(Role.DECODE)
    decode.like = prefill
    router = await bench(decode)
    row = fakes.DiscoveredWorker(uid="real", name="real", role=Role.PREFILL, host="127.0.0.1", port=prefill.worker.port)
    router.source.put(row)
    await tools.eventually(lambda: router.app.fleet.get("real") is not None, "the real worker joins")
    decode.mode = "hang"
    async with client(router, tools, prompt=workers.WORDS * 6):
        await tools.eventually(lambda: decode.running == 1, "the decode leg is out")
        assert len(prefill.worker.pins) == 1
    await prefill.idle()
    assert len(prefill.worker.pins) == 0
    assert await prefill.metric("disagg_worker_kv_leases_expired_total") == 0


async def test_ap7_a_prefill_whose_client_leaves_stops_computing(real, bench, tools):
    prefill = await real(Role.PREFILL, time_scale=0.02)
    decode = Deaf(Role.DECODE)
    decode.like = prefill
    router = await bench(decode)
    row = fakes.DiscoveredWorker(uid="real", name="real", role=Role.PREFILL, host="127.0.0.1", port=prefill.worker.port)
    router.source.put(row)
    await tools.eventually(lambda: router.app.fleet.get("real") is not None, "the real worker joins")
    async with client(router, tools, prompt=workers.WORDS * 60):
        await tools.eventually(lambda: prefill.worker.driver.counts().running == 1, "the prompt is being computed")
    await tools.eventually(lambda: prefill.worker.driver.counts().cancelled == 1, "it is dropped")
    await prefill.idle()
    await tools.eventually(lambda: not router.app.releases.pending, "nothing is left under way")


async def test_ap11_the_decode_workers_verdict_is_passed_on(real, bench, tools):
    router = await bench()
    pair = [await real(role) for role in (Role.PREFILL, Role.DECODE)]
    rows = [
        fakes.DiscoveredWorker(uid=str(number), name="w", role=role, host="127.0.0.1", port=site.worker.port)
        for number, (site, role) in enumerate(zip(pair, (Role.PREFILL, Role.DECODE), strict=True))
    ]
    router.source.put(*rows)
    await tools.eventually(lambda: router.app.fleet.pools(tools.MODEL).servable, "the pair can serve")
    for fields, param in (
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {"include_usage": False}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"best_of": 3}, "best_of"),
    ):
        answer = await router.post(fields)
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, param)
    await pair[0].idle()
    assert await pair[0].metric("disagg_worker_kv_leases_expired_total") == 0
