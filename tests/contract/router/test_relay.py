"""What reaches the workers and what reaches the client, over real HTTP."""

import json
import socket

import openai
import pytest

from disagg_contract import headers
from disagg_contract.transfer import PREFILL_LEG


async def test_ap2_both_legs_and_one_answer(bench, pair):
    prefill, decode = pair
    router = await bench(*pair)
    answer = await router.post(
        {"seed": 7, "made_up": [1, {"x": None}]}, headers={"x-request-id": "abc", "traceparent": "00-1"}
    )
    assert answer.status == 200
    body = await answer.json()
    assert body["choices"][0]["text"] == " w0 w1 w2 w3 w4 w5 w6 w7"
    assert body["usage"]["completion_tokens"] == 8
    first, second = prefill.legs[0], decode.legs[0]
    assert first.body["kv_transfer_params"] == PREFILL_LEG
    assert (first.body["max_tokens"], first.body["stream"]) == (1, False)
    assert (second.body["max_tokens"], second.body["seed"], second.body["made_up"]) == (8, 7, [1, {"x": None}])
    assert second.body["kv_transfer_params"]["remote_engine_id"] == prefill.engine_id
    for leg in (first, second):
        assert (leg.headers["x-request-id"], leg.headers["traceparent"]) == ("abc", "00-1")
    assert answer.headers["x-request-id"] == "abc"


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_ap2_exactly_n_tokens(bench, pair, tools, tokens, stream, path):
    router = await bench(*pair)
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    answer = await router.post(
        json.dumps({"model": tools.MODEL, **prompt, "max_tokens": tokens, "stream": stream}), path=path
    )
    if stream:
        chunks = tools.events(await answer.read())
        assert chunks.pop() == "[DONE]"
        choices = [chunk["choices"][0] for chunk in chunks]
        text = "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    else:
        choice = (await answer.json())["choices"][0]
        text = choice.get("text") or choice["message"]["content"]
        assert choice["finish_reason"] == "length"
    assert text == tools.text(tokens)
    series = await router.metrics()
    assert series[f'disagg_router_output_tokens_sum{{model="{tools.MODEL}"}}'] == tokens


