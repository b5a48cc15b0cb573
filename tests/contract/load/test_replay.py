"""The replay client against a real HTTP server: the answers it accepts, and those it must not take for good ones."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from disagg_contract.tokenizer import default_tokenizer
from disagg_load.errors import ClientError
from disagg_load.records import Outcome, RequestRecord
from disagg_load.requests import TraceRequest, Workload
from disagg_load.shell.replay import PromptKind, ReplayOptions, ReplayResult, replay


@dataclass
class Watcher:
    sent_indices: list[int] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)

    def sent(self, index: int) -> None:
        self.sent_indices.append(index)

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)


def workload(count: int = 1, *, output_tokens: int = 5, gap_seconds: float = 0.0, **fields: Any) -> Workload:
    requests = tuple(
        TraceRequest(arrival_seconds=index * gap_seconds, input_tokens=30, output_tokens=output_tokens, **fields)
        for index in range(count)
    )
    return Workload(name="test", requests=requests)


async def run(url: str, load: Workload, *, stop: asyncio.Event | None = None, **options: Any) -> ReplayResult:
    return await replay(
        load,
        ReplayOptions(url=url, late_after_seconds=30, **options),
        tokenizer=default_tokenizer(),
        observer=options.pop("observer", Watcher()),
        stop=stop or asyncio.Event(),
    )


async def only(url: str, **options: Any) -> RequestRecord:
    result = await run(url, workload(), **options)
    (record,) = result.records
    return record


async def test_a_good_answer_has_all_times(server: Any) -> None:
    record = await only(server.url)
    assert record.outcome is Outcome.COMPLETED
    assert record.tokens == 5
    assert len(record.gaps_seconds) == 4
    assert record.ttft_seconds is not None
    assert 0 < record.ttft_seconds <= record.finished_seconds
    assert not record.late


async def test_the_request_asks_for_exactly_its_tokens(server: Any) -> None:
    await only(server.url)
    (body,) = server.bodies
    assert body["model"] == "opt-13b"
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (5, 5, True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert len(body["prompt"]) == 30
    assert server.headers[0]["X-Request-Id"] == "replay-0-0"


async def test_text_prompts_encode_to_the_same_tokens(server: Any) -> None:
    await only(server.url)
    await only(server.url, prompts=PromptKind.TEXT)
    ids, text = (body["prompt"] for body in server.bodies)
    assert default_tokenizer().encode(text) == ids


async def test_a_literal_text_prompt_is_sent_as_it_is(server: Any) -> None:
    await run(server.url, workload(prompt="Once upon a time"))
    assert server.bodies[0]["prompt"] == "Once upon a time"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_events_may_be_cut_anywhere(server: Any, size: int) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        text = json.dumps({"choices": [{"text": " wörd", "finish_reason": None}]}, ensure_ascii=False)
        end = json.dumps({"choices": [{"text": "", "finish_reason": "length"}]})
        stream = (": hello\r\n\r\n" + f"data: {text}\r\n\r\n" * 5 + f"data: {end}\n\ndata: [DONE]\n\n").encode()
        for start in range(0, len(stream), size):
            await exchange.write(stream[start : start + size])

    server.answer = answer
    record = await only(server.url)
    assert (record.outcome, record.tokens, record.message) == (Outcome.COMPLETED, 5, "")


async def test_fewer_tokens_than_asked_are_a_truncation(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        await exchange.token()
        await exchange.close(1, "stop")

    server.answer = answer
    record = await only(server.url)
    assert record.outcome is Outcome.TRUNCATED
    assert record.message == "1 of 5 tokens (stop)"


async def test_ap2_the_servers_token_count_is_believed_before_events(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        await exchange.token(" two words")
        await exchange.token(" and three more")
        await exchange.close(5)

    server.answer = answer
    record = await only(server.url)
    assert (record.outcome, record.tokens) == (Outcome.COMPLETED, 5)


async def test_ap3_an_error_event_is_an_error(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        await exchange.token()
        await exchange.event({"error": {"message": "the worker died", "type": "server_error"}})

    server.answer = answer
    record = await only(server.url)
    assert record.outcome is Outcome.BROKEN
    assert record.message == "error event: the worker died"


async def test_ap3_an_end_without_finish_reason_is_an_error(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        for _ in range(5):
            await exchange.token()
        await exchange.write(b"data: [DONE]\n\n")

    server.answer = answer
    record = await only(server.url)
    assert record.outcome is Outcome.BROKEN
    assert "finish reason" in record.message


async def test_ap3_a_missing_end_marker_is_an_error(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        for _ in range(5):
            await exchange.token()
        await exchange.event({"choices": [{"text": "", "finish_reason": "length"}]})

    server.answer = answer
    assert (await only(server.url)).message == "the stream ended without [DONE]"


async def test_a_connection_lost_in_the_answer_is_an_error(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        await exchange.token()
        await asyncio.sleep(0.02)
        exchange.drop()

    server.answer = answer
    record = await only(server.url)
    assert record.outcome is Outcome.BROKEN
    assert "connection was lost" in record.message


async def test_an_unreadable_event_is_an_error(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        await exchange.write(b"data: {nonsense\n\n")

    server.answer = answer
    record = await only(server.url)
    assert record.outcome is Outcome.BROKEN
    assert "unreadable event" in record.message


async def test_ap9_a_refused_request_carries_the_servers_message(server: Any) -> None:
    server.status = 503
    record = await only(server.url)
    assert record.outcome is Outcome.STATUS
    assert record.message == "HTTP 503: no worker is ready"


async def test_a_server_that_never_answers_is_a_timeout_and_sees_the_client_go(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        await asyncio.sleep(3600)

    server.answer = answer
    record = await only(server.url, timeout_seconds=0.2)
    assert record.outcome is Outcome.TIMEOUT
    await asyncio.wait_for(server.gone.wait(), 30)


async def test_the_loop_is_open(server: Any) -> None:
    """All requests are at the server before the first is answered."""
    everyone = asyncio.Event()

    async def answer(exchange: Any) -> None:
        if len(server.bodies) == 20:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), 30)
        await exchange.open()
        for _ in range(5):
            await exchange.token()
        await exchange.close(5)

    server.answer = answer
    result = await run(server.url, workload(20, gap_seconds=0.002))
    assert [record.outcome for record in result.records] == [Outcome.COMPLETED] * 20


async def test_schedule_follows_rate_scale_and_time_scale(server: Any) -> None:
    result = await run(server.url, workload(5, gap_seconds=1.0), rate_scale=10, time_scale=20)
    scheduled = [record.scheduled_seconds for record in sorted(result.records, key=lambda record: record.index)]
    assert scheduled == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert all(record.sent_seconds >= record.scheduled_seconds for record in result.records)


async def test_connections_are_kept_and_bounded(server: Any) -> None:
    await run(server.url, workload(30), max_connections=3)
    assert len(server.bodies) == 30
    assert len(server.connections) <= 3


async def test_a_kept_connection_that_the_server_closed_is_replaced(server: Any) -> None:
    async def close_after(exchange: Any) -> None:
        await exchange.open()
        for _ in range(5):
            await exchange.token()
        await exchange.close(5)
        await exchange.response.write_eof()
        exchange.request.transport.close()

    server.script = [close_after]
    result = await run(server.url, workload(4, gap_seconds=0.02), max_connections=1)
    assert [record.outcome for record in result.records] == [Outcome.COMPLETED] * 4


async def test_a_request_that_waits_for_a_connection_is_late(server: Any) -> None:
    async def answer(exchange: Any) -> None:
        await exchange.open()
        await asyncio.sleep(0.15)
        for _ in range(5):
            await exchange.token()
        await exchange.close(5)

    server.answer = answer
    result = await replay(
        workload(2),
        ReplayOptions(url=server.url, max_connections=1, late_after_seconds=0.1),
        tokenizer=default_tokenizer(),
        observer=Watcher(),
        stop=asyncio.Event(),
    )
    assert [record.late for record in sorted(result.records, key=lambda record: record.index)][1] is True


async def test_stopping_keeps_what_is_done_and_marks_the_rest(server: Any) -> None:
    stop = asyncio.Event()

    async def hang(exchange: Any) -> None:
        await exchange.open()
        await exchange.token()
        stop.set()
        await asyncio.sleep(3600)

    async def good(exchange: Any) -> None:
        await exchange.open()
        for _ in range(5):
            await exchange.token()
        await exchange.close(5)

    server.script = [good, hang]
    load = workload(3, gap_seconds=0.5)
    result = await run(server.url, load, stop=stop)
    assert result.interrupted
    assert [record.outcome for record in result.records] == [Outcome.COMPLETED, Outcome.UNFINISHED]


async def test_nothing_listening_is_one_sentence(unused_tcp_port: int) -> None:
    with pytest.raises(ClientError, match=r"nothing answers at .* \(connection refused\)"):
        await run(f"http://127.0.0.1:{unused_tcp_port}", workload())


async def test_ap8_no_model_yet_is_named(server: Any) -> None:
    server.models = []
    with pytest.raises(ClientError, match="serves no model yet"):
        await run(server.url, workload())


async def test_a_wrong_model_lists_the_served_ones(server: Any) -> None:
    with pytest.raises(ClientError, match="does not serve 'gpt'; it serves opt-13b"):
        await run(server.url, workload(), model="gpt")


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port"])
async def test_a_url_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ClientError, match=r"a URL like|one like"):
        await run(url, workload())


async def test_pm8_every_request_is_recorded_once(server: Any) -> None:
    """500 requests, some of one token: one record each, and one TTFT each."""
    load = Workload(
        name="many",
        requests=tuple(
            TraceRequest(arrival_seconds=index * 0.001, input_tokens=3, output_tokens=1 + index % 3)
            for index in range(500)
        ),
    )
    result = await run(server.url, load, max_connections=64)
    assert sorted(record.index for record in result.records) == list(range(500))
    assert all(record.ttft_seconds is not None for record in result.records)
    assert sum(record.tpot_seconds is not None for record in result.records) == sum(1 for i in range(500) if i % 3)
