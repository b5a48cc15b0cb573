"""What a client is told, and that nothing makes the router hang."""

import asyncio
import json

import pytest

from disagg_router.shell import front


async def error_of(answer):
    error = (await answer.json(content_type=None))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_ap9_unknown_model_is_404(bench, pair):
    router = await bench(*pair)
    answer = await router.post({"model": "gpt-9"})
    assert answer.status == 404
    assert (await error_of(answer))["code"] == "model_not_found"


async def test_ap9_known_model_without_worker_is_503_with_retry_after(bench, pair, tools):
    router = await bench(*pair, queue_seconds=0.05)
    router.source.remove(pair[1].uid)
    await tools.eventually(lambda: router.app.fleet.get(pair[1].uid) is None, "the decode worker leaves")
    answer = await router.post()
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert (await error_of(answer))["code"] == "no_worker"


async def test_ap9_a_request_waits_for_a_first_worker(bench, pair, tools):
    router = await bench(model=tools.MODEL)
    async with router.client.post(router.url + "/v1/completions", json={"model": "other", "prompt": "x"}) as answer:
        assert answer.status == 404, "the model is known by configuration"
    waiting = asyncio.ensure_future(router.post())

    async def queued():
        return (await router.metrics())[f'disagg_router_requests_queued{{model="{tools.MODEL}"}}'] == 1

    await tools.eventually(queued, "the request queues")
    await router.add(*pair)
    assert (await waiting).status == 200
    assert not await queued()


async def test_ap9_all_workers_at_capacity(bench, pair):
    pair[0].mode = "busy"
    router = await bench(*pair)
    answer = await router.post()
    assert answer.status == 503
    assert "retry-after" in answer.headers
    assert (await error_of(answer))["code"] == "overloaded"


async def test_more_requests_than_allowed_are_turned_away(bench, pair, tools):
    pair[1].mode = "hold"
    router = await bench(*pair, max_in_flight=1)
    first = asyncio.ensure_future(router.post())
    await tools.eventually(lambda: pair[1].running == 1, "the first request runs")
    answer = await router.post()
    assert answer.status == 503
    assert (await error_of(answer))["code"] == "overloaded"
    pair[1].go.set()
    assert (await first).status == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/embeddings", "/v1/models/", "/metrics/x", "/v1/completions/"])
async def test_unknown_paths_are_404(bench, pair, path):
    router = await bench(*pair)
    answer = await router.get(path)
    assert answer.status == 404
    assert (await error_of(answer))["code"] == "not_found"


async def test_ap9_one_model_is_shown_or_named_unknown(bench, pair, tools):
    router = await bench(*pair)
    answer = await router.get(f"/v1/models/{tools.MODEL}")
    assert (answer.status, (await answer.json())["id"]) == (200, tools.MODEL)
    answer = await router.get("/v1/models/org%2Fnone")
    error = await error_of(answer)
    assert (answer.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'org/none' does not exist" in error["message"]


async def test_wrong_methods_are_405(bench, pair):
    router = await bench(*pair)
    for method, path, allowed in (
        ("GET", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/health", "GET"),
    ):
        answer = await router.client.request(method, router.url + path)
        assert answer.status == 405
        assert answer.headers["allow"] == allowed
        assert (await error_of(answer))["code"] == "method_not_allowed"
    head = await router.client.head(router.url + "/health")
    assert head.status == 200


@pytest.mark.parametrize("body", ["", "[]", "{", '{"model": 5}', b"\xff\xfe", b'{"prompt": "\xff"}'])
async def test_ap11_what_is_no_request_is_400(bench, pair, body):
    router = await bench(*pair)
    answer = await router.post(body)
    assert answer.status == 400
    assert (await error_of(answer))["type"] == "invalid_request_error"


@pytest.mark.parametrize("leg", [0, 1])
async def test_a_workers_own_400_is_passed_through(bench, pair, leg):
    pair[leg].mode = "bad-request"
    router = await bench(*pair)
    answer = await router.post({"temperature": -1, "stream": True})
    assert answer.status == 400
    assert (await answer.json())["error"]["param"] == "temperature"
    assert router.load() == [(0, 0, 0)] * 2


async def test_bodies_are_bounded(bench, pair, tools):
    router = await bench(*pair, max_body_bytes=2000)
    answer = await router.post({"prompt": "x" * 3000})
    assert answer.status == 413
    assert "2000 bytes" in (await error_of(answer))["message"]
    async with tools.raw(router.url) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    assert (await router.post()).status == 200


async def test_a_client_that_asks_first_is_told_to_go_on(bench, pair, tools):
    router = await bench(*pair, max_body_bytes=2000)
    body = json.dumps({"model": tools.MODEL, "prompt": "x"}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    async with tools.raw(router.url) as (reader, writer):
        writer.write(head % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    async with tools.raw(router.url) as (reader, writer):
        writer.write(head % 5000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 2000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nx: " + b"y" * 9000,
        b"GET /" + b"y" * 9000,
    ],
)
async def test_heads_are_bounded(bench, pair, tools, head):
    router = await bench(*pair, max_header_bytes=8192)
    async with tools.raw(router.url) as (reader, writer):
        writer.write(head)
        data = await reader.read()
    assert data.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "junk", [b"\r\n\r\nnonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n"]
)
async def test_what_is_no_http_is_answered_and_closed(bench, pair, tools, junk):
    router = await bench(*pair)
    async with tools.raw(router.url) as (reader, writer):
        writer.write(junk)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    assert (await router.post()).status == 200


async def test_pipelined_requests_are_answered_in_order(bench, pair, tools):
    router = await bench(*pair)
    body = json.dumps({"model": tools.MODEL, "prompt": "x", "max_tokens": 2}).encode()
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-request-id: %b\r\nContent-Length: %d\r\n\r\n%b"
    async with tools.raw(router.url) as (reader, writer):
        names = [b"a", b"b", b"c", b"d"]
        writer.write(
            b"".join(post % (name, len(body), body) for name in names)
            + b"GET /health HTTP/1.1\r\nHost: x\r\nconnection: close\r\n\r\n"
        )
        data = (await reader.read()).lower()
    assert [data.index(b"x-request-id: " + name) for name in names] == sorted(
        data.index(b"x-request-id: " + n) for n in names
    )
    assert data.count(b"http/1.1 200 ok") == 5
    assert data.index(b"ready") > data.index(b"x-request-id: d")


async def test_a_request_that_never_ends_is_given_up(bench, pair, tools, monkeypatch):
    monkeypatch.setattr(front, "REQUEST_SECONDS", 0.2)
    router = await bench(*pair)
    async with tools.raw(router.url) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_an_idle_connection_is_closed(bench, pair, tools, monkeypatch):
    monkeypatch.setattr(front, "IDLE_SECONDS", 0.2)
    router = await bench(*pair)
    async with tools.raw(router.url) as (reader, _):
        assert await reader.read() == b""


async def test_an_upgrade_is_ignored(bench, pair, tools):
    router = await bench(*pair)
    body = json.dumps({"model": tools.MODEL, "prompt": "x", "max_tokens": 2}).encode()
    upgrade = b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    for start in (
        b"GET /health HTTP/1.1\r\n" + upgrade + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + upgrade + b"Content-Length: %d\r\n\r\n" % len(body) + body,
    ):
        async with tools.raw(router.url) as (reader, writer):
            writer.write(start)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
