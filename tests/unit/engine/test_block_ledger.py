"""Block ledger: reuse, eviction, roll-back, and a hypothesis model of its bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_engine.errors import DuplicateRequestError, SettingError, UnknownRequestError
from disagg_engine.kv import AllCleared, BlockLedger, BlockRemoved, BlockStored, KvEvent

BLOCK = 4


def chain(*content: int) -> tuple[tuple[int, ...], ...]:
    """Chained keys: each names everything up to its block."""
    return tuple(content[: length + 1] for length in range(len(content)))


def ledger_with(blocks: int = 8, *, events: list[KvEvent] | None = None, caching: bool = True) -> BlockLedger:
    return BlockLedger(
        capacity_tokens=blocks * BLOCK,
        block_tokens=BLOCK,
        prefix_caching=caching,
        listener=events.append if events is not None else None,
    )


def fill(ledger: BlockLedger, name: str, keys: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Open, compute and close a sequence of whole blocks; returns its physical blocks."""
    tokens = len(keys) * BLOCK
    assert ledger.open(name, tokens=tokens, room_tokens=tokens, keys=keys) is not None
    blocks = tuple(ledger.block_ids(name))
    ledger.commit(name, tokens)
    ledger.close(name)
    return blocks


def audit(ledger: BlockLedger) -> None:
    """Every block is in one state; counts, free room and key map agree."""
    snapshot = ledger.snapshot()
    total = ledger.capacity_tokens // ledger.block_tokens
    states = [*snapshot.free, *snapshot.cached, *snapshot.references]
    assert sorted(states) == list(range(total))
    assert all(count > 0 for count in snapshot.references.values())
    assert ledger.used_tokens == len(snapshot.references) * ledger.block_tokens
    assert ledger.free_tokens == (len(snapshot.free) + len(snapshot.cached)) * ledger.block_tokens
    assert len(set(snapshot.keys.values())) == len(snapshot.keys), "a block has one key"
    assert set(snapshot.cached) <= set(snapshot.keys.values())
    assert not set(snapshot.free) & set(snapshot.keys.values()), "a free block's old key must not find it"


def test_equal_prefix_shares_blocks_and_its_room_counts_once() -> None:
    ledger = ledger_with()
    assert ledger.open("a", tokens=12, room_tokens=12, keys=chain(1, 2, 3)) == 0
    ledger.commit("a", 12)
    assert ledger.open("b", tokens=12, room_tokens=12, keys=chain(1, 2, 9)) == 8
    assert ledger.block_ids("b")[:2] == ledger.block_ids("a")[:2]
    assert ledger.used_tokens == 4 * BLOCK
    ledger.close("a")
    assert ledger.used_tokens == 3 * BLOCK
    audit(ledger)


def test_nothing_is_found_before_it_is_computed() -> None:
    ledger = ledger_with()
    ledger.open("a", tokens=8, room_tokens=8, keys=chain(1, 2))
    assert ledger.match(chain(1, 2, 3), 12) == 0
    ledger.commit("a", 7)
    assert ledger.match(chain(1, 2, 3), 12) == 4
    ledger.commit("a", 8)
    assert ledger.match(chain(1, 2, 3), 12) == 8


def test_wb6_full_hit_leaves_at_least_one_token() -> None:
    ledger = ledger_with()
    fill(ledger, "a", chain(1, 2, 3, 4))
    assert ledger.match(chain(1, 2, 3, 4), 16) == 12
    assert ledger.match(chain(1, 2, 3, 4), 17) == 16


def test_keys_that_come_later_make_blocks_findable() -> None:
    ledger = ledger_with()
    ledger.open("a", tokens=4, room_tokens=4, keys=chain(1))
    ledger.commit("a", 4)
    assert ledger.grow("a", 8)
    ledger.add_keys("a", chain(1, 2)[1:])
    assert ledger.match(chain(1, 2), 9) == 4
    ledger.commit("a", 8)
    assert ledger.match(chain(1, 2), 9) == 8


