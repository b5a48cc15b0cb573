"""KV between two workers over TCP: what goes right, and everything that can go wrong."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from disagg_contract import ports
from disagg_contract.labels import Role
from disagg_contract.transfer import Ack, Block, End, Frame, FrameReader, Pull, RemoteKV, Renew, encode_frame
from disagg_engine.batching import Request
from disagg_engine.errors import RequestTooLargeError
from disagg_workers.contents import BlockContent
from disagg_workers.errors import PullError
from disagg_workers.transfer import payload, server
from disagg_workers.transfer.client import PullClient
from tests.contract.workers.conftest import eventually

WORDS = "The quick brown fox jumps over the lazy dog and then sleeps. "
FIELDS: dict[str, Any] = {"max_tokens": 20, "seed": 2, "ignore_eos": True}
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def expected(start: Any, prompt: str = WORDS * 6) -> str:
    text: str = (await (await start()).complete(prompt, **FIELDS)).text
    return text


async def fake_peer(talk: Talk) -> tuple[asyncio.Server, int]:
    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    return listening, listening.sockets[0].getsockname()[1]


async def test_kv_travels_once_and_the_pin_is_freed(pair: Any) -> None:
    reply = await pair.complete(WORDS * 6, **FIELDS)
    assert reply.status == 200
    assert await pair.decode.metric("disagg_worker_kv_transfer_seconds_count") == 1
    assert await pair.decode.metric("disagg_worker_prompt_tokens_total") == 0
    tokens = reply.json["usage"]["prompt_tokens"]
    assert await pair.decode.metric("disagg_worker_kv_transfer_bytes_total") == tokens * 819_200
    await pair.prefill.idle()
    assert await pair.prefill.metric("disagg_worker_kv_pinned_blocks") == 0
    await pair.decode.idle()


async def test_blocks_cached_on_the_decode_side_are_not_pulled_again(pair: Any) -> None:
    first = await pair.complete(WORDS * 6, **FIELDS)
    moved = await pair.decode.metric("disagg_worker_kv_transfer_bytes_total")
    again = await pair.complete(WORDS * 6, **FIELDS)
    assert again.text == first.text
    assert await pair.decode.metric("disagg_worker_kv_transfer_bytes_total") - moved <= 16 * 819_200


async def test_the_link_takes_its_modelled_time(start: Any) -> None:
    prefill = await start(Role.PREFILL)
    slow = await start(Role.DECODE, link_bytes_per_second=1e7)
    params = [await prefill.prefill(f"{number} {WORDS * 6}") for number in range(3)]
    replies = await asyncio.gather(
        *(slow.complete(f"{n} {WORDS * 6}", **FIELDS, kv_transfer_params=p) for n, p in enumerate(params))
    )
    tokens = replies[0].json["usage"]["prompt_tokens"]
    alone = tokens * 819_200 / 1e7
    waits = sorted(float(reply.headers["x-disagg-ttft-seconds"]) for reply in replies)
    # One after the other: the last one waited for the others as well.
    assert waits[0] >= alone * 0.999
    assert waits[2] >= alone * 2.5
    assert await slow.metric("disagg_worker_kv_transfer_seconds_sum") >= alone * 4.5


async def test_a_foreign_prefill_costs_one_step(start: Any, pair: Any) -> None:
    text = await expected(start)
    params = await pair.prefill.prefill(WORDS * 6)
    params["disagg"]["logits"] = ""
    reply = await pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=params)
    assert reply.text == text
    assert await pair.decode.metric("disagg_worker_iterations_total") == FIELDS["max_tokens"]
    again = await pair.complete("Other words. " + WORDS * 6, **FIELDS)
    assert again.status == 200
    assert await pair.decode.metric("disagg_worker_iterations_total") == 2 * FIELDS["max_tokens"] - 1


async def test_a_damaged_block_is_found_and_the_prompt_prefilled_here(
    start: Any, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await expected(start)

    def damaged(*, index: int, content: BlockContent, wire_bytes: int) -> Block:
        block = payload.seal(index=index, content=content, wire_bytes=wire_bytes)
        if index != 3:
            return block
        return Block(block.index, block.tokens, block.digest, block.checksum, b"?" + block.payload[1:])

    monkeypatch.setattr(server, "seal", damaged)
    reply = await pair.complete(WORDS * 6, **FIELDS)
    assert reply.text == text
    assert await pair.decode.metric("disagg_worker_kv_transfer_failures_total") == 1
    assert await pair.decode.metric("disagg_worker_prompt_tokens_total") > 0
    await pair.prefill.idle()


async def test_a_stale_block_changes_the_text(start: Any, pair: Any) -> None:
    """Nothing is wrong with the bytes: the block is just not this prompt's. A model would write something else."""
    text = await expected(start)
    params = await pair.prefill.prefill(WORDS * 6)
    store = pair.prefill.worker.store
    ids = params["remote_block_ids"]
    right = store.get(ids[1])
    store.put(ids[1], BlockContent(b"\7" * 16, right.packed))
    reply = await pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=params)
    assert await pair.decode.metric("disagg_worker_kv_transfer_failures_total") == 0
    assert reply.text != text


