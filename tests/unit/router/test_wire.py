"""Heads that the router writes."""

import pytest

from disagg_contract.openai import ApiError
from disagg_router.shell import wire

WORKERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-vllm", b"kept"),
    (b"transfer-encoding", b"chunked"),
    (b"connection", b"keep-alive"),
    (b"server", b"aiohttp"),
    (b"x-disagg-ttft-seconds", b"0.2"),
    (b"x-request-id", b"the worker's"),
    (b"cache-control", b"public"),
]


def lines(head):
    status, *fields = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    return status, {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}


def test_a_streams_head_keeps_what_is_end_to_end_and_stops_buffering():
    status, fields = lines(wire.answer_head(200, WORKERS, request_id=b"r1", chunked=True, streamed=True))
    assert status == "HTTP/1.1 200 OK"
    assert fields == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-vllm": "kept",
        "transfer-encoding": "chunked",
        "x-request-id": "r1",
    }


def test_the_heads_of_whole_answers():
    _, fields = lines(wire.answer_head(400, WORKERS, request_id=b"r1", length=7, close=True))
    assert fields["content-length"] == "7"
    assert fields["connection"] == "close"
    assert fields["cache-control"] == "public"
    assert lines(wire.answer_head(799, [], length=0))[0] == "HTTP/1.1 799 Unknown"


@pytest.mark.parametrize(("seconds", "header"), [(None, None), (0.2, "1"), (1.0, "1"), (1.2, "2")])
def test_retry_after_is_in_whole_seconds(seconds, header):
    head, _, body = wire.error_answer(ApiError("no", status=503, retry_after_seconds=seconds)).partition(b"\r\n\r\n")
    assert lines(head + b"\r\n\r\n")[1].get("retry-after") == header
    assert body == ApiError("no", status=503).body()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"0.25", 0.25),
        (b"0", 0.0),
        (b"", None),
        (b"x", None),
        (b"nan", None),
        (b"-1", None),
        (b"inf", None),
        (b"1e400", None),
    ],
)
def test_seconds_are_finite_numbers_or_nothing(value, number):
    assert wire.seconds([(b"a", b"b"), (b"x-t", value)], "x-t") == number
    assert wire.seconds([], "x-t") is None


def test_hosts_of_both_address_families():
    assert wire.authority("10.0.0.1", 80) == b"10.0.0.1:80"
    assert wire.authority("fd00::1", 80) == b"[fd00::1]:80"


@pytest.mark.parametrize(
    ("passed", "credentials", "sent"),
    [
        (b"", b"", b""),
        (b"authorization: Bearer c\r\ntraceparent: t\r\n", b"", b"authorization: Bearer c\r\ntraceparent: t\r\n"),
        (b"", b"Authorization: Bearer o\r\n", b"Authorization: Bearer o\r\n"),
        (
            b"traceparent: t\r\nauthorization: Bearer c\r\nauthorization: Basic d\r\n",
            b"Authorization: Bearer o\r\n",
            b"Authorization: Bearer o\r\ntraceparent: t\r\n",
        ),
    ],
)
def test_our_credentials_take_the_place_of_the_clients(passed: bytes, credentials: bytes, sent: bytes) -> None:
    assert wire.with_credentials(passed, credentials) == sent