def test_least_recently_held_goes_first_and_ends_before_beginnings() -> None:
    events: list[KvEvent] = []
    ledger = ledger_with(6, events=events)
    fill(ledger, "a", chain(1, 2, 3))
    fill(ledger, "b", chain(7, 8, 9))
    assert ledger.open("a2", tokens=9, room_tokens=9, keys=chain(1, 2)) == 8
    ledger.close("a2")
    ledger.open("new", tokens=8, room_tokens=8)
    removed = [key for event in events if isinstance(event, BlockRemoved) for key in event.keys]
    assert removed == [(1, 2, 3), (7, 8, 9)]
    audit(ledger)


def test_events_tell_runs_with_parents() -> None:
    events: list[KvEvent] = []
    ledger = ledger_with(events=events)
    first = fill(ledger, "a", chain(1, 2))
    second = fill(ledger, "b", chain(1, 2, 3))
    ledger.clear_cache()
    assert events == [
        BlockStored(request_id="a", keys=chain(1, 2), block_ids=first, parent_key=None, first_block=0),
        BlockStored(request_id="b", keys=chain(1, 2, 3)[2:], block_ids=second[2:], parent_key=(1, 2), first_block=2),
        AllCleared(),
    ]
    assert ledger.match(chain(1, 2), 9) == 0
    audit(ledger)


def test_blocks_held_across_a_reset_are_told_again() -> None:
    events: list[KvEvent] = []
    ledger = ledger_with(events=events)
    ledger.open("a", tokens=8, room_tokens=12, keys=chain(1, 2, 3))
    ledger.commit("a", 8)
    ledger.clear_cache()
    ledger.commit("a", 12)
    assert isinstance(events[-1], BlockStored)
    assert events[-1].keys == chain(1, 2, 3)
    assert events[-1].parent_key is None
    audit(ledger)


def test_same_content_computed_twice_stays_private() -> None:
    events: list[KvEvent] = []
    ledger = ledger_with(events=events)
    for name in ("a", "b"):
        ledger.open(name, tokens=8, room_tokens=8, keys=chain(1, 2))
    ledger.commit("a", 8)
    ledger.commit("b", 8)
    assert len(events) == 1
    ledger.close("b")
    assert len(ledger.snapshot().free) == 6
    audit(ledger)


def test_caching_off_reuses_and_tells_nothing() -> None:
    events: list[KvEvent] = []
    ledger = ledger_with(events=events, caching=False)
    fill(ledger, "a", chain(1, 2))
    assert ledger.match(chain(1, 2), 9) == 0
    assert events == []


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
@pytest.mark.parametrize("operation", ["open", "grow"])
def test_wb4_failed_allocation_gives_everything_back(fails_at: int, operation: str) -> None:
    class Faulty(BlockLedger):
        calls = 0
        armed = False

        def _take(self, blocks: list[int], count: int) -> None:
            for _ in range(count):
                if self.armed:
                    self.calls += 1
                    if self.calls == fails_at:
                        raise OSError("injected")
                super()._take(blocks, 1)

    ledger = Faulty(capacity_tokens=8 * BLOCK, block_tokens=BLOCK)
    fill(ledger, "old", chain(1, 2))
    ledger.open("held", tokens=4, room_tokens=4)
    free, used = ledger.free_tokens, ledger.used_tokens
    ledger.armed = True
    attempts = {
        "open": lambda: ledger.open("new", tokens=24, room_tokens=24, keys=chain(1, 2, 3)),
        "grow": lambda: ledger.grow("held", 5 * BLOCK),
    }
    with pytest.raises(OSError, match="injected"):
        attempts[operation]()
    assert (ledger.free_tokens, ledger.used_tokens) == (free, used)
    audit(ledger)
    ledger.armed = False
    assert ledger.open("new", tokens=24, room_tokens=24, keys=chain(1, 2, 3)) is not None


def test_wb4_refused_allocation_changes_nothing() -> None:
    events: list[KvEvent] = []
    ledger = ledger_with(4, events=events)
    fill(ledger, "old", chain(1, 2))
    ledger.open("held", tokens=8, room_tokens=8)
    before = ledger.snapshot()
    events.clear()
    assert ledger.open("new", tokens=12, room_tokens=12, keys=chain(1, 5, 6)) is None
    assert ledger.open("big", tokens=16, room_tokens=16, keys=chain(1, 2, 3, 4)) is None
    assert not ledger.grow("held", 5 * BLOCK)
    assert ledger.snapshot() == before
    assert events == []


