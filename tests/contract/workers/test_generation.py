"""What clients get: tokens, streams, usage, stop strings, refusals."""

import asyncio
import json
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from disagg_contract.labels import Role
from disagg_contract.tokenizer import default_tokenizer

WORDS = "The quick brown fox jumps over the lazy dog and then sleeps. "


@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("stream", [False, True])
async def test_ap2_exactly_n_tokens_and_the_same_text_colocated_and_disaggregated(
    start: Any, pair: Any, tokens: int, stream: bool
) -> None:
    fields = {"max_tokens": tokens, "seed": 7, "ignore_eos": True, "stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    one = await (await start()).complete(WORDS * 5, **fields)
    two = await pair.complete(WORDS * 5, **fields)
    assert one.text == two.text
    assert len(default_tokenizer().encode(one.text)) == tokens
    for reply in (one, two):
        usage = reply.events[-1]["usage"] if stream else reply.json["usage"]
        assert usage["completion_tokens"] == tokens
        reasons = reply.reasons if stream else [reply.json["choices"][0]["finish_reason"]]
        assert reasons == ["length"]
        assert not stream or reply.done


async def test_a_pair_and_a_colocated_worker_agree_to_the_natural_end(start: Any, pair: Any) -> None:
    site = await start(answer_tokens_mean=40)
    for one in (pair.prefill, pair.decode):
        one.worker.service._language._mean = 40
    for seed in range(4):
        fields = {"max_tokens": 500, "seed": seed, "return_token_ids": True}
        alone, apart = await site.complete(WORDS, **fields), await pair.complete(WORDS, **fields)
        first, second = alone.json["choices"][0], apart.json["choices"][0]
        assert first["finish_reason"] == "stop"
        assert first["token_ids"] == second["token_ids"]
        assert first["token_ids"][-1] == default_tokenizer().eos_id
        assert first["prompt_token_ids"] == default_tokenizer().encode(WORDS)


async def test_tokens_do_not_depend_on_batching_caching_or_chunks(start: Any) -> None:
    plain = await start(prefix_caching=False)
    chunked = await start(batch_policy="chunked", chunk_tokens=32)
    crowded = await start(kv_capacity_tokens=640)
    prompts = [f"{number} {WORDS * length}" for number, length in enumerate((1, 9, 9, 4, 20, 9))] + [f"1 {WORDS * 9}"]
    texts = [
        [
            reply.text
            for reply in await asyncio.gather(*(site.complete(p, max_tokens=60, ignore_eos=True) for p in prompts))
        ]
        for site in (plain, chunked, crowded)
    ]
    assert texts[0] == texts[1] == texts[2]
    assert crowded.worker.driver.counts().preemptions > 0


async def test_seeds_choices_and_temperature(start: Any) -> None:
    site = await start()
    replies = [
        await site.complete(max_tokens=8, **fields)
        for fields in ({}, {"seed": 0}, {"seed": 1}, {"seed": 1, "temperature": 0}, {"seed": 2, "temperature": 0})
    ]
    texts = [reply.text for reply in replies]
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] == texts[4] == texts[0]
    many = await site.complete([WORDS, "Another prompt"], max_tokens=8, n=3)
    assert len(many.texts) == 6
    assert many.texts[0] == texts[0]
    assert len(set(many.texts.values())) == 6
    assert many.json["usage"]["completion_tokens"] == 48
    streamed = await site.complete([WORDS, "Another prompt"], max_tokens=8, n=3, stream=True)
    assert streamed.texts == many.texts
    assert len(streamed.reasons) == 6


async def test_choices_of_a_pair_share_the_pulled_prompt(start: Any, pair: Any) -> None:
    alone = await (await start()).complete(WORDS * 8, max_tokens=8, n=3)
    apart = await pair.complete(WORDS * 8, max_tokens=8, n=3)
    assert apart.texts == alone.texts
    # Each further choice computes at most the prompt's last block.
    assert await pair.decode.metric("disagg_worker_prompt_tokens_total") <= 2 * 16


async def test_several_prompts_pass_a_pair_undivided(pair: Any) -> None:
    params = await pair.prefill.prefill([WORDS, "Another"])
    assert params is None
    reply = await pair.decode.complete([WORDS, "Another"], max_tokens=4, kv_transfer_params=params)
    assert len(reply.texts) == 2


