"""Stop strings and hold-back, against a plain search over the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_workers.text import AnswerText


class Spelled:
    """A detokenizer whose tokens are positions in a list of texts."""

    def __init__(self, parts: list[str]) -> None:
        self._parts = parts

    def push(self, token: int) -> str:
        return self._parts[token]

    def flush(self) -> str:
        return ""


def stream(
    parts: list[str], stops: list[str], *, include: bool = False, free_from: int = 0
) -> tuple[list[str], str | None]:
    """Texts released token by token until a stop, and the stop."""
    text = AnswerText(Spelled(parts), stops=stops, include_stop=include)
    sent = []
    for number in range(len(parts)):
        released = text.push(number, may_stop=number >= free_from)
        sent.append(released.text)
        if released.stop is not None:
            assert text.stopped
            return sent, released.stop
    released = text.finish()
    return [*sent, released.text], released.stop


def test_ap5_nothing_of_a_stop_string_is_sent() -> None:
    sent, stop = stream(["ok ", "<<", "EN", "D>>"], ["<<END>>"])
    assert "".join(sent) == "ok "
    assert stop == "<<END>>"
    sent, stop = stream(["ok ", "<<", "EM"], ["<<END>>"])
    assert "".join(sent) == "ok <<EM"
    assert stop is None
    assert sent[1] == ""


PARTS = st.lists(st.text("ab<", min_size=0, max_size=3), max_size=12)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3)


@given(PARTS, STOPS, st.booleans())
def test_ap5_streamed_text_equals_the_whole_cut_at_the_first_stop(
    parts: list[str], stops: list[str], include: bool
) -> None:
    sent, stop = stream(parts, stops, include=include)
    seen = ""
    for part in parts:
        seen += part
        found = [(seen.index(s), len(s), s) for s in stops if s in seen]
        if found:
            at, length, first = min(found)
            assert stop == first
            assert "".join(sent) == seen[: at + length if include else at]
            return
    assert stop is None
    assert "".join(sent) == seen


@given(PARTS, STOPS)
def test_what_was_sent_is_a_prefix_of_the_text(parts: list[str], stops: list[str]) -> None:
    sent, _ = stream(parts, stops)
    assert "".join(parts).startswith("".join(sent))


@pytest.mark.parametrize("free_from", [0, 1, 2, 3])
def test_stops_do_not_count_before_min_tokens(free_from: int) -> None:
    sent, stop = stream(["a", "x", "b", "x", "c"], ["x"], free_from=free_from)
    assert "".join(sent) == ("a" if free_from <= 1 else "axb")
    assert stop == "x"


def test_without_stop_strings_everything_is_sent_at_once() -> None:
    sent, stop = stream(["a", "", "b"], [])
    assert sent == ["a", "", "b", ""]
    assert stop is None
