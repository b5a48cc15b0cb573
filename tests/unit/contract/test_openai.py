"""Request parsing, answers and chunks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.openai import (
    DEFAULT_COMPLETION_TOKENS,
    ApiError,
    Choice,
    Endpoint,
    GenerationRequest,
    StreamWriter,
    TokenLogprob,
    Usage,
    build_models,
    build_response,
    check_text_length,
    check_token_ids,
    error_event,
    model_not_found,
    parse_request,
    resolve_max_tokens,
    response_id,
    unavailable,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def parse(body: Any, endpoint: Endpoint = Endpoint.COMPLETIONS) -> GenerationRequest:
    return parse_request(endpoint, body if isinstance(body, bytes) else json.dumps(body).encode())


def refused(body: Any, endpoint: Endpoint = Endpoint.COMPLETIONS) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(body, endpoint)
    assert caught.value.status == 400
    return caught.value


def event(data: bytes) -> Any:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    return json.loads(data[6:])


def test_defaults_of_a_completion() -> None:
    request = parse(TEXT)
    assert request.prompts == ("hi",)
    assert request.sampling.max_tokens is None
    assert request.sampling.n == 1
    assert request.sampling.temperature == 1.0
    assert not request.stream
    assert request.kv_transfer_params is None
    assert resolve_max_tokens(request, prompt_tokens=1, context_tokens=100) == DEFAULT_COMPLETION_TOKENS
    assert resolve_max_tokens(request, prompt_tokens=95, context_tokens=100) == 5


def test_a_chat_may_fill_the_context() -> None:
    request = parse(CHAT, Endpoint.CHAT)
    assert request.messages[0].content == "hi"
    assert resolve_max_tokens(request, prompt_tokens=10, context_tokens=100) == 90
    both = parse({**CHAT, "max_tokens": 7, "max_completion_tokens": 5}, Endpoint.CHAT)
    assert both.sampling.max_tokens == 5
    assert both.max_tokens_field == "max_completion_tokens"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_as_text_list_or_token_ids(prompt: Any, expected: Any) -> None:
    assert parse({"prompt": prompt}).prompts == expected


@pytest.mark.parametrize("prompt", [None, [], 5, {}, [[]], ["a", 1], [1, "a"], [1, True], [-1], [2**40], [[1], "a"]])
def test_ap11_bad_prompts_name_the_field(prompt: Any) -> None:
    assert refused({"prompt": prompt}).param == "prompt"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**60),
        ("max_tokens", True),
        ("max_tokens", "16"),
        ("max_tokens", 1.5),
        ("min_tokens", -1),
        ("n", 0),
        ("n", 1000),
        ("stop", []),
        ("stop", [""]),
        ("stop", ""),
        ("stop", [1]),
        ("stop", 7),
        ("stop", ["x"] * 65),
        ("stop_token_ids", 5),
        ("stop_token_ids", ["x"]),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("seed", 1.5),
        ("stream", "yes"),
        ("ignore_eos", 1),
        ("logprobs", 21),
        ("logprobs", -1),
        ("model", 5),
        ("stream_options", {"include_usage": True}),
        ("kv_transfer_params", []),
        ("suffix", "end"),
        ("echo", True),
        ("best_of", 3),
        ("tools", [{}]),
        ("tool_choice", "required"),
        ("guided_regex", "a+"),
        ("response_format", {"type": "json_object"}),
        ("prompt_logprobs", 1),
        ("use_beam_search", True),
    ],
)
def test_ap11_bad_values_name_the_field(field: str, value: Any) -> None:
    error = refused({**TEXT, field: value})
    assert error.param == field
    assert error.message.startswith(f"{field}: ")


NULLABLE = [
    "max_tokens", "min_tokens", "n", "stop", "temperature", "top_p", "seed", "stream", "logprobs", "stream_options",
    "ignore_eos", "suffix", "echo", "best_of", "user", "kv_transfer_params", "return_token_ids",
]  # fmt: skip


def test_values_are_named_as_json_has_them() -> None:
    for body, message in (
        (b'{"prompt": {}}', "prompt: is an object; expected text"),
        (b'{"prompt": "x", "max_tokens": true}', "max_tokens: is true; expected an integer"),
        (b'{"prompt": "x", "kv_transfer_params": []}', "kv_transfer_params: is an array; expected an object"),
    ):
        with pytest.raises(ApiError, match=f"^{message}"):
            parse(body)


@pytest.mark.parametrize("field", NULLABLE)
def test_ap11_null_means_the_default(field: str) -> None:
    assert parse({**TEXT, field: None}) == parse(TEXT)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
    ],
)
def test_ap11_bad_messages_name_the_place(messages: Any, param: str) -> None:
    assert refused({"messages": messages}, Endpoint.CHAT).param == param


def test_text_parts_are_joined_and_an_assistant_may_be_silent() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    request = parse({"messages": messages}, Endpoint.CHAT)
    assert [message.content for message in request.messages] == ["ab", ""]


def test_ap11_a_text_that_is_too_long_in_any_case_is_refused_unread() -> None:
    request = parse_request(Endpoint.COMPLETIONS, b'{"prompt": "x"}')
    check_text_length(request, characters=1399, longest_token_characters=14, context_tokens=100)
    check_text_length(request, characters=10**9, longest_token_characters=0, context_tokens=100)
    with pytest.raises(ApiError, match=r"^prompt: 1400 characters, .* the context holds 100") as caught:
        check_text_length(request, characters=1400, longest_token_characters=14, context_tokens=100)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


def test_ap11_the_prompt_is_checked_before_max_tokens() -> None:
    request = parse({**TEXT, "max_tokens": 10})
    with pytest.raises(ApiError, match="prompt: 200 tokens") as caught:
        resolve_max_tokens(request, prompt_tokens=200, context_tokens=100)
    assert caught.value.param == "prompt"
    with pytest.raises(ApiError, match="max_tokens: 10 is too large") as caught:
        resolve_max_tokens(request, prompt_tokens=95, context_tokens=100)
    assert caught.value.param == "max_tokens"
    with pytest.raises(ApiError, match="prompt: is empty"):
        resolve_max_tokens(request, prompt_tokens=0, context_tokens=100)
    assert resolve_max_tokens(request, prompt_tokens=90, context_tokens=100) == 10


def test_min_tokens_within_bounds() -> None:
    assert refused({**TEXT, "min_tokens": 5, "max_tokens": 4}).param == "min_tokens"
    request = parse({**TEXT, "min_tokens": 50})
    assert resolve_max_tokens(request, prompt_tokens=1, context_tokens=100) == 50
    with pytest.raises(ApiError, match="min_tokens: 50"):
        resolve_max_tokens(request, prompt_tokens=60, context_tokens=100)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"nul", b'{"prompt": "\xff"}', b"[" * 5000])
def test_ap11_a_body_that_is_no_object_is_400(raw: bytes) -> None:
    assert refused(raw).code == "invalid_json"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*NULLABLE, "prompt", "messages", "model", "tools", "response_format", "stop_token_ids"])


@given(st.dictionaries(FIELDS, JSON, max_size=6), st.sampled_from(list(Endpoint)))
def test_ap11_no_body_raises_anything_but_a_named_400(body: dict[str, Any], endpoint: Endpoint) -> None:
    caught: list[ApiError] = []
    try:
        parse(body, endpoint)
    except ApiError as error:
        caught.append(error)
    assert all(error.status == 400 and error.param for error in caught)


def test_unknown_fields_are_accepted_and_transfer_parameters_kept() -> None:
    params = {"do_remote_decode": True, "remote_host": None}
    request = parse({**TEXT, "frequency_penalty": 1, "kv_transfer_params": params, "disagg_resumed_tokens": 3})
    assert request.kv_transfer_params == params
    assert request.resumed_tokens == 3


def test_token_ids_outside_the_vocabulary() -> None:
    check_token_ids((1, 2), vocabulary_size=3)
    with pytest.raises(ApiError, match="token id 3 is outside"):
        check_token_ids((3,), vocabulary_size=3)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [(None, False), ({}, False), ({"include_usage": None}, False), ({"include_usage": True}, True)],
)
def test_ap4_usage_only_when_asked_for(options: Any, wanted: bool) -> None:
    request = parse({**TEXT, "stream": True, "stream_options": options})
    assert request.include_usage is wanted
    error = refused({**TEXT, "stream": True, "stream_options": {"include_usage": 1}})
    assert error.param == "stream_options.include_usage"


def test_ap4_stream_options_need_a_stream_except_in_a_prefill_leg() -> None:
    options = {"stream_options": {"include_usage": True}}
    assert refused({**TEXT, **options, "kv_transfer_params": {"do_remote_prefill": True}}).param == "stream_options"
    assert parse({**TEXT, **options, "kv_transfer_params": {"do_remote_decode": True}}).include_usage


def test_ap4_chunks_carry_null_usage_and_one_last_chunk_the_totals() -> None:
    writer = StreamWriter(Endpoint.CHAT, identity="i", created=1, model="m", include_usage=True)
    assert event(writer.opening(0))["usage"] is None
    assert event(writer.chunk(0, "a"))["usage"] is None
    last = event(writer.usage(Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1)))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 5
    silent = StreamWriter(Endpoint.CHAT, identity="i", created=1, model="m")
    assert "usage" not in event(silent.chunk(0, "a"))


def test_chunks_of_a_chat() -> None:
    writer = StreamWriter(Endpoint.CHAT, identity="i", created=1, model="m")
    first = event(writer.opening(1, prompt_token_ids=[5]))
    assert first["object"] == "chat.completion.chunk"
    assert first["prompt_token_ids"] == [5]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    middle = event(writer.chunk(1, 'a"\n', token_ids=[7]))["choices"][0]
    assert middle == {
        "index": 1,
        "delta": {"content": 'a"\n'},
        "logprobs": None,
        "finish_reason": None,
        "token_ids": [7],
    }
    end = event(writer.chunk(1, "", finish_reason="stop", stop_reason="x"))["choices"][0]
    assert end["delta"] == {}
    assert end["finish_reason"] == "stop"
    assert end["stop_reason"] == "x"


def test_chunks_of_a_completion_with_logprobs() -> None:
    writer = StreamWriter(Endpoint.COMPLETIONS, identity="i", created=1, model="m")
    assert writer.opening(0) == b""
    assert event(writer.opening(0, prompt_token_ids=[5]))["choices"][0]["prompt_token_ids"] == [5]
    item = TokenLogprob(text=" a", logprob=-0.5, top=((" a", -0.5), (" b", -1.0)))
    first = event(writer.chunk(0, " a", logprobs=[item]))["choices"][0]["logprobs"]
    second = event(writer.chunk(0, " a", logprobs=[item]))["choices"][0]["logprobs"]
    assert (first["text_offset"], second["text_offset"]) == ([0], [2])
    assert first["top_logprobs"] == [{" a": -0.5, " b": -1.0}]


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_whole_answers(endpoint: Endpoint) -> None:
    item = TokenLogprob(text=" a", logprob=-0.5, top=((" a", -0.5),))
    choice = Choice(index=0, text=" a", finish_reason="length", token_ids=[9], prompt_token_ids=[1, 2], logprobs=[item])
    body = json.loads(
        build_response(
            endpoint,
            identity=response_id(endpoint, "x"),
            created=1,
            model="m",
            choices=[choice],
            usage=Usage(prompt_tokens=2, completion_tokens=1),
            kv_transfer_params={"remote_port": 1},
        )
    )
    assert body["kv_transfer_params"] == {"remote_port": 1}
    assert body["usage"]["completion_tokens"] == 1
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["token_ids"] == [9]
    if endpoint is Endpoint.CHAT:
        assert body["id"] == "chatcmpl-x"
        assert body["choices"][0]["message"]["content"] == " a"
        assert body["prompt_token_ids"] == [1, 2]
        assert body["choices"][0]["logprobs"]["content"][0]["bytes"] == [32, 97]
    else:
        assert body["id"] == "cmpl-x"
        assert body["choices"][0]["text"] == " a"
        assert body["choices"][0]["prompt_token_ids"] == [1, 2]
        assert body["choices"][0]["logprobs"]["tokens"] == [" a"]


def test_ap9_error_bodies_have_the_right_class() -> None:
    unknown = model_not_found("x", known=("m",))
    assert unknown.status == 404
    assert json.loads(unknown.body())["error"]["code"] == "model_not_found"
    assert "served here: m" in unknown.message
    full = unavailable("draining")
    assert (full.status, full.type) == (503, "service_unavailable_error")
    assert full.retry_after_seconds == 1.0
    assert event(error_event(full))["error"]["message"] == "draining"


def test_model_list() -> None:
    body = json.loads(build_models(["m"], created=1, context_tokens=2048))
    assert body["data"][0]["id"] == "m"
    assert body["data"][0]["max_model_len"] == 2048