async def test_ap4_usage_only_for_those_who_ask(bench, pair, tools):
    router = await bench(*pair)
    for options in (None, {}, {"include_usage": False}):
        body = {"stream": True} | ({} if options is None else {"stream_options": options})
        chunks = tools.events(await (await router.post(body)).read())
        assert all("usage" not in chunk for chunk in chunks[:-1])
    chunks = tools.events(await (await router.post({"stream": True, "stream_options": {"include_usage": True}})).read())
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["completion_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in chunks[:-2])


async def test_ap10_ap12_a_stream_comes_as_it_is_made(bench, pair, tools):
    _, decode = pair
    decode.mode = "hold"
    router = await bench(*pair)
    answer = await router.post({"stream": True, "max_tokens": 200})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    first = await answer.content.readuntil(b"\n\n")
    assert b" w0" in first, "the first token is here while the second is not made yet"
    decode.go.set()
    rest = await answer.content.read()
    assert len(tools.events(first + rest)) == 201


async def test_ap10_a_slow_reader_gets_everything_and_holds_the_worker_back(bench, pair, tools):
    router = await bench(*pair)
    async with tools.raw(router.url) as (reader, writer):
        body = json.dumps({"model": tools.MODEL, "prompt": "x", "stream": True, "max_tokens": 60_000}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        connection = await _busy_upstream(router, tools)
        await tools.eventually(lambda: connection.paused, "the worker's side is paused")
        data = await _read_all(reader)
    assert data.count(b"data: {") == 60_000
    assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def _busy_upstream(router, tools):
    found = []

    def streaming():
        found[:] = [
            c for c in router.app.pool._busy if c._status == 200 and (b"cache-control", b"no-cache") in c._headers
        ]
        return bool(found)

    await tools.eventually(streaming, "the stream has begun")
    return found[0]


async def _read_all(reader):
    data = b""
    parts = []
    while not data.endswith(b"\r\n0\r\n\r\n"):
        parts.append(await reader.read(1 << 20))
        assert parts[-1], "closed before the end"
        data = b"".join(parts[-2:])
    return b"".join(parts)


async def test_a_colocated_worker_gets_one_leg(bench, tools):
    worker = tools.FakeWorker(tools.Role.WORKER)
    router = await bench(worker)
    answer = await router.post({"n": 2})
    assert [choice["index"] for choice in (await answer.json())["choices"]] == [0, 1]
    assert [leg.body for leg in worker.legs] == [
        {"model": tools.MODEL, "prompt": "hello world", "max_tokens": 8, "n": 2}
    ]


async def test_several_choices_are_streamed_and_counted(bench, pair, tools):
    router = await bench(*pair)
    chunks = tools.events(await (await router.post({"stream": True, "n": 3})).read())
    assert sum(chunk["choices"][0]["finish_reason"] is not None for chunk in chunks[:-1]) == 3
    assert "n" not in pair[0].legs[0].body
    assert pair[1].legs[0].body["n"] == 3
    assert (await router.metrics())[f'disagg_router_output_tokens_sum{{model="{tools.MODEL}"}}'] == 24


async def test_a_worker_without_usage_is_relayed_and_counted_by_chunks(bench, pair, tools):
    pair[1].with_usage = False
    router = await bench(*pair)
    chunks = tools.events(await (await router.post({"stream": True})).read())
    assert len(chunks) == 9
    assert (await router.metrics())[f'disagg_router_output_tokens_sum{{model="{tools.MODEL}"}}'] == 8


async def test_the_openai_client_needs_no_special_settings(bench, pair, tools):
    router = await bench(*pair)
    client = openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
    async with client:
        assert [model.id async for model in client.models.list()] == [tools.MODEL]
        assert (await client.models.retrieve(tools.MODEL)).id == tools.MODEL
        messages = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model=tools.MODEL, messages=messages, max_completion_tokens=5)
        assert whole.choices[0].message.content == tools.text(5)
        stream = await client.chat.completions.create(
            model=tools.MODEL, messages=messages, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == tools.text(5)
        assert chunks[-1].usage.completion_tokens == 5
        text = await client.completions.create(model=tools.MODEL, prompt="hi", max_tokens=3)
        assert text.choices[0].text == tools.text(3)
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="other", prompt="hi")
        pair[1].mode = "bad-request"
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await client.completions.create(model=tools.MODEL, prompt="hi")


async def test_timing_headers_are_for_the_router_alone(bench, pair):
    router = await bench(*pair)
    answer = await router.post()
    assert headers.TTFT_SECONDS not in answer.headers
    assert headers.TPOT_SECONDS not in answer.headers


async def test_an_http_1_0_client_gets_its_stream_without_chunks(bench, pair, tools):
    router = await bench(*pair)
    async with tools.raw(router.url) as (reader, writer):
        body = json.dumps({"model": tools.MODEL, "prompt": "x", "stream": True, "max_tokens": 3}).encode()
        writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert rest.startswith(b"data: {")
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_an_answer_too_large_to_hold_is_relayed_as_it_comes(bench, pair, tools, monkeypatch):
    monkeypatch.setattr("disagg_router.shell.call.HOLD_BYTES", 1000)
    router = await bench(*pair)
    body = await (await router.post({"max_tokens": 20_000})).json()
    assert body["choices"][0]["text"] == tools.text(20_000)


async def test_no_side_waits_for_acknowledgements(bench, pair):
    router = await bench(*pair)
    await (await router.post({"stream": True})).read()
    transports = [front._transport for front in router.app._fronts]
    transports += [connection._transport for connection in router.app.pool._address]
    assert len(transports) >= 3
    for transport in transports:
        found = transport.get_extra_info("socket")
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), "a peer whose machine died is noticed"
