"""Bodies of the legs: no field lost, nothing of the client's passed on that must not be."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.openai import ApiError, Endpoint, parse_request
from disagg_contract.transfer import PREFILL_LEG, RemoteKV, wants_remote_decode, wants_remote_prefill
from disagg_router.core.bodies import answer_body, parse_inbound, prefill_body, read_prefill, read_usage

TRANSFER = msgspec.Raw(
    json.dumps(RemoteKV(engine_id="e", block_ids=(1, 2), host="10.0.0.6", port=5600).to_params()).encode()
)


def inbound(body: Any, endpoint: Endpoint = Endpoint.COMPLETIONS):
    return parse_inbound(endpoint, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_prefill_leg_makes_one_token_and_keeps_its_kv():
    request = inbound(
        {"model": "m", "prompt": [1, 2], "max_tokens": 64, "min_tokens": 8, "n": 3, "best_of": 3, "stream": True,
         "stream_options": {"include_usage": True}, "seed": 7, "stop": ["x"], "made_up": {"a": [1.50, None]}}
    )  # fmt: skip
    leg = json.loads(prefill_body(request))
    assert leg == {
        "model": "m", "prompt": [1, 2], "seed": 7, "stop": ["x"], "made_up": {"a": [1.5, None]},
        "max_tokens": 1, "min_tokens": 1, "stream": False, "kv_transfer_params": PREFILL_LEG,
    }  # fmt: skip
    read = parse_request(Endpoint.COMPLETIONS, prefill_body(request))
    assert read.sampling.max_tokens == 1
    assert wants_remote_decode(read.kv_transfer_params)


def test_prefill_leg_of_a_chat_replaces_both_limits():
    request = inbound({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 9})
    leg = json.loads(prefill_body(request))
    assert leg["max_tokens"] == 1
    assert "max_completion_tokens" not in leg


def test_decode_leg_is_the_original_with_the_parameters_spliced_in():
    raw = b' {"model":"m", "prompt" : "a}b",\n"max_tokens":1.0e1, "x":"\\u00e9" }\n'
    leg = answer_body(inbound(raw), TRANSFER)
    assert leg.startswith(raw.rstrip()[:-1])
    assert json.loads(leg) == {**json.loads(raw), "kv_transfer_params": json.loads(bytes(TRANSFER))}
    assert wants_remote_prefill(parse_request(Endpoint.COMPLETIONS, leg).kv_transfer_params)


def test_a_client_cannot_choose_where_the_worker_connects_to():
    request = inbound({"model": "m", "prompt": "x", "kv_transfer_params": {"remote_host": "evil", "remote_port": 1}})
    assert "kv_transfer_params" not in json.loads(answer_body(request, None))
    assert json.loads(answer_body(request, TRANSFER))["kv_transfer_params"] == json.loads(bytes(TRANSFER))
    assert json.loads(prefill_body(request))["kv_transfer_params"] == PREFILL_LEG


def test_a_single_leg_that_changes_nothing_is_the_original_bytes():
    raw = b'{"model": "m", "temperature": 1.50, "prompt": "x", "stream": false}'
    assert answer_body(inbound(raw), None) == raw


@pytest.mark.parametrize(
    ("options", "asked", "sent"),
    [
        (None, False, {"include_usage": True}),
        ({}, False, {"include_usage": True}),
        ({"include_usage": False}, False, {"include_usage": True}),
        ({"include_usage": None, "x": 1}, False, {"include_usage": True, "x": 1}),
        ({"include_usage": True}, True, {"include_usage": True}),
        ("nonsense", True, "nonsense"),
        ({"include_usage": "yes"}, True, {"include_usage": "yes"}),
    ],
)
def test_ap4_every_stream_asks_for_usage(options, asked, sent):
    body = {"model": "m", "prompt": "x", "stream": True}
    if options is not None:
        body["stream_options"] = options
    request = inbound(body)
    assert request.stream_usage is asked
    assert json.loads(answer_body(request, None))["stream_options"] == sent
    unstreamed = inbound({**body, "stream": False})
    assert answer_body(unstreamed, None) == unstreamed.raw, "the worker judges it"


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"{", b'{"a":}', b"\xff\xfe", b'{"model":"\xff"}', b'{"prompt":"\xff"}', b"[" * 5000]
)
def test_what_is_no_json_object_is_refused_with_400(raw):
    with pytest.raises(ApiError) as caught:
        inbound(raw)
    assert caught.value.status == 400


def test_a_model_that_is_no_string_is_refused_by_name():
    with pytest.raises(ApiError, match="model") as caught:
        inbound({"model": 7, "prompt": "x"})
    assert caught.value.param == "model"
    assert inbound({"prompt": "x"}).model == ""
    assert inbound({"model": None}).model == ""


@pytest.mark.parametrize(
    ("prompt", "number"),
    [("x", 1), ([1, 2, 3], 1), (["a", "b"], 2), ([[1], [2], [3]], 3), (["a"], 1), ([], 1), (None, 1), (5, 1)],
)
def test_prompts_are_counted(prompt, number):
    assert inbound({"model": "m", "prompt": prompt}).prompts == number


def test_answers_are_read():
    answer = read_prefill(b'{"kv_transfer_params":{"a":1},"usage":{"prompt_tokens":9,"x":1}}')
    assert bytes(answer.transfer) == b'{"a":1}'
    assert answer.usage.prompt_tokens == 9
    assert read_prefill(b'{"kv_transfer_params":null}').transfer is None
    assert read_prefill(b"oops") is None
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    assert read_usage(json.dumps({"usage": usage}).encode()).cached_tokens == 4
    assert read_usage(b'{"usage":null}') is None
    assert read_usage(b"oops") is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.text().filter(lambda name: name not in ("model", "stream", "kv_transfer_params", "stream_options"))


@given(fields=st.dictionaries(names, values, max_size=6), stream=st.booleans(), ascii_only=st.booleans())
def test_no_field_is_lost_in_any_leg(fields, stream, ascii_only):
    body = {"model": "m", "stream": stream, **fields}
    request = inbound(json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "replace"))
    body = json.loads(request.raw)
    added = {"stream_options": {"include_usage": True}} if stream else {}
    assert json.loads(answer_body(request, None)) == {**body, **added}
    assert json.loads(answer_body(request, TRANSFER)) == {
        **body,
        **added,
        "kv_transfer_params": json.loads(bytes(TRANSFER)),
    }
    leg = json.loads(prefill_body(request))
    changed = ("max_tokens", "min_tokens", "max_completion_tokens", "n", "best_of", "echo", "stream")
    assert {k: v for k, v in body.items() if k not in changed}.items() <= leg.items()
