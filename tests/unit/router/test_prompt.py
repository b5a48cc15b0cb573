"""Lengths and hashes that policies compare."""

import json

import pytest

from disagg_contract.chat import ChatMessage, encode_chat
from disagg_contract.hashing import block_hashes, root_digest
from disagg_contract.openai import Endpoint
from disagg_contract.tokenizer import default_tokenizer
from disagg_router.core.bodies import parse_inbound
from disagg_router.core.prompt import HASHED_BYTES, EstimatingReader, HashingReader

READER = HashingReader(default_tokenizer())
ROOT = root_digest(model="m")


def view(body, reader=READER):
    endpoint = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
    return reader.view(parse_inbound(endpoint, json.dumps({"model": "m", **body}).encode()), block_tokens=16)


def test_text_token_ids_and_chat_are_hashed_as_the_workers_do():
    text = "the quick brown fox jumps over the lazy dog " * 8
    tokens = default_tokenizer().encode(text)
    expected = block_hashes(tokens, block_tokens=16, root=ROOT)
    assert view({"prompt": text}).hashes == expected
    assert view({"prompt": [text]}).hashes == expected
    assert view({"prompt": tokens}).hashes == view({"prompt": [tokens]}).hashes == expected
    assert view({"prompt": text}).blocks == -(-len(tokens) // 16)
    messages = [{"role": "system", "content": text}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    chat = encode_chat(default_tokenizer(), [ChatMessage("system", text), ChatMessage("user", "hi")])
    assert view({"messages": messages}).hashes == block_hashes(chat, block_tokens=16, root=ROOT)


def test_rt17_a_prompt_of_megabytes_is_estimated_and_not_read():
    for body in ({"prompt": "zq" * HASHED_BYTES}, {"messages": [{"role": "user", "content": "zq" * HASHED_BYTES}]}):
        seen = view(body)
        assert not seen.hashes
        assert seen.tokens > HASHED_BYTES // 5


def test_tenants_and_models_share_no_prefix():
    body = {"prompt": list(range(64))}
    plain, salted = view(body).hashes, view({**body, "cache_salt": "a"}).hashes
    assert not set(plain) & set(salted)
    assert not set(plain) & set(view({**body, "model": "n"}).hashes)
    assert salted == view({**body, "cache_salt": "a"}).hashes


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": None},
        {"prompt": 7},
        {"prompt": []},
        {"prompt": ["a", "b"]},
        {"prompt": [1, "a"]},
        {"prompt": [-1, 2]},
        {"prompt": [2**40]},
        {"messages": "x"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": 5}]},
        {"cache_salt": 5, "prompt": ""},
        {},
    ],
)
@pytest.mark.parametrize("reader", [READER, EstimatingReader()])
def test_what_cannot_be_read_is_estimated_and_left_to_the_worker(body, reader):
    assert view(body, reader).tokens >= 1
    assert view(body, reader).blocks >= 1


def test_estimates_are_of_the_right_size():
    text = "the quick brown fox jumps over the lazy dog " * 50
    exact = len(default_tokenizer().encode(text))
    assert exact / 2 <= view({"prompt": text}, EstimatingReader()).tokens <= exact * 2
    assert view({"prompt": list(range(100))}, EstimatingReader()).tokens == 100