async def test_min_tokens_ignore_eos_and_max_tokens(start: Any) -> None:
    site = await start(answer_tokens_mean=5, answer_tokens_sigma=0)
    short = await site.complete(max_tokens=50)
    assert short.json["usage"]["completion_tokens"] == 5
    assert short.json["choices"][0]["finish_reason"] == "stop"
    held = await site.complete(max_tokens=50, min_tokens=9)
    assert held.json["usage"]["completion_tokens"] == 10
    full = await site.complete(max_tokens=30, ignore_eos=True)
    assert full.json["usage"]["completion_tokens"] == 30
    assert full.json["choices"][0]["finish_reason"] == "length"


async def test_ap5_stop_strings_across_tokens(start: Any) -> None:
    site = await start()
    whole = (await site.complete(max_tokens=30, ignore_eos=True)).text
    words = whole.split(" ")
    stop = words[9][-2:] + " " + words[10][:2]
    at = whole.index(stop)
    plain = await site.complete(max_tokens=30, ignore_eos=True, stop=[stop, "never<<>>"])
    streamed = await site.complete(max_tokens=30, ignore_eos=True, stop=stop, stream=True)
    assert plain.text == streamed.text == whole[:at]
    assert plain.json["choices"][0]["finish_reason"] == "stop"
    assert plain.json["choices"][0]["stop_reason"] == stop
    sent = ""
    for event in streamed.events:
        sent += event["choices"][0]["text"]
        assert whole[:at].startswith(sent)
    missed = await site.complete(max_tokens=30, ignore_eos=True, stop=whole[-3:] + "!", stream=True)
    assert missed.text == whole
    kept = await site.complete(max_tokens=30, ignore_eos=True, stop=stop, include_stop_str_in_output=True)
    assert kept.text == whole[: at + len(stop)]
    late = await site.complete(max_tokens=30, ignore_eos=True, stop=stop, min_tokens=20)
    assert late.text == whole


async def test_stop_token_ids(start: Any) -> None:
    site = await start()
    ids = (await site.complete(max_tokens=10, return_token_ids=True)).json["choices"][0]["token_ids"]
    reply = await site.complete(max_tokens=10, stop_token_ids=[ids[4]], return_token_ids=True)
    choice = reply.json["choices"][0]
    assert choice["token_ids"] == ids[:5]
    assert choice["stop_reason"] == ids[4]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": True}])
async def test_ap4_usage_chunk(start: Any, options: Any) -> None:
    reply = await (await start()).complete(max_tokens=3, stream=True, stream_options=options)
    wanted = bool(options)
    assert len(reply.events) == 3 + wanted
    if not wanted:
        assert not any("usage" in event for event in reply.events)
        return
    assert [event["usage"] for event in reply.events[:-1]] == [None] * 3
    assert reply.events[-1]["choices"] == []
    assert reply.events[-1]["usage"]["completion_tokens"] == 3


async def test_ap12_headers_keep_proxies_from_buffering(start: Any) -> None:
    reply = await (await start()).complete(max_tokens=2, stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["X-Accel-Buffering"] == "no"
    assert "Content-Length" not in reply.headers


async def test_the_first_chunk_comes_before_the_last_is_made(start: Any) -> None:
    site = await start(time_scale=5.0)
    body = {"prompt": WORDS, "max_tokens": 60, "ignore_eos": True, "stream": True}
    async with site.session.post(site.url + "/v1/completions", json=body) as response:
        first = await response.content.readline()
        assert first.startswith(b"data: ")
        assert site.worker.driver.counts().running == 1
        rest = await response.read()
    assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"stop": []}, "stop"),
        ({"prompt": "word " * 3000, "max_tokens": 5}, "prompt"),
        ({"prompt": ["short", "zq" * 400_000], "max_tokens": 5}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"disagg_resumed_tokens": 10**4}, "disagg_resumed_tokens"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"logprobs": 50}, "logprobs"),
    ],
)
async def test_ap11_refusals_name_the_field(start: Any, fields: dict[str, Any], param: str) -> None:
    site = await start()
    reply = await site.complete(**{"prompt": WORDS, **fields})
    assert reply.status == 400
    assert reply.json["error"]["param"] == param
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert (await site.complete(max_tokens=None)).json["usage"]["completion_tokens"] == 16