async def test_a_lost_block_of_the_own_cache_changes_the_text(start: Any) -> None:
    site = await start()
    text = (await site.complete(WORDS * 6, **FIELDS)).text
    assert (await site.complete(WORDS * 6, **FIELDS)).text == text
    site.worker.store.put(0, BlockContent(site.worker.simulated.root, b"\1\0\0\0" * 16))
    assert (await site.complete(WORDS * 6, **FIELDS)).text != text


async def test_wb11_a_failed_pull_with_no_other_traffic_completes(start: Any, pair: Any) -> None:
    text = await expected(start)
    params = await pair.prefill.prefill(WORDS * 6)
    params["remote_port"] = 1
    reply = await pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=params)
    assert reply.text == text
    # About the time of a prefill, not that of a time-out.
    assert float(reply.headers["x-disagg-ttft-seconds"]) < 30
    await pair.decode.idle()


async def test_kv3_a_prefill_worker_that_dies_or_falls_silent_costs_a_prefill(start: Any, pair: Any) -> None:
    text = await expected(start)
    params = await pair.prefill.prefill(WORDS * 6)

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(encode_frame(Block.seal(index=0, tokens=16, digest=b"", payload=b""))[:20])
        writer.close()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        await reader.read()
        writer.close()

    async def no_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(encode_frame(End(0)))
        await reader.read()
        writer.close()

    for talk in (dies, silent, no_end):
        listening, port = await fake_peer(talk)
        params["remote_port"] = port
        params["disagg"]["lease_seconds"] = 1.0
        reply = await pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=params)
        assert reply.text == text
        await pair.decode.idle()
        listening.close()
        await listening.wait_closed()
    assert await pair.decode.metric("disagg_worker_kv_transfer_failures_total") == 3


async def test_kv5_a_bug_in_a_pull_fails_the_request_instead_of_hanging_it(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: PullClient, block_ids: Any, *, block_tokens: int) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(PullClient, "pull", broken)
    reply = await pair.complete(WORDS * 6, **FIELDS)
    assert (reply.status, reply.json["error"]["code"]) == (500, "kv_failed")
    await pair.decode.idle()
    assert await pair.decode.metric("disagg_worker_requests_total", outcome="failed") == 1


async def test_kv3_pins_that_nobody_asks_for_are_freed(start: Any) -> None:
    site = await start(Role.PREFILL, lease_seconds=0.2)
    await site.prefill(WORDS * 6)
    assert site.used_tokens > 0
    await site.idle()
    assert await site.metric("disagg_worker_kv_leases_expired_total") == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"max_tokens": 0}, 400),
        ({"max_tokens": 10**6}, 400),
        ({"n": 0}, 400),
        ({"stream": True, "stream_options": 1}, 400),
        ({"model": "another"}, 404),
    ],
)
async def test_kv3_kv_of_a_refused_decode_leg_is_given_back_at_once(
    pair: Any, fields: dict[str, Any], status: int
) -> None:
    params = await pair.prefill.prefill(WORDS * 6)
    assert pair.prefill.used_tokens > 0
    reply = await pair.decode.complete(WORDS * 6, **fields, kv_transfer_params=params)
    assert reply.status == status
    await pair.prefill.idle()
    assert await pair.prefill.metric("disagg_worker_kv_leases_expired_total") == 0


@pytest.mark.parametrize("params", [7, {}, {"do_remote_prefill": True}, {"do_remote_prefill": True, "disagg": 1}])
async def test_a_refused_request_that_names_no_kv_is_only_refused(pair: Any, params: Any) -> None:
    reply = await pair.decode.complete(WORDS, max_tokens=0, kv_transfer_params=params)
    assert reply.status == 400


