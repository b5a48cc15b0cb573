"""One generation request at the shell: carries out the commands of its exchange and feeds it with what happens.

A stream is relayed as it comes: one write to the client for one read from the worker, body bytes unchanged, framed
anew. Its head waits for the first event, so that a worker which dies before it costs nothing but time. An answer in one
piece is held until it is complete (up to a bound), for the same reason.
"""

import asyncio
import logging
from time import perf_counter
from typing import Final, Protocol

from disagg_contract import headers
from disagg_contract.metrics import Leg, Outcome
from disagg_router.core.bodies import UsageCount, read_usage
from disagg_router.core.exchange import Break, Command, Exchange, Failure, Refuse, Relay, Send, State, Stop, Wait
from disagg_router.core.latency import Latency, reported, streamed
from disagg_router.core.stream import StreamMeter, Verdict
from disagg_router.core.tally import UNKNOWN_MODEL, Ended, ModelTally, Tally
from disagg_router.shell import wire
from disagg_router.shell.connection import Header
from disagg_router.shell.front import Front, Request
from disagg_router.shell.releases import Releases
from disagg_router.shell.upstream import Pool, Ticket

log = logging.getLogger(__name__)

HOLD_BYTES: Final = 4 * 1024 * 1024
"""An answer in one piece is held up to this size; a longer one is relayed as it comes and not tried again."""
_FAILURES: Final = frozenset({500, 502, 504})
"""Worth a line in the log; a lack of room or of workers would fill it, and is counted."""
UNAUTHORISED: Final = 401
_EVENT_STREAM: Final = b"text/event-stream"


class Desk(Protocol):
    """What calls share."""

    pool: Pool
    releases: Releases

    @property
    def tally(self) -> Tally: ...

    @property
    def queue_seconds(self) -> float: ...

    @property
    def draining(self) -> bool: ...

    def now(self) -> float: ...

    def queued(self, call: "Call") -> None: ...

    def unqueued(self, call: "Call") -> None: ...

    def ended(self, call: "Call") -> None: ...


