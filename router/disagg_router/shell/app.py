"""One router: fronts, pool of upstream connections, fleet, policy and counts, wired together.

Nothing in here is global, so several routers live in one process (tests do that). ``start`` listens, ``drain`` turns
new work away and waits for what is running, ``stop`` ends it. Discovery goes on until the last stream has ended.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from time import monotonic, perf_counter, time
from typing import Final
from urllib.parse import unquote

from disagg_contract import ports
from disagg_contract.config import RouterConfig
from disagg_contract.listening import cannot_listen
from disagg_contract.metrics import Outcome
from disagg_contract.openai import ApiError, Endpoint, build_model, build_models, model_not_found, unavailable
from disagg_contract.tokenizer import default_tokenizer
from disagg_contract.tokens import TokenKeeper
from disagg_router.core.bodies import parse_inbound
from disagg_router.core.exchange import Exchange
from disagg_router.core.fleet import Fleet, Worker
from disagg_router.core.policies import make_policy
from disagg_router.core.prompt import EstimatingReader, HashingReader, PromptReader
from disagg_router.core.tally import UNKNOWN_MODEL, Ended, Slo, Tally
from disagg_router.shell import wire
from disagg_router.shell.call import Call
from disagg_router.shell.connection import Address
from disagg_router.shell.discovery.registrar import Registrar
from disagg_router.shell.discovery.source import Source
from disagg_router.shell.exposition import CONTENT_TYPE, Exposition
from disagg_router.shell.front import Front, Request, Turn
from disagg_router.shell.releases import Releases
from disagg_router.shell.upstream import Pool

log = logging.getLogger(__name__)

BACKLOG: Final = 4096
SWEEP_SECONDS: Final = 1.0
LAST_WORDS_SECONDS: Final = 1.0
LIVE_PATH: Final = ports.HEALTH_PATH + "/live"
"""Answers 200 while the process works, whether or not it can serve."""

_GENERATING: Final = {b"/v1/completions": Endpoint.COMPLETIONS, b"/v1/chat/completions": Endpoint.CHAT}
_MODELS: Final = b"/v1/models"


class RouterApp:
    """A router. ``source`` says where the workers are; it runs from ``start`` to ``stop``.

    Raises ConfigError if there is to be a token and none can be read.
    """

    def __init__(self, config: RouterConfig, source: Source) -> None:
        self._keeper = _keeper(config)
        self.config: Final = config
        self.max_head_bytes: Final = config.max_header_bytes
        self.max_body_bytes: Final = config.max_body_bytes
        self.queue_seconds: Final = config.queue_seconds
        self.fleet: Final = Fleet(model=config.model)
        self.tally: Final = Tally(
            slo=Slo(ttft_seconds=config.slo_ttft_seconds, tpot_seconds=config.slo_tpot_seconds), model=config.model
        )
        self._policy = make_policy(config.policy, rng=random.Random(config.seed), overlap_weight=config.overlap_weight)
        self._reader: PromptReader = (
            HashingReader(default_tokenizer()) if self._policy.needs_hashes else EstimatingReader()
        )
        self._exposition = Exposition(self.tally, self.fleet)
        self._source = source
        self._fronts: set[Front] = set()
        self._calls: set[Call] = set()
        self._queue: set[Call] = set()
        self._wake_scheduled = False
        self._draining = False
        self._empty: asyncio.Event | None = None
        self._deserted: asyncio.Event | None = None
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._created = int(time())
        self._request_prefix = secrets.token_hex(6)
        self._request_numbers = count(1)
        self.url = ""

    # Life.

    async def start(self) -> None:
        """Listen and discover. Raises ListenError if the address is taken or there is no such address."""
        self._loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._empty.set()
        self.pool = Pool(
            connect_timeout_seconds=self.config.connect_timeout_seconds,
            answer_timeout_seconds=self.config.leg_timeout_seconds,
        )
        self.releases = Releases(self.pool)
        self.registrar = Registrar(self.fleet, self.pool, self.tally, self._source)
        self.pool.credentials = self._credentials
        self.pool.on_idle_closed = self._idle_closed
        self.fleet.on_change = self._fleet_changed
        self.fleet.on_suspect = self._suspected
        self.fleet.on_leave = self._left
        host, port = self.config.host, self.config.port
        try:
            self._server = await self._loop.create_server(lambda: Front(self), host, port, backlog=BACKLOG)
        except OSError as error:
            await self.pool.close()
            raise cannot_listen(error, host=host, port=port) from error
        self.port = self._server.sockets[0].getsockname()[1]
        shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
        self.url = f"http://{shown}:{self.port}"
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        self.registrar.start()
        if self._keeper is None:
            log.info("no --token-file: workers that ask for a token will refuse this router")
        log.info("listening on %s", self.url)

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    async def drain(self, grace_seconds: float) -> bool:
        """Refuse new requests from now on and wait for those that run. False if some were left after the grace time."""
        self._draining = True
        for front in list(self._fronts):
            front.close_if_idle()
        assert self._empty is not None
        try:
            async with asyncio.timeout(grace_seconds):
                await self._empty.wait()
        except TimeoutError:
            log.warning("%d requests were still running after %g s", len(self._calls), grace_seconds)
            return False
        return True

    async def stop(self) -> None:
        """Stop listening and end everything; clients whose answer is not complete are told so."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for front in list(self._fronts):
            front.close_if_idle()
        if self._calls:
            for call in list(self._calls):
                call.shut_down()
            await self._last_words()
        for front in list(self._fronts):
            front.abort()
        await self.releases.finish(LAST_WORDS_SECONDS)
        self.releases.close()
        await self.registrar.stop()
        await self.pool.close()
        if self._server is not None:
            await self._server.wait_closed()

    async def _last_words(self) -> None:
        """Give what was written last a moment to leave; who does not read it in time is cut off."""
        self._deserted = asyncio.Event()
        if not self._fronts:
            return
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._deserted.wait()
        except TimeoutError:
            log.info("%d connections did not take their last answer", len(self._fronts))

    # Site

    def now(self) -> float:
        """Wall seconds; the loop's own clock has the resolution of a millisecond under uvloop."""
        return perf_counter()

    def opened(self, front: Front) -> None:
        self._fronts.add(front)

    def closed(self, front: Front) -> None:
        self._fronts.discard(front)
        if not self._fronts and self._deserted is not None:
            self._deserted.set()

    def refused(self, error: ApiError) -> None:
        self._count_refused(Outcome.REJECTED, UNKNOWN_MODEL)

    def handle(self, front: Front, request: Request) -> Turn | None:
        if not request.request_id:
            request.request_id = b"%b-%x" % (self._request_prefix.encode(), next(self._request_numbers))
        endpoint = _GENERATING.get(request.target)
        if endpoint is None:
            self._answer(front, request)
            return None
        if request.method != b"POST":
            self._refuse(front, request, _not_allowed(request, b"POST"), Outcome.REJECTED, allow=b"POST")
            return None
        return self._generate(front, request, endpoint)

    # Desk

    def queued(self, call: Call) -> None:
        self._queue.add(call)

    def unqueued(self, call: Call) -> None:
        self._queue.discard(call)

    def ended(self, call: Call) -> None:
        self._calls.discard(call)
        if not self._calls and self._empty is not None:
            self._empty.set()

    # Requests

    def _generate(self, front: Front, request: Request, endpoint: Endpoint) -> Turn | None:
        try:
            inbound = parse_inbound(endpoint, request.body)
        except ApiError as error:
            self._refuse(front, request, error, Outcome.REJECTED)
            return None
        busy: ApiError | None = None
        if self._draining:
            busy = unavailable("the router is shutting down", code="draining")
        elif len(self._calls) >= self.config.max_in_flight:
            busy = unavailable(f"{len(self._calls)} requests are being served already", code="overloaded")
        if busy is not None:
            known = inbound.model in self.fleet.known_models
            self._refuse(front, request, busy, Outcome.UNAVAILABLE, model=inbound.model if known else UNKNOWN_MODEL)
            return None
        exchange = Exchange(
            inbound,
            fleet=self.fleet,
            policy=self._policy,
            reader=self._reader,
            attempts=self.config.leg_attempts,
            on_abandoned=self._abandoned,
        )
        call = Call(self, front, request, exchange)
        self._calls.add(call)
        assert self._empty is not None
        self._empty.clear()
        call.begin()
        return call

    def _answer(self, front: Front, request: Request) -> None:
        """Everything but generation: answered at once."""
        known = self._page(request.target)
        if known is None:
            error = ApiError(
                f"path {request.target.decode('latin-1')[:200]}: not served; use /v1/completions, "
                "/v1/chat/completions or /v1/models",
                status=404,
                code="not_found",
            )
            if (name := _model_of(request.target)) is not None:
                error = model_not_found(name, known=self.fleet.servable_models)
            self._send(front, request, self._error(error, request))
        elif request.method not in (b"GET", b"HEAD"):
            self._send(front, request, self._error(_not_allowed(request, b"GET"), request, allow=b"GET"))
        else:
            status, body, content_type = known
            head_only = request.method == b"HEAD"
            close = self._closes(request)
            page = wire.answer(status, body, content_type=content_type, head_only=head_only, close=close)
            self._send(front, request, page)

    def _page(self, target: bytes) -> tuple[int, bytes, bytes] | None:
        """Status, body and content type of a page, or None if there is no such page."""
        if target == ports.HEALTH_PATH.encode():
            return self._health()
        if target == LIVE_PATH.encode():
            return 200, b'{"status":"alive"}', wire.JSON
        if target == ports.METRICS_PATH.encode():
            return 200, self._exposition.page(), CONTENT_TYPE
        models: Sequence[str] = self.fleet.servable_models
        if target == _MODELS:
            return 200, build_models(models, created=self._created), wire.JSON
        name = _model_of(target)
        if name is not None and name in models:
            return 200, build_model(name, created=self._created), wire.JSON
        return None

    def _health(self) -> tuple[int, bytes, bytes]:
        if self._draining:
            return 503, b'{"status":"draining"}', wire.JSON
        if not self.fleet.servable_models:
            return (
                503,
                b'{"status":"no model can be served: no prefill and decode pair, no colocated worker"}',
                wire.JSON,
            )
        return 200, b'{"status":"ready"}', wire.JSON

    def _refuse(
        self,
        front: Front,
        request: Request,
        error: ApiError,
        outcome: Outcome,
        *,
        model: str = UNKNOWN_MODEL,
        allow: bytes = b"",
    ) -> None:
        self._count_refused(outcome, model)
        self._send(front, request, self._error(error, request, allow=allow))

    def _error(self, error: ApiError, request: Request, *, allow: bytes = b"") -> bytes:
        return wire.error_answer(error, request_id=request.request_id, allow=allow, close=self._closes(request))

    def _closes(self, request: Request) -> bool:
        """Whether the connection will not be kept after this answer, which the client must be told."""
        return self._draining or not request.keep_alive

    def _send(self, front: Front, request: Request, data: bytes) -> None:
        front.write(data)
        front.finish(keep_alive=request.keep_alive)

    def _count_refused(self, outcome: Outcome, model: str) -> None:
        tally = self.tally.model(model)
        tally.start()
        tally.end(Ended(outcome=outcome, duration_seconds=0.0))

    # Fleet

    def _fleet_changed(self) -> None:
        if self._queue and not self._wake_scheduled:
            self._wake_scheduled = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_scheduled = False
        for call in list(self._queue):
            call.fleet_changed()

    def _credentials(self) -> bytes:
        if self._keeper is None:
            return b""
        return b"Authorization: %b\r\n" % self._keeper.tokens.bearer.encode()

    def _abandoned(self, worker: Worker, transfer: str) -> None:
        self.releases.release((worker.host, worker.port), transfer)

    def _suspected(self, worker: Worker) -> None:
        self._policy.forget(worker)
        self.registrar.nudge(worker.key.uid)

    def _idle_closed(self, address: Address) -> None:
        for worker in self.fleet.workers:
            if (worker.host, worker.port) == address:
                self.registrar.nudge(worker.key.uid)

    def _left(self, worker: Worker) -> None:
        log.info("%r left", worker)
        self._policy.forget(worker)
        self.pool.drop((worker.host, worker.port))

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        now = self.now()
        for front in list(self._fronts):
            front.sweep(now)


def _keeper(config: RouterConfig) -> TokenKeeper | None:
    if not config.token_file:
        return None
    path = Path(config.token_file)
    return TokenKeeper(f"--token-file={path}", path.read_bytes, monotonic=monotonic, say=log.info)


def _not_allowed(request: Request, allowed: bytes) -> ApiError:
    return ApiError(
        f"method {request.method.decode('latin-1')}: not allowed here; use {allowed.decode()}",
        status=405,
        code="method_not_allowed",
    )


def _model_of(target: bytes) -> str | None:
    """The model that a path below ``/v1/models`` names."""
    prefix = _MODELS + b"/"
    if not target.startswith(prefix) or target == prefix:
        return None
    return unquote(target[len(prefix) :].decode("latin-1"))[:200]
