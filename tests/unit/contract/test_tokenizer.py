"""The default tokenizer's promises, and those of a given one."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, trainers

from disagg_contract.chat import ChatMessage, encode_chat
from disagg_contract.tokenizer import (
    DefaultTokenizer,
    HuggingFaceTokenizer,
    Tokenizer,
    TokenizerUnavailableError,
    default_tokenizer,
)

TOKENIZER = default_tokenizer()
WORD_IDS = st.lists(st.sampled_from(TOKENIZER.output_vocabulary), max_size=60)


@pytest.fixture(scope="module")
def given_tokenizer_json() -> str:
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    words = " ".join(TOKENIZER.decode([token]).strip() for token in TOKENIZER.output_vocabulary[:300])
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|endoftext|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([" " + words] * 4, trainer)
    return str(inner.to_str())


@pytest.fixture(scope="module")
def given_tokenizer(given_tokenizer_json: str) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(given_tokenizer_json, name="small.json")


@given(st.text())
def test_any_text_survives_a_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_lone_surrogates_survive_too() -> None:
    text = "a\ud800b \udfff"
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(), st.sampled_from(" \t\n\r\u00a0\u3000"), st.text())
def test_cutting_before_white_space_never_changes_ids(left: str, space: str, right: str) -> None:
    assert TOKENIZER.encode(left) + TOKENIZER.encode(space + right) == TOKENIZER.encode(left + space + right)


@given(WORD_IDS)
def test_generated_words_encode_to_the_ids_they_came_from(tokens: list[int]) -> None:
    assert TOKENIZER.encode(TOKENIZER.decode(tokens)) == tokens


@given(st.text())
def test_ap6_incremental_text_equals_whole_text_and_splits_no_character(text: str) -> None:
    detokenizer = TOKENIZER.detokenizer()
    parts = [detokenizer.push(token) for token in TOKENIZER.encode(text)]
    assert "".join(parts) == text
    assert detokenizer.flush() == ""


def test_ap6_emoji_and_cjk_split_over_byte_tokens_come_out_whole() -> None:
    tokens = TOKENIZER.encode("ok 👍🏽 漢字")
    assert len(tokens) > 3
    detokenizer = TOKENIZER.detokenizer()
    parts = [detokenizer.push(token) for token in tokens]
    assert "".join(parts) == "ok 👍🏽 漢字"
    assert not any("\ufffd" in part for part in parts)


def test_ap6_a_cut_character_is_replaced_only_at_the_end() -> None:
    detokenizer = TOKENIZER.detokenizer()
    parts = [detokenizer.push(token) for token in TOKENIZER.encode("x 漢")[:-1]]
    assert "".join(parts) == "x "
    assert detokenizer.flush() == "\ufffd"


def test_english_costs_about_a_token_a_word() -> None:
    text = (
        "The workers are simulated machines behind the same interface as a real engine, and a request that was "
        "accepted ends in a complete answer or in an explicit error. People who read this for the first time should "
        "find that "
        "every common word is one token, while rare words are put together from a few pieces."
    )
    words = len(text.split())
    assert words <= len(TOKENIZER.encode(text)) <= 1.4 * words


def test_special_tokens_spelled_in_text_are_text() -> None:
    end = TOKENIZER.special_id("<|end|>")
    assert end == TOKENIZER.eos_id
    assert end not in TOKENIZER.encode("a <|end|> b")
    assert TOKENIZER.decode([*TOKENIZER.encode("a"), TOKENIZER.eos_id]) == "a"
    assert TOKENIZER.special_id("<|nobody|>") is None


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        TOKENIZER.decode([TOKENIZER.vocabulary_size])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        TOKENIZER.detokenizer().push(-1)


def test_memo_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disagg_contract.tokenizer.default._MEMO_ENTRIES", 16)
    small = DefaultTokenizer()
    text = " ".join(f"word{number}" for number in range(200)) + " " + "x" * 500
    assert small.encode(text) == TOKENIZER.encode(text) == small.encode(text)
    assert len(small._memo) <= 16


@given(st.text(alphabet=st.sampled_from("abcdehinorstuzq .,'{}0123456789") | st.characters(), max_size=120))
def test_pieces_are_covered_greedily_by_the_longest_entries(text: str) -> None:
    entries = {TOKENIZER.decode([token]) for token in range(272, TOKENIZER.vocabulary_size)}
    tokens = TOKENIZER.encode(text)
    start = 0
    encoded = text.encode("utf-8", "surrogatepass")
    for token in tokens:
        if token >= 272:
            piece = TOKENIZER.decode([token])
            rest = encoded[start : start + 60].decode("utf-8", "ignore")
            assert rest.startswith(piece)
            end = re.compile(r" ?\S+|\s").match(rest)
            assert end is not None
            assert not any(rest[:n] in entries for n in range(len(piece) + 1, min(15, end.end()) + 1))
            start += len(piece.encode())
        else:
            start += 1
    assert start == len(encoded)


def test_no_token_is_longer_than_promised() -> None:
    longest = max(len(TOKENIZER.decode([token])) for token in range(TOKENIZER.vocabulary_size))
    assert TOKENIZER.longest_token_characters == longest == 14


def test_two_instances_have_equal_digests() -> None:
    assert DefaultTokenizer().digest == TOKENIZER.digest


ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
MESSAGES = st.lists(st.builds(ChatMessage, ROLES, st.text(max_size=30)), min_size=1, max_size=6)


@given(MESSAGES)
def test_template_is_prefix_stable_over_turns(messages: list[ChatMessage]) -> None:
    whole = encode_chat(TOKENIZER, messages, generation_prompt=False)
    for turns in range(1, len(messages)):
        part = encode_chat(TOKENIZER, messages[:turns], generation_prompt=False)
        assert whole[: len(part)] == part


@settings(max_examples=30)
@given(WORD_IDS)
def test_an_answer_sent_back_gives_the_ids_that_were_generated(answer: list[int]) -> None:
    asked = [ChatMessage("user", "Tell me more.")]
    generated = [*encode_chat(TOKENIZER, asked), *answer, TOKENIZER.eos_id]
    history = [*asked, ChatMessage("assistant", TOKENIZER.decode(answer)), ChatMessage("user", "And then?")]
    assert encode_chat(TOKENIZER, history)[: len(generated)] == generated


def test_given_tokenizer_offers_the_same(given_tokenizer: HuggingFaceTokenizer, given_tokenizer_json: str) -> None:
    tokenizer: Tokenizer = given_tokenizer
    assert tokenizer.eos_id == tokenizer.special_id("<|endoftext|>")
    assert len(tokenizer.output_vocabulary) > 50
    rng = random.Random(1)
    answer = [rng.choice(tokenizer.output_vocabulary) for _ in range(50)]
    assert tokenizer.encode(tokenizer.decode(answer)) == answer
    again = HuggingFaceTokenizer(given_tokenizer_json, name="other name")
    assert again.digest == tokenizer.digest != TOKENIZER.digest
    messages = [ChatMessage("user", "people say"), ChatMessage("assistant", " time")]
    assert encode_chat(tokenizer, messages)[0] == tokenizer.special_id("<|user|>")
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tokenizer.decode([tokenizer.vocabulary_size])


def test_ap6_given_tokenizer_splits_no_character(given_tokenizer: HuggingFaceTokenizer) -> None:
    text = "people say 👍🏽 漢字 and so on, " * 5 + "end"
    detokenizer = given_tokenizer.detokenizer()
    parts = [detokenizer.push(token) for token in given_tokenizer.encode(text)]
    assert "".join(parts) + detokenizer.flush() == text
    assert not any("\ufffd" in part for part in parts)


def test_a_malformed_tokenizer_is_refused_with_its_name() -> None:
    with pytest.raises(TokenizerUnavailableError, match=r"broken\.json: not a tokenizer"):
        HuggingFaceTokenizer("{}", name="broken.json")


def test_a_tokenizer_without_an_end_is_refused() -> None:
    with pytest.raises(TokenizerUnavailableError, match="no end-of-sequence token"):
        HuggingFaceTokenizer(Inner(models.WordLevel({"a": 0}, unk_token="a")).to_str(), name="tiny.json")