async def test_kv4_one_failure_is_not_remembered(start: Any, pair: Any) -> None:
    params = await pair.prefill.prefill(WORDS * 6)
    port = params["remote_port"]
    params["remote_port"] = 1
    await pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=params)
    assert port != 1
    assert (await pair.complete("More. " + WORDS * 6, **FIELDS)).status == 200
    assert await pair.decode.metric("disagg_worker_kv_transfer_failures_total") == 1
    assert await pair.decode.metric("disagg_worker_kv_transfer_seconds_count") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_tokens": 32}, "blocks hold 32 tokens there and 16 here"),
        ({"tokens": 5}, "tokenizers or templates differ"),
    ],
)
async def test_kv5_workers_that_do_not_fit_say_so_at_once(pair: Any, change: dict[str, int], message: str) -> None:
    params = await pair.prefill.prefill(WORDS * 6)
    params["disagg"].update(change)
    begun = time.monotonic()
    reply = await pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=params)
    assert reply.status == 409
    assert message in reply.json["error"]["message"]
    assert time.monotonic() - begun < 30
    assert pair.decode.used_tokens == 0


async def test_kv5_a_restarted_engine_or_unknown_transfer_is_refused_by_name(pair: Any, caplog: Any) -> None:
    for field, value, reason in (
        ("remote_engine_id", "another", "it was restarted, its KV is gone"),
        ("transfer_id", "0" * 32, "nothing is pinned for transfer"),
    ):
        params = await pair.prefill.prefill(WORDS * 6)
        (params if field in params else params["disagg"])[field] = value
        reply = await pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=params)
        assert reply.status == 200
        assert reason in caplog.text
    assert await pair.decode.metric("disagg_worker_kv_transfer_failures_total") == 2


async def test_kv6_every_attempt_has_an_id_of_its_own_and_late_blocks_are_dropped(start: Any, pair: Any) -> None:
    text = await expected(start)
    release = asyncio.Event()
    first = await pair.prefill.prefill(WORDS * 6)
    second = await pair.prefill.prefill(WORDS * 6)
    assert first["disagg"]["transfer_id"] != second["disagg"]["transfer_id"]

    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        await release.wait()
        for index in range(len(first["remote_block_ids"])):
            content = BlockContent(b"\1" * 16, b"\2\0\0\0" * 16)
            writer.write(encode_frame(payload.seal(index=index, content=content, wire_bytes=0)))
        writer.write(encode_frame(End(len(first["remote_block_ids"]))))
        writer.close()

    listening, port = await fake_peer(stalls)
    stalled = asyncio.create_task(
        pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params={**first, "remote_port": port})
    )
    await eventually(lambda: pair.decode.worker.driver.counts().pulling == 1)
    stalled.cancel()
    await asyncio.gather(stalled, return_exceptions=True)
    await eventually(lambda: pair.decode.worker.driver.counts().pulling == 0)
    other = asyncio.create_task(pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=second))
    release.set()
    assert (await other).text == text
    assert (await pair.complete(WORDS * 6, **FIELDS)).text == text
    listening.close()
    await listening.wait_closed()


async def test_kv7_pinned_blocks_are_not_evicted_under_pressure(start: Any) -> None:
    prefill = await start(Role.PREFILL, kv_capacity_tokens=512)
    decode = await start(Role.DECODE, link_bytes_per_second=3.125e9)
    reference = await start()
    prompts = [f"{number} {WORDS * 6}" for number in range(12)]

    async def legs(prompt: str) -> Any:
        params = await prefill.prefill(prompt)
        return await decode.complete(prompt, **FIELDS, kv_transfer_params=params)

    replies = await asyncio.gather(*map(legs, prompts))
    alone = await asyncio.gather(*(reference.complete(prompt, **FIELDS) for prompt in prompts))
    assert [reply.text for reply in replies] == [reply.text for reply in alone]
    assert await decode.metric("disagg_worker_kv_transfer_failures_total") == 0
    await prefill.idle()


async def test_kv8_equal_request_ids_do_not_collide(start: Any, pair: Any) -> None:
    header = {"x-request-id": "same"}
    params = [await pair.prefill.prefill(f"{n} {WORDS}", headers=header) for n in range(2)]
    replies = await asyncio.gather(
        *(
            pair.decode.complete(f"{n} {WORDS}", **FIELDS, kv_transfer_params=p, headers=header)
            for n, p in enumerate(params)
        )
    )
    alone = await start()
    assert [r.text for r in replies] == [(await alone.complete(f"{n} {WORDS}", **FIELDS)).text for n in range(2)]
    await pair.prefill.idle()
    await pair.decode.idle()


