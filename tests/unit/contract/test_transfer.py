from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.errors import DocumentError
from disagg_contract.transfer import MAX_FRAME_BYTES, PREFILL_LEG, Block, End, FrameReader, RemoteKV, encode_frame


def test_foreign_engine_needs_no_extension() -> None:
    """What vLLM's own prefill worker returns has no ``disagg`` key."""
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [1, 2],
        "remote_engine_id": "e",
        "remote_host": "h",
        "remote_port": 5600,
    }
    remote = RemoteKV.from_params(params)
    assert remote == RemoteKV(engine_id="e", block_ids=(1, 2), host="h", port=5600)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"remote_port": "5600"}, "remote_port"),
        ({"remote_block_ids": [1, "2"]}, "remote_block_ids"),
        ({"remote_block_ids": None}, "remote_block_ids"),
        ({"remote_engine_id": None}, "remote_engine_id"),
        ({"disagg": []}, None),
        ({"disagg": 3}, "disagg"),
    ],
)
def test_wrong_parameter_is_named(change: dict[str, object], field: str | None) -> None:
    params = RemoteKV(engine_id="e", block_ids=(1,), host="h", port=1).to_params() | change
    if field is None:
        assert RemoteKV.from_params(params).transfer_id == ""
        return
    with pytest.raises(DocumentError, match=f"kv_transfer_params.{field}"):
        RemoteKV.from_params(params)


def test_prefill_leg_carries_every_field_vllm_reads() -> None:
    assert set(PREFILL_LEG) == {
        "do_remote_decode",
        "do_remote_prefill",
        "remote_engine_id",
        "remote_block_ids",
        "remote_host",
        "remote_port",
    }


@given(payload=st.binary(max_size=200), digest=st.binary(min_size=16, max_size=16), flip=st.integers(0, 10_000))
def test_a_changed_block_is_not_intact(payload: bytes, digest: bytes, flip: int) -> None:
    block = Block.seal(index=3, tokens=16, digest=digest, payload=payload)
    assert block.intact
    body = bytearray(digest + payload)
    body[flip % len(body)] ^= 0x40
    assert not replace(block, digest=bytes(body[:16]), payload=bytes(body[16:])).intact
    assert not replace(block, index=4).intact


def test_oversized_and_foreign_frames_are_refused() -> None:
    with pytest.raises(DocumentError, match="at most"):
        FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    for body in (b"GET / HT", msgpack.packb([99, 1]), msgpack.packb([5]), msgpack.packb([])):
        with pytest.raises(DocumentError, match="not a frame"):
            FrameReader().feed(len(body).to_bytes(4, "big") + body)


def test_reader_keeps_a_partial_frame() -> None:
    reader = FrameReader()
    data = encode_frame(End(2))
    assert reader.feed(data[:-1]) == []
    assert reader.feed(data[-1:] + data) == [End(2), End(2)]
