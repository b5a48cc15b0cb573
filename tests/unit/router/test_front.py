"""The client's side without a network: however bytes arrive, each request is answered once and in order."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_router.shell.front import STALLED_SECONDS, Front


class Wire:
    """A transport that remembers."""

    def __init__(self):
        self.written = b""
        self.closed = False

    def write(self, data):
        assert not self.closed, "written after the close"
        self.written += data

    def close(self):
        self.closed = True

    abort = close

    def get_extra_info(self, name):
        assert name == "socket"

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.closed = True

    def set_write_buffer_limits(self, high):
        assert high > 0


class Echo:
    """A site that answers at once, or when told."""

    max_head_bytes = 500
    max_body_bytes = 200
    draining = False

    def __init__(self, *, later):
        self.later = later
        self.paused = 0
        self.requests = []
        self.refusals = []

    def now(self):
        return 0.0

    def opened(self, front):
        self.front = front

    def closed(self, front):
        self.front = None

    def refused(self, error):
        self.refusals.append(error.status)

    def handle(self, front, request):
        self.requests.append((request.target, request.body))
        if not self.later:
            self.answer(request)
            return None
        self.open = request
        return self

    def answer(self, request):
        self.front.write(b"<%b>" % request.target)
        self.front.finish(keep_alive=request.keep_alive)

    def client_gone(self):
        self.open = None

    def pause_writing(self):
        self.paused += 1

    def resume_writing(self):
        self.paused -= 1


def play(data, cuts, *, later):
    """Feed ``data`` in pieces; answer what is open after each piece."""

    async def run():
        site, wire = Echo(later=later), Wire()
        front = Front(site)
        front.connection_made(wire)
        edges = [0, *sorted(set(cuts) & set(range(1, len(data)))), len(data)]
        for start, end in itertools.pairwise(edges):
            front.data_received(data[start:end])
            while later and front._turn is not None and not wire.closed:
                site.answer(site.open)
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        return site, wire

    return asyncio.run(run())


def get(number):
    return b"GET /g%d HTTP/1.1\r\nHost: x\r\n\r\n" % number, b"/g%d" % number, b""


def post(body):
    head = b"POST /p?q HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body, b"/p", body


def chunked(body):
    head = b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), b"/c", body


REQUESTS = st.lists(
    st.one_of(
        st.builds(get, st.integers(0, 9)),
        st.builds(post, st.binary(max_size=150)),
        st.builds(chunked, st.binary(min_size=1, max_size=150)),
    ),
    max_size=6,
)
"""Bytes of a request, its target and its body."""
CUTS = st.lists(st.integers(1, 1000), max_size=12)


@given(requests=REQUESTS, cuts=CUTS, later=st.booleans())
def test_however_requests_arrive_each_is_answered_in_order(requests, cuts, later):
    site, wire = play(b"".join(raw for raw, _, _ in requests), cuts, later=later)
    assert site.requests == [(target, body) for _, target, body in requests]
    assert wire.written == b"".join(b"<%b>" % target for _, target, _ in requests)
    assert not wire.closed
    assert site.refusals == []


@settings(max_examples=400)
@given(
    start=REQUESTS,
    junk=st.one_of(
        st.binary(max_size=700),
        st.text(alphabet=st.sampled_from("GETPOS /HTP1.\r\n:ContentLgh0-9"), max_size=700).map(str.encode),
    ),
    cuts=CUTS,
    later=st.booleans(),
)
def test_junk_is_refused_once_and_hurts_no_request_before_it(start, junk, cuts, later):
    site, wire = play(b"".join(raw for raw, _, _ in start) + junk, cuts, later=later)
    expected = [(target, body) for _, target, body in start]
    assert site.requests[: len(expected)] == expected
    assert len(site.refusals) <= 1
    assert wire.written.startswith(b"".join(b"<%b>" % target for _, target, _ in start))
    if site.refusals:
        assert b"HTTP/1.1 %d " % site.refusals[0] in wire.written
        assert wire.closed


@pytest.mark.parametrize("close", [True, False])
def test_a_client_that_never_reads_is_dropped(close):
    site, wire = Echo(later=True), Wire()
    front = Front(site)
    front.connection_made(wire)
    front.data_received(get(1)[0])
    front.pause_writing()
    if close:
        front.finish(keep_alive=False)
        wire.closed = False  # closing, with bytes still to be sent
    front.sweep(STALLED_SECONDS - 1)
    assert not wire.closed
    front.sweep(STALLED_SECONDS + 1)
    assert wire.closed


def test_a_turn_that_begins_while_the_client_does_not_read_begins_paused():
    async def run():
        site, wire = Echo(later=True), Wire()
        front = Front(site)
        front.connection_made(wire)
        front.data_received(get(1)[0] + get(2)[0])
        front.pause_writing()
        assert site.paused == 1
        site.answer(site.open)
        await asyncio.sleep(0)
        assert [target for target, _ in site.requests] == [b"/g1", b"/g2"]
        assert site.paused == 2
        front.resume_writing()
        assert site.paused == 1

    asyncio.run(run())
