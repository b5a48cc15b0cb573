"""The simulated model is a function of what it reads and of the seed."""

import math
from statistics import fmean, pstdev

import pytest

from disagg_contract.tokenizer import default_tokenizer
from disagg_workers.language import Language, choice_seed

TOKENIZER = default_tokenizer()


def views(count: int) -> list[bytes]:
    return [number.to_bytes(16, "little") for number in range(count)]


def test_lengths_follow_the_configured_distribution() -> None:
    language = Language(TOKENIZER, mean_tokens=200, sigma=0.4)
    lengths = [language.answer_tokens(view, seed=0) for view in views(4000)]
    assert fmean(lengths) == pytest.approx(200, rel=0.03)
    assert pstdev([math.log(length) for length in lengths]) == pytest.approx(0.4, rel=0.05)
    fixed = Language(TOKENIZER, mean_tokens=7, sigma=0)
    assert {fixed.answer_tokens(view, seed=seed) for seed, view in enumerate(views(20))} == {7}
    assert Language(TOKENIZER, mean_tokens=0.1, sigma=1).answer_tokens(b"x" * 16, seed=1) >= 1


def test_tokens_depend_on_view_seed_and_position_and_cover_the_vocabulary() -> None:
    language = Language(TOKENIZER, mean_tokens=10, sigma=0)
    drawn = [language.next_token(view, seed=1, position=5) for view in views(20_000)]
    assert set(drawn) == set(TOKENIZER.output_vocabulary)
    assert drawn == [language.next_token(view, seed=1, position=5) for view in views(20_000)]
    view = b"v" * 16
    tokens = {language.next_token(view, seed=seed, position=position) for seed in range(4) for position in range(4)}
    assert len(tokens) > 10


def test_seeds_of_choices() -> None:
    assert choice_seed(None, 0, temperature=1.0) == 0
    assert choice_seed(None, 0, temperature=1.0, default=9) == 9
    assert choice_seed(7, 0, temperature=1.0, default=9) == 7
    assert choice_seed(7, 3, temperature=0.0) == 0
    seeds = {choice_seed(seed, index, temperature=1.0) for seed in range(5) for index in range(20)}
    assert len(seeds) == 100
    assert 0 <= choice_seed(-1, 0, temperature=1.0) < 2**64


def test_logprobs_name_the_token_itself_first_or_not_but_always_once() -> None:
    language = Language(TOKENIZER, mean_tokens=10, sigma=0)
    token = TOKENIZER.output_vocabulary[3]
    for view in views(50):
        text = TOKENIZER.decode([token])
        found = language.logprob(view, token, text, position=1, alternatives=5)
        assert found.logprob < 0
        assert [name for name, _ in found.top].count(text) == 1
        assert sum(math.exp(value) for _, value in found.top) <= 1.0 + 1e-9
        assert list(found.top) == sorted(found.top, key=lambda item: -item[1])
    assert language.logprob(b"v" * 16, token, "x", position=1, alternatives=0).top == ()
