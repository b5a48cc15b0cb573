"""Routes of a worker: OpenAI's two endpoints, models, health, metrics, drain, and what the router asks.

``DELETE /disagg/transfers/{id}`` gives back the KV of a prompt whose decode leg will never come: the router asks for it
when a request ends between its two legs. Asking again, or after the KV was pulled, is answered with 404 and harmless.

A request counts as started once its head was read and ends with one outcome. A client that goes away cancels the task
that serves it, which drops the request in the engine before anything else happens (case AP7). Nothing is sent before
the first token, so whatever goes wrong before it still gets a status of its own; after it a stream ends with an error
event and never with ``[DONE]``.

Where the deployment has a token, everything but health and metrics asks for it: the router in front is the way in, and
nobody of another deployment has business here.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler, Middleware

from disagg_contract import headers, ports
from disagg_contract.discovery import WorkerInfo
from disagg_contract.metrics import Outcome
from disagg_contract.openai import (
    DONE,
    STREAM_HEADERS,
    ApiError,
    Choice,
    Endpoint,
    StreamWriter,
    TokenLogprob,
    Usage,
    build_model,
    build_models,
    build_response,
    error_event,
    invalid,
    model_not_found,
    parse_request,
    response_id,
)
from disagg_contract.tokens import AUTHORIZATION, TokenKeeper
from disagg_workers.driver import EngineDriver
from disagg_workers.generation import Generation
from disagg_workers.lifecycle import Lifecycle
from disagg_workers.sequence import Sampled
from disagg_workers.service import Service
from disagg_workers.strangers import Strangers
from disagg_workers.telemetry import Telemetry

MAX_BODY_BYTES = 64 * 1024 * 1024
WAITING_BYTES = 16 * 1024
"""What may wait in a connection's buffer before its stream waits for the client."""
OPEN_PATHS = frozenset({ports.HEALTH_PATH, ports.METRICS_PATH})
"""Pages for kubelets, Prometheus and planners, which hold no token and learn nothing of anybody's request."""


@dataclass(slots=True)
class _Progress:
    """How far a request got: taken into the engine, and its stream, once the head is out."""

    accepted: bool = False
    stream: web.StreamResponse | None = None


