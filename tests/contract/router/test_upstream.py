"""Connections to workers: every way an answer can be framed, kept, broken or late."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from disagg_router.core.exchange import Failure
from disagg_router.shell.upstream import Fetch, Pool

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"


class Server:
    """Answers each request on a connection with the next of ``script``: bytes, ``close``, ``reset`` or ``hang``."""

    def __init__(self, *script):
        self.script = list(script)
        self.connections = 0
        self.requests = 0
        self.writers = []
        self.over = asyncio.Event()

    async def serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                for step in self.script.pop(0):
                    if step == "close":
                        writer.close()
                        return
                    if step == "reset":
                        writer.transport.abort()
                        return
                    if step == "hang":
                        await self.over.wait()
                        return
                    writer.write(step)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class Heard:
    """What the handler of a request was told."""

    def __init__(self):
        self.over = asyncio.Event()
        self.status = 0
        self.headers = []
        self.body = b""
        self.failure = None

    def leg_head(self, status, headers):
        assert not self.status, "one head"
        self.status, self.headers = status, headers

    def leg_data(self, data, *, done):
        assert not self.over.is_set()
        self.body += data
        if done:
            self.over.set()

    def leg_lost(self, failure, reason):
        assert not self.over.is_set()
        assert reason
        self.failure = failure
        self.over.set()


@pytest.fixture
def talk():
    """``async with talk(*script) as (server, send)``; ``await send()`` gives what was heard."""

    @asynccontextmanager
    async def start(*script, timeout_seconds=10.0):
        server = Server(*script)
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        pool = Pool(connect_timeout_seconds=2.0, answer_timeout_seconds=timeout_seconds)
        address = listening.sockets[0].getsockname()

        async def send():
            heard = Heard()
            pool.send(address, REQUEST, heard)
            async with asyncio.timeout(10):
                await heard.over.wait()
            return heard

        send.pool, send.address, send.listening = pool, address, listening
        yield server, send
        server.over.set()
        listening.close()
        await pool.close()
        await asyncio.gather(*(writer.wait_closed() for writer in server.writers), return_exceptions=True)

    return start


@pytest.mark.parametrize(
    "answer",
    [
        [WHOLE],
        [CHUNKED],
        [b"HTTP/1.1 200 OK\r\n\r\nhello", "close"],
        [b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nhel", b"lo", "close"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", WHOLE],
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + CHUNKED],
        [WHOLE[n : n + 1] for n in range(len(WHOLE))],
        [CHUNKED[n : n + 1] for n in range(len(CHUNKED))],
    ],
)
async def test_every_framing_gives_the_body(talk, answer):
    async with talk(answer) as (_, send):
        heard = await send()
    assert (heard.status, heard.body, heard.failure) == (200, b"hello", None)


async def test_an_answer_without_body_is_complete(talk):
    async with talk([b"HTTP/1.1 204 No Content\r\n\r\n"], [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]) as (
        _,
        send,
    ):
        assert (await send()).status == 204
        assert (await send()).body == b""


async def test_connections_are_kept_and_closed_as_the_worker_says(talk):
    closing = WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with talk([WHOLE], [CHUNKED], [WHOLE], [closing], [WHOLE]) as (server, send):
        for connections in (1, 1, 1, 1, 2):
            assert (await send()).body == b"hello"
            assert server.connections == connections


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_kept_connection_that_was_closed_costs_nothing(talk, end):
    async with talk([WHOLE], [end], [WHOLE]) as (server, send):
        assert (await send()).body == b"hello"
        assert (await send()).body == b"hello", "sent again: not a byte of an answer had come"
        assert (server.connections, server.requests) == (2, 3)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (["close"], Failure.RESET),
        (["reset"], Failure.RESET),
        ([WHOLE[:-1], "close"], Failure.RESET),
        ([CHUNKED[:-5], "close"], Failure.RESET),
        ([b"HTTP/1.1 200 OK\r\nContent-Le", "close"], Failure.RESET),
        ([b"HTTP/1.1 200 OK\r\n\r\nhello", "reset"], None),
        ([b"220 smtp.example.com ESMTP\r\n"], Failure.PROTOCOL),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], Failure.PROTOCOL),
        ([b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000], Failure.PROTOCOL),
        (["hang"], Failure.TIMEOUT),
        ([WHOLE[:-1], "hang"], Failure.TIMEOUT),
    ],
)
async def test_broken_answers_are_told_apart(talk, answer, failure):
    async with talk(answer, timeout_seconds=0.3) as (_, send):
        heard = await send()
        assert send.pool.connections == 0
    if failure is not None:
        assert heard.failure is failure


async def test_nobody_listening(talk):
    async with talk() as (_, send):
        send.listening.close()
        assert (await send()).failure is Failure.CONNECT


async def test_a_worker_that_speaks_out_of_turn_is_hung_up_on(talk, tools):
    async with talk([WHOLE + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"], [WHOLE]) as (server, send):
        await send()
        assert (await send()).body == b"hello", "never the answer to nothing"
        await tools.eventually(lambda: server.connections == 2, "on a fresh connection")


async def test_cancelling_closes_the_connection(talk, tools):
    async with talk(["hang"], [WHOLE]) as (server, send):
        ticket = send.pool.send(send.address, REQUEST, Heard())
        await tools.eventually(lambda: server.requests == 1, "it is under way")
        ticket.cancel()
        assert send.pool.connections == 0
        connecting = send.pool.send(send.address, REQUEST, Heard())
        connecting.cancel()
        assert (await send()).body == b"hello"


async def test_a_fetch_is_bounded_in_time(talk):
    async with talk(["hang"], [WHOLE], ["reset"]) as (_, send):
        with pytest.raises(TimeoutError):
            await Fetch.get(send.pool, send.address, "/", timeout_seconds=0.1)
        assert await Fetch.get(send.pool, send.address, "/", timeout_seconds=5) == (200, b"hello")
        send.listening.close()
        await send.pool.close()
        with pytest.raises(OSError, match="could not be reached"):
            await Fetch.get(send.pool, send.address, "/", timeout_seconds=5)
