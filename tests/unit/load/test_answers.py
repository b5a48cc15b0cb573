"""Streams of events and answers, without a network."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_load.answers import AnswerReader, error_message
from disagg_load.sse import SseParser


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def choice(text: str = "", reason: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": reason, **more}]})


DONE = b"data: [DONE]\n\n"


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"))), st.data())
def test_events_survive_any_cut(texts: list[str], data: st.DataObject) -> None:
    ends = data.draw(st.lists(st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]), min_size=len(texts), max_size=len(texts)))
    stream = "".join(f"data: {text}{end}" for text, end in zip(texts, ends, strict=True)).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser = SseParser()
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += parser.feed(stream[start:stop])
    # A lone CR at the very end may still become CRLF, so that one event waits.
    found += parser.feed(b"\n") if parser.pending else []
    assert [item.decode() for item in found] == texts


def test_comments_other_fields_and_several_data_lines() -> None:
    parser = SseParser()
    assert parser.feed(b": ping\n\nevent: x\nid: 4\ndata: one\ndata:two\n\nretry: 5\n\n") == [b"one\ntwo"]
    assert not parser.pending
    assert parser.feed(b"data: thr") == []
    assert parser.pending


def test_an_endless_event_is_refused() -> None:
    parser = SseParser()
    for _ in range(16):
        parser.feed(b"x" * 1024 * 1024)
    with pytest.raises(ValueError, match="an event of more than"):
        parser.feed(b"x")


def test_times_are_those_of_the_events_with_text() -> None:
    reader = AnswerReader()
    reader.feed(choice(), 1.0)
    reader.feed(choice(" a"), 2.0)
    reader.feed(choice(" b") + choice(" c"), 3.5)
    reader.feed(choice("", "length"), 9.0)
    reader.feed(event({"choices": [], "usage": {"completion_tokens": 3}}) + DONE, 9.5)
    reader.end()
    assert (reader.first, reader.last, list(reader.gaps), reader.tokens) == (2.0, 3.5, [1.5, 0.0], 3)
    assert (reader.problem, reader.finish_reason) == ("", "length")


def test_the_last_token_may_share_its_event_with_the_finish_reason() -> None:
    reader = AnswerReader()
    reader.feed(choice(" a", "stop") + DONE, 1.0)
    reader.end()
    assert (reader.tokens, reader.problem) == (1, "")


def test_token_ids_without_text_are_tokens() -> None:
    reader = AnswerReader()
    reader.feed(choice("", None, token_ids=[5]), 1.0)
    assert (reader.events, reader.first) == (1, 1.0)


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (b"", "without a finish reason"),
        (choice(" a") + DONE, "without a finish reason"),
        (choice(" a", "length"), "without [DONE]"),
        (event({"error": {"message": "worker died", "code": 500}}) + DONE, "error event: worker died"),
        (event({"error": "worker died"}), "error event: worker died"),
        (b"data: {]\n\n", "unreadable event"),
        (event({"choices": "none"}), "unreadable event"),
    ],
)
def test_ap3_what_is_no_complete_answer(stream: bytes, problem: str) -> None:
    reader = AnswerReader()
    reader.feed(stream, 1.0)
    reader.end()
    assert problem in reader.problem


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model", "type": "x"}}', "no such model"),
        (b'{"message": "no such model"}', "no such model"),
        (b"<html>\n  Bad Gateway\n</html>\n", "<html> Bad Gateway </html>"),
        (b"x" * 500, "x" * 117 + "..."),
        (b"{}", "{}"),
        (b"", ""),
    ],
)
def test_error_bodies(body: bytes, message: str) -> None:
    assert error_message(body) == message
