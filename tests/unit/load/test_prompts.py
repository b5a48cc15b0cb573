"""Prompts: exactly as long as asked, shared where hash ids say so and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.tokenizer import default_tokenizer
from disagg_load.prompts import PromptMaker
from disagg_load.requests import TraceRequest

TOKENIZER = default_tokenizer()


def maker(seed: int = 0, block_tokens: int = 16) -> PromptMaker:
    return PromptMaker(tokenizer=TOKENIZER, seed=seed, block_tokens=block_tokens)


def request(tokens: int, *hash_ids: int) -> TraceRequest:
    return TraceRequest(arrival_seconds=0, input_tokens=tokens, output_tokens=1, hash_ids=hash_ids)


def shared(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.integers(1, 3000), st.integers(0, 100), st.booleans())
def test_a_prompt_has_exactly_its_tokens_as_ids_and_as_text(tokens: int, index: int, chained: bool) -> None:
    asked = request(tokens, *range(-(-tokens // 16))) if chained else request(tokens)
    ids = list(maker().token_ids(asked, index=index))
    assert len(ids) == tokens
    assert TOKENIZER.encode(maker().text(asked, index=index)) == ids


def test_equal_hash_ids_share_their_blocks_and_no_more() -> None:
    one = list(maker().token_ids(request(60, 1, 2, 3, 4), index=0))
    other = list(maker(seed=9).token_ids(request(48, 1, 2, 8), index=1))
    assert shared(one, other) == 32
    assert list(maker().token_ids(request(40, 1, 2, 3), index=5)) == one[:40]


def test_requests_without_hash_ids_share_nothing() -> None:
    prompts = [list(maker(seed).token_ids(request(64), index=index)) for seed in (0, 1) for index in (0, 1)]
    assert max(shared(prompts[a], prompts[b]) for a in range(4) for b in range(a)) < 4


def test_the_same_seed_and_place_give_the_same_prompt() -> None:
    assert maker().token_ids(request(64), index=3) == maker().token_ids(request(64), index=3)
    assert TOKENIZER.encode(" and so on") != maker().token_ids(request(3), index=0)


@pytest.mark.parametrize("prompt", ["Once upon a time", (5, 6, 7)])
def test_literal_prompts_are_kept(prompt: str | tuple[int, ...]) -> None:
    asked = TraceRequest(arrival_seconds=0, input_tokens=3, output_tokens=1, prompt=prompt)
    if isinstance(prompt, str):
        assert maker().text(asked, index=0) == prompt
        assert list(maker().token_ids(asked, index=0)) == TOKENIZER.encode(prompt)
    else:
        assert maker().token_ids(asked, index=0) == prompt
