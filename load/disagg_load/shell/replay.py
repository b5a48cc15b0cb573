"""The open loop: each request is sent when its time has come, whatever became of the ones before.

A closed loop (send the next when one has ended) waits for a slow server and so hides its queue; here the schedule is
fixed before the first request. What can still go wrong is the client itself: when it is too busy, or out of
connections, requests go out late, and the result is no longer about the server. So every request's lateness is
measured, and one that is later than `late_after_seconds` is marked and counts as a miss.

Time scale: workers under `--time-scale S` live S seconds in one of ours. Schedules are in modelled seconds, so they
run S times faster, and measured times are multiplied by S afterwards (`RequestRecord.scaled`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import msgspec

from disagg_contract.tokenizer import Tokenizer
from disagg_load.answers import AnswerReader, error_message
from disagg_load.errors import ClientError
from disagg_load.prompts import PromptMaker
from disagg_load.records import Outcome, RequestRecord
from disagg_load.requests import TraceRequest, Workload

from .http import ConnectionLostError, HttpClient

_START_DELAY_SECONDS = 0.1
"""Between the decision to start and the first request, so that the first one is not late already."""


class PromptKind(StrEnum):
    """How prompts travel: as token ids (exact for every tokenizer) or as text (for servers that take only text)."""

    TOKENS = "tokens"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a workload is sent.

    `rate_scale` makes arrivals that much more frequent; `time_scale` is the workers'. `model` None: the one the
    server serves. `timeout_seconds` bounds a request from its dispatch on, in the client's seconds.
    """

    url: str
    model: str | None = None
    seed: int = 0
    rate_scale: float = 1.0
    time_scale: float = 1.0
    prompts: PromptKind = PromptKind.TOKENS
    timeout_seconds: float = 600.0
    late_after_seconds: float = 0.1
    max_connections: int = 1024

    def limited_to(self, max_connections: int) -> ReplayOptions:
        """The same options with fewer connections at a time."""
        return replace(self, max_connections=max_connections)


class Observer(Protocol):
    """Is told what happens, as it happens."""

    def sent(self, index: int) -> None:
        """The request at `index` was dispatched."""

    def finished(self, record: RequestRecord) -> None:
        """A request ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The records in modelled seconds, in the order they ended, and whether all of the workload was sent."""

    model: str
    records: tuple[RequestRecord, ...]
    interrupted: bool


