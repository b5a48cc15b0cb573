"""The approximate prefix index against a naive one."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.hashing import block_hashes, root_digest
from disagg_router.core.fleet import WorkerKey
from disagg_router.core.index import SPARE_HASHES, PrefixIndex

ROOT = root_digest(model="m")
A, B = WorkerKey("a", "1"), WorkerKey("b", "1")


def chain(tokens, root=ROOT):
    return block_hashes(tokens, block_tokens=4, root=root)


def test_rt12_only_the_longest_prefix_counts():
    index = PrefixIndex()
    prompt = chain(range(32))
    index.record(A, prompt, capacity_blocks=0)
    assert index.overlap(A, prompt) == 8
    assert index.overlap(B, prompt) == 0
    assert index.overlap(A, chain([*range(12), 99, *range(13, 32)])) == 3
    assert index.overlap(A, chain([99, *range(1, 32)])) == 0
    assert index.overlap(A, chain(range(32), root=root_digest(model="m", salt="tenant"))) == 0
    assert index.overlap(A, []) == 0


def test_rt14_nothing_outlives_the_process():
    index = PrefixIndex()
    index.record(A, chain(range(32)), capacity_blocks=0)
    index.forget(A)
    index.forget(A)
    assert index.overlap(A, chain(range(32))) == 0
    assert index.overlap(WorkerKey("a", "2"), chain(range(32))) == 0
    assert len(index) == 0


def test_no_more_is_remembered_than_the_worker_has_room_for():
    index = PrefixIndex(max_blocks=100)
    for start in range(0, 1000, 40):
        index.record(A, chain(range(start, start + 40)), capacity_blocks=25)
        index.record(B, chain(range(start, start + 40)), capacity_blocks=0)
    assert index.blocks(A) == 25
    assert index.blocks(B) == 100
    assert index.overlap(A, chain(range(960, 1000))) == 10, "the newest is still there"


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=30),
    capacity=st.integers(1, 12),
    asked=st.lists(st.integers(0, 2), max_size=40),
)
def test_what_is_held_is_closed_under_prefixes(prompts, capacity, asked):
    index = PrefixIndex()
    recorded = set()
    for prompt in prompts:
        hashes = chain(prompt)
        index.record(A, hashes, capacity_blocks=capacity)
        recorded.update(hashes)
        assert index.blocks(A) <= capacity
        assert index.overlap(A, hashes) == min(len(hashes), capacity), "what was just sent is held from its root on"
    for prompt in [*prompts, asked]:
        hashes = chain(prompt)
        overlap = index.overlap(A, hashes)
        held = index._held[A].stamps if A in index._held else {}
        assert [block in held for block in hashes] == [True] * overlap + [False] * (len(hashes) - overlap)
        assert set(hashes[:overlap]) <= recorded


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), max_size=24), max_size=60),
    capacity=st.integers(1, 12),
)
def test_the_least_recently_sent_goes_first_and_of_a_prompt_its_end(prompts, capacity):
    index = PrefixIndex()
    order = OrderedDict()
    for prompt in prompts:
        hashes = chain(prompt)
        known = sum(block in order for block in hashes)
        assert index.overlaps([A, B], hashes) == [known, 0]
        assert index.record(A, hashes, capacity_blocks=capacity) == known
        for block in reversed(hashes):
            order[block] = None
            order.move_to_end(block)
        while len(order) > capacity:
            order.popitem(last=False)
        assert (index._held[A].stamps.keys() if A in index._held else set()) == order.keys()


def test_a_prompt_sent_again_and_again_does_not_pile_up():
    index = PrefixIndex()
    prompt = chain(range(64))
    for _ in range(1000):
        index.record(A, prompt, capacity_blocks=0)
    assert index.blocks(A) == len(index) == 16
    assert index._held[A]._listed <= 2 * 16 + SPARE_HASHES + 16
    index.record(A, chain(range(100, 132)), capacity_blocks=20)
    assert index.overlap(A, prompt) == 12, "the end of the older prompt went"