class Front:
    """Handlers over one worker's parts. ``info`` and ``expose`` are asked at every request for them."""

    def __init__(
        self,
        *,
        service: Service,
        driver: EngineDriver,
        lifecycle: Lifecycle,
        telemetry: Telemetry,
        info: Callable[[], WorkerInfo],
        expose: Callable[[], bytes],
        pinned: Callable[[], int],
        created: int,
        debug_endpoints: bool,
        keeper: TokenKeeper | None,
        strangers: Strangers,
    ) -> None:
        self._service = service
        self._driver = driver
        self._lifecycle = lifecycle
        self._telemetry = telemetry
        self._info = info
        self._expose = expose
        self._pinned = pinned
        self._created = created
        self._debug = debug_endpoints
        self._keeper = keeper
        self._strangers = strangers

    def application(self) -> web.Application:
        """The aiohttp application."""
        guard = [] if self._keeper is None else [_guard(self._keeper, self._strangers)]
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors, *guard])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._model)
        app.router.add_get(ports.HEALTH_PATH, self._health)
        app.router.add_get(ports.METRICS_PATH, self._metrics)
        app.router.add_get(ports.INFO_PATH, self._worker_info)
        app.router.add_delete(ports.TRANSFERS_PATH + "/{transfer_id}", self._release)
        app.router.add_get(ports.DRAIN_PATH, self._drain_state)
        app.router.add_post(ports.DRAIN_PATH, self._drain)
        app.router.add_delete(ports.DRAIN_PATH, self._undrain)
        if self._debug:
            app.router.add_post(ports.SLOWDOWN_PATH, self._slowdown)
        return app

    # ---- generation --------------------------------------------------------------------------------------------

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, Endpoint.COMPLETIONS)

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, Endpoint.CHAT)

    async def _generate(self, http: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        arrival = self._driver.clock.now()
        self._telemetry.started()
        outcome = Outcome.CANCELLED
        progress = _Progress()
        try:
            response = await self._answer(http, endpoint, arrival, progress)
            outcome = Outcome.COMPLETED
        except ApiError as error:
            outcome = Outcome.FAILED if progress.accepted else _refusal(error)
            if progress.stream is None:
                raise
            # The stream's head is out already; the error went into the stream itself.
            response = progress.stream
        except ConnectionResetError:
            response = web.Response(status=499)
        except web.HTTPRequestEntityTooLarge:
            outcome = Outcome.REJECTED
            raise ApiError(
                f"the body has more than {MAX_BODY_BYTES} bytes", status=413, code="body_too_large"
            ) from None
        finally:
            self._telemetry.ended(outcome)
        return response

    async def _answer(
        self, http: web.Request, endpoint: Endpoint, arrival: float, progress: "_Progress"
    ) -> web.StreamResponse:
        body = await http.read()
        try:
            request = parse_request(endpoint, body)
            if self._service.is_skipped(request):
                return self._nothing_kept(endpoint, len(request.prompts))
            generation = self._service.accept(request, arrival_seconds=arrival)
        except ApiError:
            self._service.decline(body)
            raise
        progress.accepted = True
        delivered = False
        try:
            if request.stream:
                response = await self._stream(http, generation, progress)
            else:
                response = await self._whole(http, generation)
            delivered = True
        finally:
            if not delivered:
                self._service.withdraw(generation)
            self._service.done(generation)
        self._telemetry.answered(generation.times.values(), generation.reasons)
        return response

    async def _whole(self, http: web.Request, generation: Generation) -> web.StreamResponse:
        request = generation.request
        sampled: list[list[Sampled]] = [[] for _ in range(generation.choices)]
        for item in await generation.next():
            sampled[item.index].append(item)
        choices = [
            Choice(
                index=index,
                text="".join(item.text for item in items),
                finish_reason=items[-1].finish_reason or "length",
                stop_reason=items[-1].stop_reason,
                token_ids=[item.token for item in items] if request.return_token_ids else None,
                prompt_token_ids=generation.prompt_of(index) if request.return_token_ids else None,
                logprobs=_logprobs(items) if request.sampling.logprobs is not None else None,
            )
            for index, items in enumerate(sampled)
        ]
        remote = generation.remote_kv
        body = build_response(
            request.endpoint,
            identity=generation.identity,
            created=generation.created,
            model=self._service.models[0],
            choices=choices,
            usage=generation.usage,
            kv_transfer_params=None if remote is None else remote.to_params(),
        )
        response = web.Response(body=body, content_type="application/json", headers=_timing(generation))
        # Written here and not after the handler, so that an answer nobody got is known as such.
        await response.prepare(http)
        await response.write_eof()
        return response

    async def _stream(self, http: web.Request, generation: Generation, progress: "_Progress") -> web.StreamResponse:
        request = generation.request
        writer = StreamWriter(
            request.endpoint,
            identity=generation.identity,
            created=generation.created,
            model=self._service.models[0],
            include_usage=request.include_usage,
        )
        fresh = await generation.next()
        response = web.StreamResponse(headers=STREAM_HEADERS)
        if http.version >= HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(http)
        progress.stream = response
        opened: set[int] = set()
        begun = False
        try:
            while fresh:
                parts = []
                for item in fresh:
                    if item.index not in opened:
                        opened.add(item.index)
                        ids = generation.prompt_of(item.index) if request.return_token_ids else None
                        parts.append(writer.opening(item.index, prompt_token_ids=ids))
                    parts.append(
                        writer.chunk(
                            item.index,
                            item.text,
                            finish_reason=item.finish_reason,
                            stop_reason=item.stop_reason,
                            token_ids=(item.token,) if request.return_token_ids else None,
                            logprobs=(item.logprob,) if item.logprob is not None else None,
                        )
                    )
                data = b"".join(parts)
                if not (begun and _send_at_once(http, response, data)):
                    await response.write(data)  # the first together with the head
                    begun = True
                fresh = await generation.next()
        except ApiError as error:
            await response.write(error_event(error))
            await response.write_eof()
            raise
        await response.write((writer.usage(generation.usage) if request.include_usage else b"") + DONE)
        await response.write_eof()
        return response

    def _nothing_kept(self, endpoint: Endpoint, prompts: int) -> web.Response:
        """The answer to a prefill leg of several prompts: no KV, so the decode leg computes them itself."""
        body = build_response(
            endpoint,
            identity=response_id(endpoint, "none"),
            created=self._created,
            model=self._service.models[0],
            choices=[Choice(index=index, text="", finish_reason="length") for index in range(prompts)],
            usage=Usage(prompt_tokens=0, completion_tokens=0),
        )
        return web.Response(body=body, content_type="application/json")

    # ---- everything else ---------------------------------------------------------------------------------------

    async def _embeddings(self, http: web.Request) -> web.StreamResponse:
        raise ApiError(
            "embeddings are not served; use /v1/completions or /v1/chat/completions", status=404, code="not_found"
        )

    async def _models(self, http: web.Request) -> web.StreamResponse:
        body = build_models(self._served, created=self._created, context_tokens=self._info().max_context_tokens)
        return web.Response(body=body, content_type="application/json")

    async def _model(self, http: web.Request) -> web.StreamResponse:
        name = http.match_info["model"]
        if name not in self._served:
            raise model_not_found(name, known=self._served)
        body = build_model(name, created=self._created, context_tokens=self._info().max_context_tokens)
        return web.Response(body=body, content_type="application/json")

    @property
    def _served(self) -> tuple[str, ...]:
        """What a client may ask for now."""
        return self._service.models[:1] if self._lifecycle.ready else ()

    async def _release(self, http: web.Request) -> web.StreamResponse:
        transfer_id = http.match_info["transfer_id"]
        if not self._service.release(transfer_id):
            raise ApiError(
                f"transfer {transfer_id!r}: nothing is pinned under it; it was pulled, given back, or its lease ended",
                status=404,
                code="transfer_not_found",
            )
        return web.Response(status=204)

    async def _health(self, http: web.Request) -> web.StreamResponse:
        phase = self._lifecycle.phase
        return web.Response(status=200 if self._lifecycle.ready else 503, text=f"{phase.value}\n")

    async def _metrics(self, http: web.Request) -> web.StreamResponse:
        return web.Response(body=self._expose(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _worker_info(self, http: web.Request) -> web.StreamResponse:
        return web.Response(body=self._info().to_json(), content_type="application/json")

    async def _drain(self, http: web.Request) -> web.StreamResponse:
        self._lifecycle.marked = True
        return self._drain_document()

    async def _undrain(self, http: web.Request) -> web.StreamResponse:
        self._lifecycle.marked = False
        return self._drain_document()

    async def _drain_state(self, http: web.Request) -> web.StreamResponse:
        return self._drain_document()

    def _drain_document(self) -> web.Response:
        running, pinned = len(self._service.live), self._pinned()
        document = {
            "draining": self._lifecycle.draining,
            "empty": running == 0 and pinned == 0,
            "inflight": running,
            "pinned": pinned,
        }
        return web.json_response(document)

    async def _slowdown(self, http: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await http.read())
        except ValueError as error:
            raise ApiError(f"the body is no JSON: {error}", code="invalid_json") from error
        factor = body.get("factor") if isinstance(body, dict) else None
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise invalid("factor", f"is {factor!r}; expected a number above 0, 1 for none")
        self._driver.set_slowdown(float(factor))
        return web.json_response({"factor": factor})


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return _error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        message = f"{request.method} {request.path}: {error.reason.lower()}"
        code = error.reason.lower().replace(" ", "_")
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return _error_response(ApiError(message, status=error.status, code=code), allow)


def _guard(keeper: TokenKeeper, strangers: Strangers) -> Middleware:
    """Lets members of the deployment pass. A stranger learns neither what is served nor what is running."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS or keeper.admit_bearer(request.headers.get(AUTHORIZATION)):
            return await handler(request)
        strangers.turned_away(str(request.remote), f"{request.method} {request.path[:100]!r}")
        raise ApiError(
            "this worker serves its own deployment alone; send requests to the deployment's router",
            status=401,
            code="invalid_token",
        )

    return guard


def _error_response(error: ApiError, extra: Mapping[str, str] = MappingProxyType({})) -> web.Response:
    extra = dict(extra)
    if error.status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    if error.retry_after_seconds is not None:
        extra["Retry-After"] = str(math.ceil(error.retry_after_seconds))
    return web.Response(status=error.status, body=error.body(), content_type="application/json", headers=extra)


def _refusal(error: ApiError) -> Outcome:
    return Outcome.UNAVAILABLE if error.status == 503 else Outcome.REJECTED


def _timing(generation: Generation) -> dict[str, str]:
    times = list(generation.times.values())
    first = min(item.first_seconds for item in times)
    extra = {headers.TTFT_SECONDS: f"{first - generation.arrival_seconds:.9f}"}
    tpots = [tpot for item in times if (tpot := item.tpot_seconds) is not None]
    if tpots:
        extra[headers.TPOT_SECONDS] = f"{sum(tpots) / len(tpots):.9f}"
    return extra


def _logprobs(items: list[Sampled]) -> list[TokenLogprob]:
    return [item.logprob for item in items if item.logprob is not None]


def _send_at_once(http: web.Request, response: web.StreamResponse, data: bytes) -> bool:
    """Write a chunk of a stream under way past aiohttp's layers, which cost more than the write; False: it has to wait.

    Only for a connection that stands and whose client keeps up; anything else is aiohttp's affair.
    """
    transport = http.transport
    if (
        transport is None
        or not response.chunked
        or transport.is_closing()
        or transport.get_write_buffer_size() > WAITING_BYTES
    ):
        return False
    transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True


async def serve(app: web.Application, *, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen; returns the runner to clean up and the port. Raises OSError if it can't listen."""
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=5.0,
        keepalive_timeout=75.0,
    )
    await runner.setup()
    site = web.TCPSite(runner, host or None, port, reuse_port=False, backlog=1024)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, runner.addresses[0][1]
