"""Prefix-chained hashes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.hashing import (
    DIGEST_BYTES,
    BlockChain,
    block_hashes,
    extend_digest,
    extend_packed,
    pack_tokens,
    root_digest,
    unpack_tokens,
)

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)
ROOT = root_digest(model="m")


@given(TOKENS, st.integers(1, 20))
def test_growing_a_chain_gives_the_same_hashes(tokens: list[int], block: int) -> None:
    chain = BlockChain(block_tokens=block, root=ROOT)
    chain.extend(tokens)
    hashes = block_hashes(tokens, block_tokens=block, root=ROOT)
    assert chain.hashes == hashes
    assert chain.tokens == len(tokens)
    tail = tokens[len(hashes) * block :]
    last = hashes[-1] if hashes else ROOT
    assert chain.digest == (extend_digest(last, tail) if tail else last)


@given(TOKENS)
def test_packing_survives_a_round_trip(tokens: list[int]) -> None:
    packed = pack_tokens(tokens)
    assert len(packed) == 4 * len(tokens)
    assert unpack_tokens(packed) == tokens
    assert extend_packed(ROOT, packed) == extend_digest(ROOT, tokens)


def test_rt12_equal_blocks_after_different_prefixes_differ() -> None:
    same = list(range(16))
    first = block_hashes([1] * 16 + same, block_tokens=16, root=ROOT)
    second = block_hashes([2] * 16 + same, block_tokens=16, root=ROOT)
    assert first[1] != second[1]
    assert not set(first) & set(second)
    whole = list(range(128))
    assert block_hashes(whole, block_tokens=16, root=ROOT)[:7] == block_hashes(whole[:127], block_tokens=16, root=ROOT)


def test_namespaces_do_not_share_hashes() -> None:
    roots = [
        root_digest(model="m"),
        root_digest(model="n"),
        root_digest(model="m", lora="a"),
        root_digest(model="m", salt="a"),
        root_digest(model="m", lora=""),
        root_digest(model="ma"),
        root_digest(model="m", lora="a", salt="a"),
    ]
    assert len(set(roots)) == len(roots)
    assert all(len(root) == DIGEST_BYTES for root in roots)


@pytest.mark.parametrize(
    "build", [lambda: BlockChain(block_tokens=0, root=ROOT), lambda: block_hashes([1], block_tokens=0, root=ROOT)]
)
def test_empty_blocks_are_refused(build: object) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match="at least 1 token"):
        build()


def test_rt13_hashes_do_not_depend_on_the_process() -> None:
    script = (
        "from disagg_contract.hashing import *;"
        "print(block_hashes(list(range(40)), block_tokens=16, root=root_digest(model='m', salt='t'))[-1].hex())"
    )
    path = str(Path(sys.modules["disagg_contract"].__path__[0]).parent)
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    here = block_hashes(list(range(40)), block_tokens=16, root=root_digest(model="m", salt="t"))[-1].hex()
    assert found == {here + "\n"}
