"""KV-event codec: both forms, and what engines leave out or add."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.events import (
    END_OF_REPLAY,
    MEDIUM_DEVICE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    EventError,
    Form,
    UnknownEvent,
    decode_batch,
    decode_frames,
    encode_batch,
    encode_frames,
)

HASHES = st.one_of(st.integers(0, 2**64 - 1), st.binary(min_size=1, max_size=32))


@st.composite
def stored(draw: st.DrawFn) -> BlockStored:
    hashes = tuple(draw(st.lists(HASHES, min_size=1, max_size=4)))
    size = draw(st.integers(1, 8))
    count = size * len(hashes)
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=draw(st.none() | HASHES),
        token_ids=tuple(draw(st.lists(st.integers(0, 2**31), min_size=count, max_size=count))),
        block_size=size,
        lora_id=draw(st.none() | st.integers(0, 9)),
        medium=draw(st.none() | st.just(MEDIUM_DEVICE)),
        lora_name=draw(st.none() | st.text(max_size=4)),
    )


EVENTS = st.one_of(
    stored(),
    st.builds(BlockRemoved, st.lists(HASHES, max_size=3).map(tuple), st.none() | st.just(MEDIUM_DEVICE)),
    st.builds(AllBlocksCleared),
)


@given(st.lists(EVENTS, max_size=4), st.sampled_from(["array", "map"]), st.none() | st.integers(0, 7))
def test_both_forms_survive_a_round_trip(events: list[Event], form: Form, rank: int | None) -> None:
    batch = EventBatch(1.5, tuple(events), rank)
    assert decode_batch(encode_batch(batch, form=form)) == batch


class _EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list["_Stored | _Removed | _Cleared"]
    data_parallel_rank: int | None = None


class _Stored(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class _Removed(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None


class _Cleared(msgspec.Struct, array_like=True, omit_defaults=True, tag="AllBlocksCleared"):
    pass


def test_a_typed_subscriber_reads_our_array_form() -> None:
    batch = EventBatch(
        2.0,
        (
            BlockStored((b"h1", b"h2"), None, (1, 2, 3, 4), 2, None, MEDIUM_DEVICE),
            BlockRemoved((b"h1",), MEDIUM_DEVICE),
            AllBlocksCleared(),
        ),
        0,
    )
    read = msgspec.msgpack.decode(encode_batch(batch), type=_EventBatch)
    assert read.ts == 2.0
    assert read.data_parallel_rank == 0
    first = read.events[0]
    assert isinstance(first, _Stored)
    assert first.token_ids == [1, 2, 3, 4]
    assert isinstance(read.events[2], _Cleared)


def test_a_typed_publisher_is_read_without_its_defaults_and_with_further_fields() -> None:
    short = msgspec.msgpack.encode([1.0, [["BlockStored", [7], None, [1, 2], 2]]])
    assert decode_batch(short).events == (BlockStored((7,), None, (1, 2), 2),)
    long = msgspec.msgpack.encode([1.0, [["BlockRemoved", [7], "GPU", 0, "more"]], None, "even more"])
    assert decode_batch(long).events == (BlockRemoved((7,), "GPU"),)
    mapped = msgspec.msgpack.encode(
        {"ts": 1, "events": [{"type": "BlockRemoved", "block_hashes": [7], "group_idx": 1}]}
    )
    assert decode_batch(mapped) == EventBatch(1.0, (BlockRemoved((7,)),))


def test_an_event_of_a_kind_not_known_is_told_not_dropped() -> None:
    payload = msgspec.msgpack.encode([1.0, [["BlockMoved", 1]]])
    assert decode_batch(payload).events == (UnknownEvent("BlockMoved"),)
    with pytest.raises(ValueError, match="unknown kind"):
        encode_batch(decode_batch(payload))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("no batch", "expected an array"),
        ([1.0], "expected an array"),
        (["now", []], "ts is"),
        ([1.0, {}], "events is no array"),
        ([1.0, [], "zero"], "data_parallel_rank"),
        ([1.0, [3]], "event 0: expected an array or a map"),
        ([1.0, [[3]]], "the tag is 3"),
        ([1.0, [["BlockStored", ["x"], None, [1], 1]]], "block_hashes"),
        ([1.0, [["BlockStored", [1], "p", [1], 1]]], "parent_block_hash"),
        ([1.0, [["BlockStored", [1], None, [True], 1]]], "token_ids"),
        ([1.0, [["BlockStored", [1], None, [1], 0]]], "block_size"),
        ([1.0, [["BlockStored", [1], None, [1, 2, 3], 2]]], "3 token_ids for 1 blocks of 2"),
        ([1.0, [["BlockRemoved", [1], 5]]], "medium"),
    ],
)
def test_malformed_batches_say_what_is_wrong(raw: object, message: str) -> None:
    with pytest.raises(EventError, match=message):
        decode_batch(msgspec.msgpack.encode(raw))


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    caught: list[EventError] = []
    try:
        decode_batch(payload)
    except EventError as error:
        caught.append(error)
    assert all(map(str, caught))


def test_frames_carry_topic_and_sequence() -> None:
    frames = encode_frames(topic="kv", sequence=258, payload=b"x")
    assert frames == [b"kv", b"\0\0\0\0\0\0\x01\x02", b"x"]
    assert decode_frames(frames) == ("kv", 258, b"x")
    assert decode_frames([b"", END_OF_REPLAY, b""])[1] == -1
    with pytest.raises(ValueError, match="start at 0"):
        encode_frames(topic="", sequence=-1, payload=b"")
    with pytest.raises(EventError, match="2 frames"):
        decode_frames([b"", b""])
