"""Pins, payloads, link, clock: the parts of a transfer without its sockets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.transfer import Block
from disagg_workers.clock import EngineClock
from disagg_workers.contents import BlockContent
from disagg_workers.errors import PullError
from disagg_workers.transfer.link import LinkModel
from disagg_workers.transfer.payload import seal, unseal
from disagg_workers.transfer.pins import PinTable


class Watch:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def released() -> list[str]:
    return []


@pytest.fixture
def pins(watch: Watch, released: list[str]) -> PinTable:
    return PinTable(lease_seconds=30.0, monotonic=watch, release=released.append)


def test_kv3_silence_frees_a_pin_and_nothing_else_does(pins: PinTable, watch: Watch, released: list[str]) -> None:
    first = pins.add(request_id="a", block_ids=(1, 2), tokens=20)
    second = pins.add(request_id="b", block_ids=(3,), tokens=5)
    assert pins.pinned_blocks == 3
    assert pins.next_deadline_seconds() == 30.0
    for _ in range(5):
        watch.seconds += 29.0
        assert pins.get(first.transfer_id) is first
        pins.expire()
    assert released == ["b"]
    assert pins.get(second.transfer_id) is None
    watch.seconds += 30.0
    assert pins.expire() == [first]
    assert (released, pins.expired_count, len(pins)) == (["b", "a"], 2, 0)
    assert pins.next_deadline_seconds() is None


def test_kv6_ids_are_fresh_and_an_acknowledgement_counts_once(pins: PinTable, released: list[str]) -> None:
    ids = {pins.add(request_id="same", block_ids=(1,), tokens=1).transfer_id for _ in range(50)}
    assert len(ids) == 50
    one = ids.pop()
    assert pins.acknowledge(one)
    assert not pins.acknowledge(one)
    assert not pins.acknowledge("never given out")
    assert released == ["same"]


CONTENTS = st.builds(
    BlockContent,
    st.binary(min_size=16, max_size=16),
    st.integers(1, 16).flatmap(lambda n: st.binary(min_size=4 * n, max_size=4 * n)),
)


@given(CONTENTS, st.integers(0, 300))
def test_a_block_survives_the_wire(content: BlockContent, wire_bytes: int) -> None:
    block = seal(index=2, content=content, wire_bytes=wire_bytes)
    assert len(block.payload) == max(wire_bytes, 16 + len(content.packed))
    assert unseal(block, index=2, block_tokens=16) == content


@given(CONTENTS, st.integers(0, 79), st.integers(1, 255))
def test_a_changed_byte_is_found(content: BlockContent, place: int, change: int) -> None:
    block = seal(index=0, content=content, wire_bytes=80)
    payload = bytearray(block.payload)
    payload[place] ^= change
    with pytest.raises(PullError, match="damaged"):
        unseal(Block(0, block.tokens, block.digest, block.checksum, bytes(payload)), index=0, block_tokens=16)


def test_a_block_whose_digest_lies_is_found_although_its_checksum_is_right() -> None:
    lying = Block.seal(index=0, tokens=1, digest=b"\0" * 16, payload=b"\1" * 20)
    with pytest.raises(PullError, match="does not match its digest"):
        unseal(lying, index=0, block_tokens=16)


def test_blocks_out_of_order_or_of_another_size_are_refused() -> None:
    block = seal(index=0, content=BlockContent(b"\0" * 16, b"\1\0\0\0" * 16), wire_bytes=0)
    with pytest.raises(PullError, match="block 0 came where block 1 was due"):
        unseal(block, index=1, block_tokens=16)
    with pytest.raises(PullError, match="blocks have 8"):
        unseal(block, index=0, block_tokens=8)


def test_transfers_follow_one_another_on_the_link() -> None:
    link = LinkModel(bytes_per_second=100.0, latency_seconds=0.5)
    assert link.reserve(200.0, now=1.0) == pytest.approx(3.5)
    assert link.reserve(100.0, now=1.0) == pytest.approx(4.5)
    assert link.reserve(100.0, now=10.0) == pytest.approx(11.5)


def test_the_clock_scales_both_ways(watch: Watch) -> None:
    clock = EngineClock(time_scale=10.0, monotonic=watch)
    assert clock.now() == 0.0
    watch.seconds += 2.0
    assert clock.now() == 20.0
    assert clock.wall_until(25.0) == pytest.approx(0.5)
    assert clock.wall_until(10.0) == pytest.approx(-1.0)
    assert clock.wall_duration(20.0) == 2.0
    assert clock.engine_duration(2.0) == 20.0
    with pytest.raises(ValueError, match="time_scale"):
        EngineClock(time_scale=0.0)
