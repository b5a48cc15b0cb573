"""What blocks hold and what a sequence reads from them."""

from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.hashing import block_hashes, extend_digest, root_digest
from disagg_workers.contents import BlockContent, ContentStore, SequenceView

ROOT = root_digest(model="m")
TOKENS = st.lists(st.integers(0, 2**31), min_size=1, max_size=70)


def written(tokens: list[int], cuts: list[int], *, block: int) -> tuple[ContentStore, SequenceView, list[int]]:
    """A store and a view after writing ``tokens`` in parts that end at ``cuts``."""
    store = ContentStore(block_tokens=block, root=ROOT)
    view = SequenceView(store)
    ids = list(range(100, 100 + -(-len(tokens) // block)))
    start = 0
    for cut in [*sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]:
        view.write(ids, tokens[start:cut])
        start = cut
    return store, view, ids


@given(TOKENS, st.lists(st.integers(0, 100), max_size=6), st.integers(1, 9))
def test_the_view_is_the_chained_hash_however_the_tokens_were_cut(
    tokens: list[int], cuts: list[int], block: int
) -> None:
    store, view, ids = written(tokens, cuts, block=block)
    hashes = block_hashes(tokens, block_tokens=block, root=ROOT)
    tail = tokens[len(hashes) * block :]
    last = hashes[-1] if hashes else ROOT
    assert view.digest == (extend_digest(last, tail) if tail else last)
    assert view.tokens == len(tokens)
    again = SequenceView(store)
    for count in range(1, len(tokens) + 1):
        again.read(ids, count)
        assert again.digest == view.digest_at(ids, count)
    assert again.digest == view.digest


@given(TOKENS, st.integers(1, 9), st.integers(0, 100), st.sampled_from(["prefix", "tokens", "missing", "short"]))
def test_any_wrong_block_changes_the_view(tokens: list[int], block: int, place: int, fault: str) -> None:
    store, view, ids = written(tokens, [], block=block)
    wrong = ids[place % len(ids)]
    content = store.get(wrong)
    assert content is not None
    if fault == "prefix":
        store.put(wrong, BlockContent(b"\1" * 16, content.packed))
    elif fault == "tokens":
        store.put(wrong, BlockContent(content.prefix, bytes(byte ^ 1 for byte in content.packed)))
    elif fault == "short":
        store.put(wrong, content.first(content.tokens - 1))
    else:
        del store._blocks[wrong]
    again = SequenceView(store)
    again.read(ids, len(tokens))
    assert again.digest != view.digest


def test_blocks_in_another_order_change_the_view() -> None:
    store, view, ids = written(list(range(12)), [], block=4)
    again = SequenceView(store)
    again.read([ids[1], ids[0], ids[2]], 12)
    assert again.digest != view.digest


def test_a_block_written_behind_something_else_is_noticed_while_writing() -> None:
    store, view, ids = written([1, 2, 3, 4, 5], [], block=4)
    store.put(ids[1], BlockContent(b"\2" * 16, store.get(ids[1]).packed))  # type: ignore[union-attr]
    right = view.digest
    view.write(ids, [6])
    other, expected, _ = written([1, 2, 3, 4, 5, 6], [], block=4)
    assert other.root == store.root
    assert view.digest not in (right, expected.digest)


def test_reset_reads_from_the_beginning() -> None:
    _, view, ids = written([1, 2, 3, 4, 5], [], block=4)
    whole = view.digest
    view.reset()
    assert (view.tokens, view.digest) == (0, ROOT)
    view.read(ids, 5)
    assert view.digest == whole