async def test_kv11_queueing_on_the_decode_side_is_no_failure(start: Any) -> None:
    prefill = await start(Role.PREFILL, lease_seconds=0.5)
    decode = await start(Role.DECODE, max_sequences=2, time_scale=5.0)
    prompts = [f"{number} {WORDS}" for number in range(16)]
    params = [await prefill.prefill(prompt) for prompt in prompts]
    fields = {**FIELDS, "max_tokens": 60}
    replies = await asyncio.gather(
        *(decode.complete(q, **fields, kv_transfer_params=p) for q, p in zip(prompts, params, strict=True))
    )
    assert [reply.status for reply in replies] == [200] * 16
    assert await decode.metric("disagg_worker_kv_transfer_failures_total") == 0
    assert await prefill.metric("disagg_worker_kv_leases_expired_total") == 0


async def test_the_server_closes_on_nonsense_and_refuses_foreign_blocks(pair: Any) -> None:
    params = RemoteKV.from_params(await pair.prefill.prefill(WORDS * 6))

    async def talk(data: bytes) -> list[Frame]:
        reader, writer = await asyncio.open_connection(params.host, params.port)
        writer.write(data)
        writer.write_eof()
        found = FrameReader().feed(await reader.read())
        writer.close()
        return found

    assert await talk(b"GET / HTTP/1.1\r\n\r\n") == []
    assert await talk(encode_frame(End(0))) == []
    unknown = await talk(encode_frame(Renew("nobody")))
    assert "nothing is pinned" in unknown[0].message  # type: ignore[union-attr]
    pull = Pull(params.transfer_id, params.engine_id, (10**6,), 16)
    assert "not part of transfer" in (await talk(encode_frame(pull)))[0].message  # type: ignore[union-attr]
    pull = Pull(params.transfer_id, params.engine_id, params.block_ids, 8)
    assert "8 there" in (await talk(encode_frame(pull)))[0].message  # type: ignore[union-attr]
    assert await talk(encode_frame(Ack(params.transfer_id))) == []
    await pair.prefill.idle()


async def test_ap7_kv_that_nobody_will_pull_is_given_back_at_once(pair: Any) -> None:
    params = await pair.prefill.prefill(WORDS * 6)
    assert pair.prefill.used_tokens > 0
    path = f"{ports.TRANSFERS_PATH}/{params['disagg']['transfer_id']}"
    assert (await pair.prefill.send("DELETE", path)).status == 204
    assert pair.prefill.used_tokens == 0
    again = await pair.prefill.send("DELETE", path)
    assert (again.status, again.json["error"]["code"]) == (404, "transfer_not_found")
    assert await pair.prefill.metric("disagg_worker_kv_leases_expired_total") == 0
    assert await pair.prefill.metric("disagg_worker_kv_pinned_blocks") == 0


async def test_ap7_kv_can_be_given_back_to_a_worker_that_drains(pair: Any) -> None:
    params = await pair.prefill.prefill(WORDS * 6)
    await pair.prefill.send("POST", ports.DRAIN_PATH)
    path = f"{ports.TRANSFERS_PATH}/{params['disagg']['transfer_id']}"
    assert (await pair.prefill.send("DELETE", path)).status == 204
    assert (await pair.prefill.send("GET", ports.DRAIN_PATH)).json["empty"]


async def test_kv6_blocks_given_back_in_the_middle_of_a_pull_are_not_sent(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = await start(Role.PREFILL)
    monkeypatch.setattr(server, "_FLUSH_BLOCKS", 1)
    params = RemoteKV.from_params(await prefill.prefill(WORDS * 6))
    get = prefill.worker.store.get

    def given_up(block_id: int) -> Any:
        content = get(block_id)
        prefill.worker.pins.acknowledge(params.transfer_id)
        return content

    monkeypatch.setattr(prefill.worker.store, "get", given_up)
    client = PullClient(params)
    with pytest.raises(PullError, match=r"refused \(unknown-transfer\)"):
        await client.pull(params.block_ids, block_tokens=16)
    await client.close()


async def test_kv3_a_leg_that_the_engine_refuses_leaves_no_pull_behind(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: Request, *, now: float) -> None:
        raise RequestTooLargeError(request_id=request.request_id, needed_tokens=100, capacity_tokens=64)

    params = await pair.prefill.prefill(WORDS * 6)
    monkeypatch.setattr(pair.decode.worker.simulated.loop, "submit", refuse)
    reply = await pair.decode.complete(WORDS * 6, **FIELDS, kv_transfer_params=params)
    assert (reply.status, reply.json["error"]["param"]) == (400, "prompt")
    await pair.prefill.idle()
    await eventually(lambda: not any(task.get_name().startswith("kv-") for task in asyncio.all_tasks()))