async def test_ap9_unknown_models_paths_and_methods(start: Any) -> None:
    site = await start(served_model_name="chat")
    unknown = await site.complete(model="gpt")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")
    assert (await site.complete(model="chat", max_tokens=1)).json["model"] == "chat"
    assert (await site.complete(model="opt-13b", max_tokens=1)).status == 200
    for method, path, status, code in (
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/nowhere", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/models/gpt", 404, "model_not_found"),
    ):
        reply = await site.send(method, path)
        assert (reply.status, reply.json["error"]["code"]) == (status, code)
        assert reply.json["error"]["message"]
        assert status != 405 or reply.headers["Allow"]
    broken = await site.send("POST", "/v1/completions", data=b'{"prompt": ')
    assert (broken.status, broken.json["error"]["code"]) == (400, "invalid_json")


async def test_an_answer_begun_elsewhere_is_continued_in_kind(start: Any) -> None:
    site = await start(answer_tokens_mean=40)
    fields = {"seed": 5, "return_token_ids": True}
    whole = (await site.complete(max_tokens=300, **fields)).json["choices"][0]
    prompt = whole["prompt_token_ids"]
    for sent in (1, 7, 16):
        rest = await site.complete(
            prompt + whole["token_ids"][:sent], max_tokens=300 - sent, disagg_resumed_tokens=sent, **fields
        )
        choice = rest.json["choices"][0]
        assert choice["token_ids"] == whole["token_ids"][sent:]
        assert choice["finish_reason"] == whole["finish_reason"] == "stop"


async def test_a_given_tokenizer(start: Any, tmp_path: Any) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([" " + WORDS] * 4, trainer)
    path = tmp_path / "tokenizer.json"
    inner.save(str(path))
    pair = [await start(role, tokenizer=str(path)) for role in (Role.WORKER, Role.PREFILL, Role.DECODE)]
    alone = await pair[0].complete(max_tokens=12, seed=1)
    params = await pair[1].prefill()
    apart = await pair[2].complete(max_tokens=12, seed=1, kv_transfer_params=params)
    assert alone.text == apart.text
    assert alone.json["usage"]["completion_tokens"] == 12
    assert alone.text.isascii()
    info = (await pair[0].send("GET", "/disagg/info")).json
    assert info["tokenizer_digest"] != default_tokenizer().digest


async def test_openai_client(start: Any) -> None:
    site = await start(served_model_name="chat-13b", answer_tokens_mean=20)
    async with AsyncOpenAI(base_url=site.url + "/v1", api_key="none") as client:
        assert [model.id async for model in client.models.list()] == ["chat-13b"]
        assert (await client.models.retrieve("chat-13b")).id == "chat-13b"
        messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
        plain = await client.chat.completions.create(model="chat-13b", messages=messages, seed=1, max_tokens=100)
        assert plain.usage is not None
        assert plain.choices[0].finish_reason == "stop"
        stream = await client.chat.completions.create(
            model="chat-13b",
            messages=messages,
            seed=1,
            max_tokens=100,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        async for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == plain.choices[0].message.content
        assert usage is not None
        assert usage.completion_tokens == plain.usage.completion_tokens
        legacy = await client.completions.create(model="chat-13b", prompt=[1, 2, 3], max_tokens=3, logprobs=2, n=2)
        assert len(legacy.choices) == 2
        assert legacy.choices[0].logprobs is not None
        assert len(legacy.choices[0].logprobs.tokens or []) == 3
        likely = await client.chat.completions.create(
            model="chat-13b", messages=messages, max_tokens=2, logprobs=True, top_logprobs=3
        )
        assert likely.choices[0].logprobs is not None
        assert len((likely.choices[0].logprobs.content or [])[0].top_logprobs) >= 1
        with pytest.raises(BadRequestError, match="max_tokens"):
            await client.completions.create(model="chat-13b", prompt="x", max_tokens=0)
        with pytest.raises(BadRequestError, match="tools"):
            await client.chat.completions.create(
                model="chat-13b", messages=messages, tools=[{"type": "function", "function": {"name": "f"}}]
            )


async def test_logprobs_are_the_same_whole_and_streamed(start: Any) -> None:
    site = await start()
    whole = (await site.complete(max_tokens=4, logprobs=2)).json["choices"][0]["logprobs"]
    events = (await site.complete(max_tokens=4, logprobs=2, stream=True)).events
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert [offset for part in parts for offset in part["text_offset"]] == whole["text_offset"]
    assert all(value < 0 for value in whole["token_logprobs"])
    assert json.dumps(parts[0]["top_logprobs"]) == json.dumps(whole["top_logprobs"][:1])
