"""Memory of words and runs gives what the contract's own functions give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.chat import ChatMessage, encode_chat
from disagg_contract.hashing import block_hashes, pack_tokens, root_digest
from disagg_contract.tokenizer import default_tokenizer
from disagg_router.core import chains
from disagg_router.core.chains import ChainMemo, RememberingTokenizer, TextPacker

TOKENIZER = default_tokenizer()
PACKER = TextPacker(TOKENIZER)
MEMO = ChainMemo()
TEXT = st.text(alphabet=st.sampled_from(" \n\t\u00a0\u2003\r'.,AbcdeXé😀1") | st.characters(), max_size=60)


@given(text=TEXT)
def test_words_from_memory_are_the_tokenizers(text):
    for _ in range(2):
        assert PACKER.pack(text) == pack_tokens(TOKENIZER.encode(text))


@given(start=TEXT, words=st.lists(st.sampled_from(["a", "bb\n", "", "c" * 30, "\u00e9"]), max_size=60), end=TEXT)
def test_chunks_from_memory_are_the_tokenizers(start, words, end):
    text = start + " ".join(words) + end
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "CHUNK_CHARACTERS", 20)
        packer = TextPacker(TOKENIZER)
        for _ in range(2):
            assert packer.pack(text) == pack_tokens(TOKENIZER.encode(text))
            assert packer.pack(text + " more") == pack_tokens(TOKENIZER.encode(text + " more"))


@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_chats_from_memory_are_the_templates(texts):
    turns = [
        ChatMessage(role, text) for role, text in zip(("system", "user", "assistant", "user"), texts, strict=False)
    ]
    assert encode_chat(RememberingTokenizer(TOKENIZER, PACKER), turns) == encode_chat(TOKENIZER, turns)


@given(
    shared=st.lists(st.integers(0, 3), max_size=200),
    tails=st.lists(st.lists(st.integers(0, 3), max_size=80), min_size=1, max_size=4),
    block_tokens=st.integers(1, 5),
    salt=st.sampled_from([None, "a"]),
)
def test_hashes_from_memory_are_the_contracts(shared, tails, block_tokens, salt):
    root = root_digest(model="m", salt=salt)
    for tail in tails:
        tokens = [*shared, *tail]
        expected = block_hashes(tokens, block_tokens=block_tokens, root=root)
        assert MEMO.hashes(pack_tokens(tokens), block_tokens=block_tokens, root=root) == expected


@pytest.mark.parametrize("limit", ["MAX_RUNS", "MAX_WORDS", "MAX_CHUNKS"])
def test_memory_is_bounded(monkeypatch, limit):
    monkeypatch.setattr(chains, limit, 10)
    memo, packer = ChainMemo(), TextPacker(TOKENIZER)
    for number in range(40):
        text = f"prompt{number} " + f"word{number} " * 900
        assert packer.pack(text) == pack_tokens(TOKENIZER.encode(text))
        memo.hashes(packer.pack(text), block_tokens=4, root=root_digest(model="m"))
        assert limit != "MAX_RUNS" or len(memo._runs) <= 10
        assert limit != "MAX_CHUNKS" or len(packer._chunks) <= 10
        assert limit != "MAX_WORDS" or len(packer._words) <= 10


def test_a_foreign_tokenizer_is_not_cut_at_spaces():
    class Foreign:
        def encode(self, text):
            return [len(text)]

    assert TextPacker(Foreign()).pack("a b c") == pack_tokens([5])
