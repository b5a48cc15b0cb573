"""Golden files of the text side: hashes, token ids, events, and both legs' bodies as they travel.

``DISAGG_WRITE_GOLDEN=1`` rewrites them; a change is a change of the protocol.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from disagg_contract import chat, hashing, openai
from disagg_contract.events import (
    MEDIUM_DEVICE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    Form,
    decode_batch,
    decode_frames,
    encode_batch,
    encode_frames,
)
from disagg_contract.tokenizer import default_tokenizer
from disagg_contract.transfer import PREFILL_LEG, RemoteKV, wants_remote_decode, wants_remote_prefill

GOLDEN = Path(__file__).parent / "golden"
TEXTS = ("The quick brown fox", " hello world", "naïve 漢字 👍", "def f(x):\n    return x + 1024\n", "")
ROOT = hashing.root_digest(model="opt-13b")
BATCH = EventBatch(
    1764424800.25,
    (
        BlockStored(
            block_hashes=tuple(hashing.block_hashes(range(8), block_tokens=4, root=ROOT)),
            parent_block_hash=ROOT,
            token_ids=tuple(range(8)),
            block_size=4,
            medium=MEDIUM_DEVICE,
        ),
        BlockRemoved((b"\x00" * 16, 2**63), MEDIUM_DEVICE),
        AllBlocksCleared(),
    ),
    0,
)


def current() -> dict[str, Any]:
    tokenizer = default_tokenizer()
    conversation = [
        chat.ChatMessage("system", "Be brief."),
        chat.ChatMessage("user", "Who are you?"),
        chat.ChatMessage("assistant", " A model."),
    ]
    forms: tuple[Form, ...] = ("array", "map")
    return {
        "hashing.json": {
            "scheme": hashing.scheme(),
            "root": ROOT.hex(),
            "root_lora_salt": hashing.root_digest(model="opt-13b", lora="a", salt="tenant").hex(),
            "blocks_of_0_to_39_by_16": [
                digest.hex() for digest in hashing.block_hashes(list(range(40)), block_tokens=16, root=ROOT)
            ],
        },
        "tokenizer.json": {
            "digest": tokenizer.digest,
            "vocabulary_size": tokenizer.vocabulary_size,
            "eos_id": tokenizer.eos_id,
            "texts": {text: tokenizer.encode(text) for text in TEXTS},
            "template_digest": chat.template_digest(),
            "conversation": chat.encode_chat(tokenizer, conversation),
        },
        "events.json": {
            form: [
                frame.hex() for frame in encode_frames(topic="kv", sequence=7, payload=encode_batch(BATCH, form=form))
            ]
            for form in forms
        },
    }


@pytest.mark.parametrize("name", sorted(current()))
def test_golden(name: str) -> None:
    path = GOLDEN / name
    text = json.dumps(current()[name], indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("DISAGG_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("form", ["array", "map"])
def test_the_reader_understands_the_golden_events(form: str) -> None:
    frames = json.loads((GOLDEN / "events.json").read_text(encoding="utf-8"))[form]
    topic, sequence, payload = decode_frames([bytes.fromhex(frame) for frame in frames])
    assert (topic, sequence) == ("kv", 7)
    assert decode_batch(payload) == BATCH


def test_the_golden_prefill_leg_is_a_request_a_worker_accepts() -> None:
    leg = json.loads((GOLDEN / "prefill_leg.json").read_text(encoding="utf-8"))
    body = leg if "prompt" in leg or "messages" in leg else {"prompt": "x", "kv_transfer_params": PREFILL_LEG}
    body.setdefault("max_tokens", 1)
    endpoint = openai.Endpoint.CHAT if "messages" in body else openai.Endpoint.COMPLETIONS
    request = openai.parse_request(endpoint, json.dumps(body).encode())
    assert wants_remote_decode(request.kv_transfer_params)
    assert not wants_remote_prefill(request.kv_transfer_params)
    assert request.sampling.max_tokens == 1


def test_the_decode_leg_carries_what_the_prefill_answer_said() -> None:
    remote = RemoteKV(
        engine_id="e", block_ids=(1, 2), host="127.0.0.1", port=1, transfer_id="t", tokens=20, block_tokens=16
    )
    answer = openai.build_response(
        openai.Endpoint.COMPLETIONS,
        identity="cmpl-1",
        created=0,
        model="m",
        choices=[openai.Choice(index=0, text="", finish_reason="length")],
        usage=openai.Usage(prompt_tokens=20, completion_tokens=1),
        kv_transfer_params=remote.to_params(),
    )
    params = json.loads(answer)["kv_transfer_params"]
    body = {"prompt": "x", "max_tokens": 5, "stream": True, "kv_transfer_params": params}
    request = openai.parse_request(openai.Endpoint.COMPLETIONS, json.dumps(body).encode())
    assert wants_remote_prefill(request.kv_transfer_params)
    assert request.kv_transfer_params is not None
    assert RemoteKV.from_params(request.kv_transfer_params) == remote