def test_kv7_held_blocks_are_never_evicted() -> None:
    ledger = ledger_with(4)
    ledger.open("pinned", tokens=8, room_tokens=8, keys=chain(1, 2))
    ledger.commit("pinned", 8)
    pinned = ledger.block_ids("pinned")
    for round_ in range(20):
        fill(ledger, f"flood{round_}", chain(100 + round_, 200 + round_))
        assert ledger.open("third", tokens=12, room_tokens=12) is None
    assert ledger.block_ids("pinned") == pinned
    assert ledger.match(chain(1, 2), 9) == 8


def test_misuse_is_named() -> None:
    ledger = ledger_with()
    ledger.open("a", tokens=4, room_tokens=4)
    with pytest.raises(DuplicateRequestError, match="'a'"):
        ledger.open("a", tokens=4, room_tokens=4)
    with pytest.raises(UnknownRequestError, match="'b'"):
        ledger.close("b")
    with pytest.raises(SettingError, match="tokens is 5"):
        ledger.commit("a", 5)
    with pytest.raises(SettingError, match="capacity_tokens"):
        BlockLedger(capacity_tokens=3, block_tokens=4)


@dataclass
class Open:
    """An open sequence of the model: its keys, known tokens, and how many are computed."""

    keys: tuple[tuple[int, ...], ...]
    tokens: int
    done: int


contents = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@given(
    st.lists(
        st.tuples(st.sampled_from(["open", "grow", "commit", "close", "clear"]), st.integers(0, 3), contents),
        max_size=60,
    )
)
def test_wb10_bookkeeping_against_a_model(steps: list[tuple[str, int, list[int]]]) -> None:
    """Random traffic; a parallel map of what each block really contains must agree with every key and every hit."""
    events: list[KvEvent] = []
    ledger = ledger_with(7, events=events)
    content_of: dict[int, tuple[int, ...]] = {}  # physical block → prefix whose KV it holds
    live: dict[str, Open] = {}
    findable: dict[object, int] = {}
    for action, who, content in steps:
        name = f"s{who}"
        if action == "open" and name not in live:
            keys = chain(*content)
            tokens = len(content) * BLOCK + who  # a partial last block, or none
            expected_hit = ledger.match(keys, tokens)
            cached = ledger.open(name, tokens=tokens, room_tokens=tokens, keys=keys)
            if cached is not None:
                assert cached == expected_hit < tokens
                blocks = ledger.block_ids(name)
                for index in range(cached // BLOCK):
                    assert content_of[blocks[index]] == keys[index], "a hit must hold that very prefix"
                live[name] = Open(keys=keys, tokens=tokens, done=cached)
        elif name in live and action == "commit":
            state = live[name]
            blocks = ledger.block_ids(name)
            for index in range(state.done // BLOCK, min(len(state.keys), state.tokens // BLOCK)):
                assert ledger.snapshot().references[blocks[index]] == 1, "nobody writes a shared block"
                content_of[blocks[index]] = state.keys[index]
            state.done = state.tokens
            ledger.commit(name, state.tokens)
        elif name in live and action == "grow":
            ledger.grow(name, live[name].tokens + BLOCK)
        elif name in live and action == "close":
            ledger.close(name)
            del live[name]
        elif action == "clear":
            ledger.clear_cache()
        for event in events:
            if isinstance(event, BlockStored):
                findable.update(zip(event.keys, event.block_ids, strict=True))
            elif isinstance(event, BlockRemoved):
                for key in event.keys:
                    del findable[key]
            else:
                findable.clear()
        events.clear()
        audit(ledger)
        snapshot = ledger.snapshot()
        assert snapshot.keys == findable, "a listener knows exactly what can be found"
        assert all(content_of[block] == key for key, block in snapshot.keys.items())
    for name in live:
        ledger.close(name)
    assert ledger.used_tokens == 0
