"""The relayed stream: bytes unchanged, tokens counted, ends told apart."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_contract.openai import DONE, ApiError, Endpoint, StreamWriter, Usage, error_event
from disagg_router.core.stream import StreamMeter, Verdict

USAGE = Usage(prompt_tokens=11, completion_tokens=3, cached_tokens=4)
WORDS = (" a", ' data: x\n\n "usage":null,"usage":{', " é😀")


def stream(endpoint=Endpoint.COMPLETIONS, *, include_usage=True, done=DONE):
    writer = StreamWriter(endpoint, identity="x", created=1, model="m", include_usage=include_usage)
    parts = [writer.opening(0)]
    parts += [writer.chunk(0, word) for word in WORDS[:-1]]
    parts.append(writer.chunk(0, WORDS[-1], finish_reason="length"))
    if include_usage:
        parts.append(writer.usage(USAGE))
    return [part for part in [*parts, done] if part]


def relay(meter, parts, step=1.0):
    return b"".join(meter.feed(part, number * step) for number, part in enumerate(parts))


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_ap4_a_client_that_did_not_ask_sees_no_usage(endpoint):
    meter = StreamMeter(strip_usage=True)
    assert relay(meter, stream(endpoint)) == b"".join(stream(endpoint, include_usage=False))
    assert (meter.usage.prompt_tokens, meter.usage.completion_tokens, meter.usage.cached_tokens) == (11, 3, 4)
    assert meter.verdict is Verdict.DONE


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_ap4_a_client_that_asked_gets_every_byte(endpoint):
    meter = StreamMeter(strip_usage=False)
    assert relay(meter, stream(endpoint)) == b"".join(stream(endpoint))
    assert meter.output_tokens == 3


def test_the_opening_of_a_chat_is_not_its_first_token():
    meter = StreamMeter(strip_usage=True)
    relay(meter, stream(Endpoint.CHAT))
    assert (meter.first, meter.last) == (1.0, 3.0)
    meter = StreamMeter(strip_usage=True)
    relay(meter, stream(Endpoint.COMPLETIONS))
    assert (meter.first, meter.last) == (0.0, 2.0)


def test_an_empty_answer_has_its_first_token_at_its_end():
    writer = StreamWriter(Endpoint.CHAT, identity="x", created=1, model="m")
    meter = StreamMeter(strip_usage=True)
    relay(meter, [writer.opening(0), writer.chunk(0, "", finish_reason="stop"), DONE])
    assert meter.first == 1.0


def test_without_usage_chunks_are_counted():
    meter = StreamMeter(strip_usage=True)
    relay(meter, stream(include_usage=False))
    assert meter.usage is None
    assert meter.output_tokens == 3


def test_running_totals_are_not_the_last_chunk():
    chunks = [{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 2, "completion_tokens": n}} for n in (1, 2)]
    data = [b"data: " + json.dumps(c, separators=(",", ":")).encode() + b"\n\n" for c in chunks] + [DONE]
    meter = StreamMeter(strip_usage=True)
    assert relay(meter, data) == b"".join(data)
    assert meter.usage.completion_tokens == 2
    assert meter.last == 1.0


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (b"", Verdict.TRUNCATED),
        (b'data: {"choices":[{"ind', Verdict.TRUNCATED),
        (DONE[:-1], Verdict.TRUNCATED),
        (error_event(ApiError("out of memory", status=500)), Verdict.ERROR),
        (error_event(ApiError("out of memory", status=500)) + DONE, Verdict.ERROR),
        (DONE, Verdict.DONE),
        (b": bye\n\n" + DONE, Verdict.DONE),
        (b"data:[DONE]\r\n\r\n", Verdict.DONE),
    ],
)
def test_ap3_how_a_stream_ended(end, verdict):
    meter = StreamMeter(strip_usage=True)
    relay(meter, stream(include_usage=False)[:-2])
    out = meter.feed(end, 9.0)
    assert meter.verdict is verdict
    assert b'data: {"choices":[{"ind' not in out, "never half an event"


@given(cuts=st.lists(st.integers(0, 1200), max_size=40), strip=st.booleans(), dos=st.booleans())
def test_however_the_bytes_are_cut_the_client_gets_the_same(cuts, strip, dos):
    whole = b"".join(stream())
    expected = b"".join(stream(include_usage=not strip))
    if dos:
        whole, expected = whole.replace(b"\n\n", b"\r\n\r\n"), expected.replace(b"\n\n", b"\r\n\r\n")
        strip = False
        expected = whole
    meter = StreamMeter(strip_usage=strip)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    out = b""
    for start, end in itertools.pairwise(edges):
        piece = meter.feed(whole[start:end], float(start))
        out += piece
        assert out.endswith((b"\n\n", b"\r\n\r\n")) or not out
    assert out == expected
    assert meter.verdict is Verdict.DONE
    assert dos or meter.usage.completion_tokens == 3