async def served_model(client: HttpClient, *, url: str, wanted: str | None, timeout_seconds: float = 10.0) -> str:
    """The model to ask for: `wanted` if the server serves it, else the first it lists.

    Raises `ClientError` when nothing answers, or no (such) model is served.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            response = await client.request("GET", "/v1/models")
    except TimeoutError:
        raise ClientError(f"{url} did not answer within {timeout_seconds:g} s; is it the router's URL?") from None
    except OSError as error:
        reason = "connection refused" if isinstance(error, ConnectionRefusedError) else str(error)
        raise ClientError(f"nothing answers at {url} ({reason}); is the router running there?") from None
    if response.status != 200:
        raise ClientError(f"{url}/v1/models answered {response.status}: {error_message(response.body)}")
    try:
        models = [model["id"] for model in msgspec.json.decode(response.body)["data"]]
    except (msgspec.MsgspecError, KeyError, TypeError):
        raise ClientError(f"{url}/v1/models answered something that is no list of models") from None
    if not models:
        raise ClientError(f"{url} serves no model yet; are its workers ready?")
    if wanted is not None and wanted not in models:
        raise ClientError(f"{url} does not serve {wanted!r}; it serves {', '.join(models)}")
    return wanted or str(models[0])


async def replay(
    workload: Workload,
    options: ReplayOptions,
    *,
    tokenizer: Tokenizer,
    observer: Observer,
    stop: asyncio.Event,
) -> ReplayResult:
    """Send the workload and wait for its answers, or until `stop` is set: then what runs is cut off.

    Raises `ClientError` when the server can't be replayed against at all; single failures are in the records.
    """
    client = HttpClient(options.url, max_connections=options.max_connections)
    try:
        model = await served_model(client, url=options.url, wanted=options.model)
        run = _Run(workload, options, client=client, model=model, tokenizer=tokenizer, observer=observer)
        interrupted = await run.run(stop)
    finally:
        await client.close()
    return ReplayResult(
        model=model,
        records=tuple(record.scaled(options.time_scale) for record in run.records),
        interrupted=interrupted,
    )


class _Run:
    """One replay in progress. Times here are the client's seconds, from the loop's clock."""

    def __init__(
        self,
        workload: Workload,
        options: ReplayOptions,
        *,
        client: HttpClient,
        model: str,
        tokenizer: Tokenizer,
        observer: Observer,
    ) -> None:
        self._workload = workload
        self._options = options
        self._client = client
        self._model = model
        self._prompts = PromptMaker(tokenizer=tokenizer, seed=options.seed, block_tokens=workload.block_tokens)
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time() + _START_DELAY_SECONDS
        self.records: list[RequestRecord] = []

    async def run(self, stop: asyncio.Event) -> bool:
        """Dispatch everything and wait; whether it was interrupted."""
        running: set[asyncio.Task[None]] = set()
        stopped = self._loop.create_task(stop.wait())
        try:
            for index, request in enumerate(self._workload.requests):
                body = self._body(request, index)
                due = self._start + request.arrival_seconds / (self._options.rate_scale * self._options.time_scale)
                if due > self._loop.time():
                    await asyncio.wait([stopped], timeout=due - self._loop.time())
                if stop.is_set():
                    break
                task = self._loop.create_task(self._send(index, request, body, due))
                running.add(task)
                task.add_done_callback(running.discard)
                self._observer.sent(index)
                await asyncio.sleep(0)
            while running and not stop.is_set():
                await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
            interrupted = stop.is_set()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            stopped.cancel()
        return interrupted

    def _body(self, request: TraceRequest, index: int) -> bytes:
        as_text = self._options.prompts is PromptKind.TEXT or isinstance(request.prompt, str)
        make = self._prompts.text if as_text else self._prompts.token_ids
        return msgspec.json.encode(
            {
                "model": self._model,
                "prompt": make(request, index=index),
                "max_tokens": request.output_tokens,
                "min_tokens": request.output_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    async def _send(self, index: int, request: TraceRequest, body: bytes, due: float) -> None:
        reader = AnswerReader()
        sent = [self._loop.time()]
        outcome, message = Outcome.UNFINISHED, ""
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                response = await self._client.request(
                    "POST",
                    "/v1/completions",
                    body=body,
                    headers={"X-Request-Id": f"replay-{self._options.seed}-{index}"},
                    sink=reader.feed,
                    on_sent=lambda now: sent.__setitem__(0, now),
                )
            outcome, message = _judge(reader, response.status, response.body, request.output_tokens)
        except TimeoutError:
            outcome, message = Outcome.TIMEOUT, f"no end within {self._options.timeout_seconds:g} s"
        except ConnectionLostError as error:
            outcome, message = (Outcome.CONNECTION if error.silent else Outcome.BROKEN), str(error)
        except OSError as error:
            outcome, message = Outcome.CONNECTION, str(error)
        finally:
            self._record(index, request, reader, due=due, sent=sent[0], outcome=outcome, message=message)

    def _record(
        self,
        index: int,
        request: TraceRequest,
        reader: AnswerReader,
        *,
        due: float,
        sent: float,
        outcome: Outcome,
        message: str,
    ) -> None:
        def since_start(now: float | None) -> float | None:
            return None if now is None else now - self._start

        record = RequestRecord(
            index=index,
            scheduled_seconds=due - self._start,
            sent_seconds=sent - self._start,
            finished_seconds=self._loop.time() - self._start,
            outcome=outcome,
            input_tokens=request.input_tokens,
            asked_tokens=request.output_tokens,
            tokens=reader.tokens,
            first_token_seconds=since_start(reader.first),
            last_token_seconds=since_start(reader.last),
            gaps_seconds=reader.gaps,
            late=sent - due > self._options.late_after_seconds,
            message=message,
        )
        self.records.append(record)
        self._observer.finished(record)


def _judge(reader: AnswerReader, status: int, body: bytes, asked_tokens: int) -> tuple[Outcome, str]:
    if status != 200:
        return Outcome.STATUS, f"HTTP {status}: {error_message(body)}"
    reader.end()
    if reader.problem:
        return Outcome.BROKEN, reader.problem
    if reader.tokens < asked_tokens:
        return Outcome.TRUNCATED, f"{reader.tokens} of {asked_tokens} tokens ({reader.finish_reason})"
    return Outcome.COMPLETED, ""