class Call:
    """A request from its first leg to its end."""

    def __init__(self, desk: Desk, front: Front, request: Request, exchange: Exchange) -> None:
        self._desk = desk
        self._front = front
        self._request = request
        self._exchange = exchange
        self._ticket: Ticket | None = None
        self._paused = False
        self._deadline: asyncio.TimerHandle | None = None
        self._tally: ModelTally | None = None
        self._sent_at = 0.0
        self._latency = Latency()
        self._usage: UsageCount | None = None
        self._shows_token = False
        self._clear()

    def _clear(self) -> None:
        """Forget the answer of an attempt that failed."""
        self._status = 0
        self._headers: list[Header] = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._meter: StreamMeter | None = None

    def begin(self) -> None:
        clock = perf_counter()
        command = self._exchange.begin()
        self._desk.tally.choice.observe(perf_counter() - clock)
        model = self._exchange.request.model
        rejected = isinstance(command, Refuse) and command.error.status < 500
        self._tally = self._desk.tally.model(UNKNOWN_MODEL if rejected or not model else model)
        self._tally.start()
        self._do(command)

    def shut_down(self) -> None:
        """The router ends now."""
        self._leave()
        self._do(self._exchange.shut_down())

    # Front

    def client_gone(self) -> None:
        self._do(self._exchange.client_gone())

    def pause_writing(self) -> None:
        self._paused = True
        if self._ticket is not None:
            self._ticket.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._ticket is not None:
            self._ticket.resume()

    # The queue

    def fleet_changed(self) -> None:
        self._do(self._exchange.fleet_changed())

    def queue_expired(self) -> None:
        self._do(self._exchange.queue_expired())

    # The leg

    def leg_head(self, status: int, fields: list[Header]) -> None:
        self._status = status
        self._headers = fields
        if status == UNAUTHORISED and self._shows_token:
            # Not the client's fault: it has nothing to do with what passes between us and our workers.
            self._cancel()
            self._do(self._exchange.leg_failed(Failure.REFUSED, status=status))
            return
        if self._exchange.leg is Leg.PREFILL:
            return
        command = self._exchange.answer_began(status)
        if not isinstance(command, Relay):
            self._cancel()
            self._do(command)
            return
        content_type = wire.header(fields, "content-type") or b""
        if content_type.startswith(_EVENT_STREAM):
            self._meter = StreamMeter(strip_usage=not self._exchange.request.stream_usage)

    def leg_data(self, data: bytes, *, done: bool) -> None:
        if done:
            self._ticket = None
        if self._meter is not None:
            self._relay_events(data, done=done)
        elif self._exchange.leg is Leg.PREFILL:
            self._collect_prefill(data, done=done)
        else:
            self._relay_whole(data, done=done)

    def leg_lost(self, failure: Failure, reason: str) -> None:
        self._ticket = None
        worker = self._exchange.worker
        trusted = worker is not None and not worker.suspect
        command = self._exchange.leg_failed(failure)
        if worker is not None and worker.suspect and trusted:
            # Where nothing could be sent nothing was lost: the worker may have ended as it was told to.
            level = logging.INFO if failure is Failure.CONNECT else logging.WARNING
            log.log(level, "%r %s (%s); not chosen until it answers", worker, failure, reason)
        self._do(command)

    # Commands

    def _do(self, command: Command) -> None:
        match command:
            case Send():
                self._send(command)
            case Wait():
                self._wait()
            case Refuse(error=error):
                if error.status in _FAILURES:
                    log.warning("request %s: %s", self._request.request_id.decode("latin-1"), error.message)
                request_id = self._request.request_id
                self._finish(wire.error_answer(error, request_id=request_id, close=self._closes))
            case Break(event=event):
                self._break(event)
            case Stop():
                self._leave()
                self._finish(b"")
            case _:
                pass

    def _send(self, command: Send) -> None:
        self._leave_queue()
        self._clear()
        worker, request = command.worker, self._request
        credentials = b"" if worker.foreign else self._desk.pool.credentials()
        self._shows_token = bool(credentials)
        self._sent_at = self._desk.now()
        data = wire.leg_request(
            request.target,
            wire.authority(worker.host, worker.port),
            command.body,
            request_id=request.request_id,
            passed=wire.with_credentials(request.passed, credentials),
        )
        self._ticket = self._desk.pool.send((worker.host, worker.port), data, self)
        if self._paused:
            self._ticket.pause()

    def _wait(self) -> None:
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._desk.queue_seconds, self.queue_expired)
            self._desk.queued(self)
            if self._tally is not None:
                self._tally.queued += 1

    def _leave_queue(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._desk.unqueued(self)
            if self._tally is not None:
                self._tally.queued -= 1

    def _cancel(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()
            self._ticket = None

    def _leave(self) -> None:
        """Give up the leg that is out, for good. A prefill may have an answer on its way that says where its KV is."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None and self._exchange.leg is Leg.PREFILL:
            self._desk.releases.hang_up(ticket, heard=b"".join(self._held))
        elif ticket is not None:
            ticket.cancel()

    # Relaying

    def _collect_prefill(self, data: bytes, *, done: bool) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HOLD_BYTES:
            self._cancel()
            self._do(self._exchange.leg_failed(Failure.PROTOCOL))
            return
        if not done:
            return
        body = b"".join(self._held)
        command = self._exchange.prefill_answered(self._status, body)
        if isinstance(command, Relay):
            self._complete(self._whole(body))
        else:
            self._do(command)

    def _relay_events(self, data: bytes, *, done: bool) -> None:
        meter = self._meter
        assert meter is not None
        out = meter.feed(data, self._desk.now()) if data else b""
        if not done:
            if out:
                self._front.write(self._events(out))
            return
        verdict = meter.verdict
        if verdict is not Verdict.DONE:
            self._end_badly(out, verdict)
            return
        self._latency = streamed(
            meter,
            started=self._request.arrived,
            time_scale=self._exchange.time_scale,
            choices=self._exchange.request.choices,
        )
        self._usage = meter.usage
        self._complete(self._events(out) + self._last_chunk, close=not self._request.chunked_ok)

    def _end_badly(self, out: bytes, verdict: Verdict) -> None:
        """The stream is over and is no complete answer: tried again if nothing of it has reached the client."""
        if self._exchange.state is not State.RELAYING:
            self._do(self._exchange.leg_failed(Failure.TRUNCATED))
        elif verdict is Verdict.ERROR:
            self._exchange.answer_failed()
            self._finish(self._events(out) + self._last_chunk, close=True)
        else:
            if out:
                self._front.write(self._events(out))
            self._do(self._exchange.leg_failed(Failure.TRUNCATED))

    def _relay_whole(self, data: bytes, *, done: bool) -> None:
        if self._exchange.state is State.RELAYING:
            if data:
                self._front.write(self._framed(data))
            if done:
                self._complete(self._last_chunk, close=not self._request.chunked_ok)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if done:
            body = b"".join(self._held)
            if self._status < 300:
                self._usage = read_usage(body)
                self._latency = reported(
                    wire.seconds(self._headers, headers.TTFT_SECONDS),
                    wire.seconds(self._headers, headers.TPOT_SECONDS),
                    before_leg_seconds=self._sent_at - self._request.arrived,
                    time_scale=self._exchange.time_scale,
                )
            self._complete(self._whole(body))
        elif self._held_bytes > HOLD_BYTES:
            self._exchange.relaying()
            self._front.write(self._head(streamed=False) + self._framed(b"".join(self._held)))
            self._held = []

    def _events(self, events: bytes) -> bytes:
        """Bytes for the client: the head of the answer before the first events, then the events, framed."""
        framed = self._framed(events) if events else b""
        if self._exchange.state is State.RELAYING:
            return framed
        self._exchange.relaying()
        return self._head(streamed=True) + framed

    def _head(self, *, streamed: bool) -> bytes:
        return wire.answer_head(
            self._status,
            self._headers,
            request_id=self._request.request_id,
            chunked=self._request.chunked_ok,
            streamed=streamed,
            close=self._closes,
        )

    def _whole(self, body: bytes) -> bytes:
        head = wire.answer_head(
            self._status, self._headers, request_id=self._request.request_id, length=len(body), close=self._closes
        )
        return head + body

    @property
    def _closes(self) -> bool:
        """Whether the connection will not be kept after this answer, which the client must be told."""
        return not self._request.keep_alive or self._desk.draining

    def _framed(self, data: bytes) -> bytes:
        return wire.chunk(data) if self._request.chunked_ok else data

    @property
    def _last_chunk(self) -> bytes:
        return wire.LAST_CHUNK if self._request.chunked_ok else b""

    # The end

    def _complete(self, data: bytes, *, close: bool = False) -> None:
        self._exchange.relayed()
        self._finish(data, close=close)

    def _break(self, event: bytes) -> None:
        """The answer had begun: say why it ends if that can be said, and close."""
        log.warning("request %s broke: %s", self._request.request_id.decode("latin-1"), event.decode().strip())
        if self._meter is None:
            self._front.abort()
            self._finish(b"")
            return
        self._finish(self._framed(event) + self._last_chunk, close=True)

    def _finish(self, data: bytes, *, close: bool = False) -> None:
        self._leave_queue()
        exchange = self._exchange
        outcome = exchange.outcome or Outcome.FAILED
        if data:
            self._front.write(data)
        if outcome is not Outcome.CANCELLED:
            self._front.finish(keep_alive=self._request.keep_alive and not close)
        if self._tally is not None:
            self._tally.end(self._account(outcome))
        self._desk.ended(self)

    def _account(self, outcome: Outcome) -> Ended:
        exchange, usage = self._exchange, self._usage
        cached = exchange.cached_tokens
        if cached is None:
            cached = usage.cached_tokens if usage else 0
        output = (usage.completion_tokens or 0) if usage else self._meter.output_tokens if self._meter else None
        return Ended(
            outcome=outcome,
            duration_seconds=(self._desk.now() - self._request.arrived) * exchange.time_scale,
            ttft_seconds=self._latency.ttft_seconds,
            tpot_seconds=self._latency.tpot_seconds,
            input_tokens=usage.prompt_tokens if usage else None,
            output_tokens=output,
            cached_tokens=cached,
            leg_errors=exchange.leg_errors,
            retries=exchange.retries,
        )
