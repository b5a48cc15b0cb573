"""Admission: from a checked request to sequences in the loop, or a refusal that says why.

Order of the checks: is the worker taking requests, is the model served here, do the prompt and the answer fit, is there
room in the queue. A prefill leg generates one token and keeps its KV; a decode leg pulls it. A leg with several prompts
is not disaggregated: its prefill leg answers at once that nothing was kept, and the decode leg computes the prompts
itself. Ids inside the engine are our own and fresh, whatever the client calls its request (case KV8).
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from disagg_contract.chat import encode_chat
from disagg_contract.errors import DocumentError
from disagg_contract.openai import (
    ApiError,
    Endpoint,
    GenerationRequest,
    check_text_length,
    check_token_ids,
    invalid,
    model_not_found,
    resolve_max_tokens,
    response_id,
    unavailable,
)
from disagg_contract.transfer import RemoteKV, wants_remote_decode, wants_remote_prefill
from disagg_engine.errors import RequestTooLargeError
from disagg_workers.contents import ContentStore
from disagg_workers.driver import EngineDriver
from disagg_workers.generation import Generation, Prompted
from disagg_workers.instance import Simulated
from disagg_workers.language import Language
from disagg_workers.lifecycle import Lifecycle
from disagg_workers.sequence import AnswerSequence
from disagg_workers.telemetry import Telemetry
from disagg_workers.transfer.client import PullClient
from disagg_workers.transfer.inbound import Inbound, PullSetup, give_back
from disagg_workers.transfer.pins import PinTable

_log = logging.getLogger(__name__)


class _Leg(msgspec.Struct):
    """All that is read of a request that was refused."""

    kv_transfer_params: dict[str, Any] | None = None


_leg: Final = msgspec.json.Decoder(_Leg)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAddress:
    """Where decode workers find this worker's KV."""

    engine_id: str
    host: str
    port: int


class Service:
    """Turns requests into generations. One a worker."""

    def __init__(
        self,
        *,
        simulated: Simulated,
        driver: EngineDriver,
        store: ContentStore,
        lifecycle: Lifecycle,
        telemetry: Telemetry,
        pins: PinTable,
        pulls: PullSetup,
    ) -> None:
        self.live: set[Generation] = set()
        self.address = KvAddress(engine_id="", host="", port=0)
        self._simulated = simulated
        self._config = simulated.config
        self._driver = driver
        self._store = store
        self._lifecycle = lifecycle
        self._telemetry = telemetry
        self._pins = pins
        self._pulls = pulls
        self._pulling: set[asyncio.Task[None]] = set()
        self._language = Language(
            simulated.tokenizer,
            mean_tokens=self._config.answer_tokens_mean,
            sigma=self._config.answer_tokens_sigma,
        )

    @property
    def models(self) -> tuple[str, ...]:
        """Names that requests may use: the served one, and the catalogue's."""
        return tuple(dict.fromkeys((self._simulated.served_name, self._config.model)))

    # ---- requests ----------------------------------------------------------------------------------------------

    def accept(self, request: GenerationRequest, *, arrival_seconds: float) -> Generation:
        """Queue a request. Raises ApiError, and nothing was queued."""
        self._check_open(request)
        prefill_leg = wants_remote_decode(request.kv_transfer_params)
        if prefill_leg:
            request = replace(request, sampling=replace(request.sampling, n=1, max_tokens=1, min_tokens=1))
        prompts = self._prompts(request)
        kept = prefill_leg and len(prompts) == 1
        remote = None
        if wants_remote_prefill(request.kv_transfer_params) and len(prompts) == 1:
            remote = self._remote(request, prompt_tokens=len(prompts[0]))
        generation = Generation(
            request=request,
            identity=response_id(request.endpoint, uuid.uuid4().hex),
            created=int(time.time()),
            arrival_seconds=arrival_seconds,
            prompts=self._sequences(request, prompts, remote),
            driver=self._driver,
            telemetry=self._telemetry,
            prefilled=self._keep if kept else None,
        )
        try:
            generation.start(self._start_pull)
        except RequestTooLargeError as error:
            generation.cancel()
            raise invalid(request.prompt_field, str(error)) from error
        self.live.add(generation)
        return generation

    def is_skipped(self, request: GenerationRequest) -> bool:
        """A prefill leg of several prompts: answered without work, so that the decode leg computes them."""
        return wants_remote_decode(request.kv_transfer_params) and len(request.prompts) > 1

    def done(self, generation: Generation) -> None:
        """The connection is finished with it; whatever still runs is dropped."""
        generation.cancel()
        self.live.discard(generation)

    def withdraw(self, generation: Generation) -> None:
        """The answer of a prefill leg did not reach anybody: nobody will pull its KV."""
        if generation.remote_kv is not None:
            self._pins.acknowledge(generation.remote_kv.transfer_id)

    def release(self, transfer_id: str) -> bool:
        """Nobody will pull this KV: free it now. False if nothing is pinned under that id."""
        return self._pins.acknowledge(transfer_id)

    def decline(self, body: bytes) -> None:
        """A request was refused. If it is a decode leg its KV won't be pulled, and the prefill worker is told so.

        Otherwise every request with a bad limit, which only the decode leg carries, would keep its prompt's KV pinned
        for a whole lease, and a few of them a whole prefill worker. Takes the raw body, since it may not even parse.
        """
        if b'"kv_transfer_params"' not in body:
            return
        try:
            params = _leg.decode(body).kv_transfer_params
            if not wants_remote_prefill(params):
                return
            remote = RemoteKV.from_params(params or {})
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DocumentError):
            return  # nothing that names a pin
        task = asyncio.create_task(give_back(PullClient(remote), remote), name=f"kv-decline-{remote.transfer_id}")
        self._pulling.add(task)
        task.add_done_callback(self._pulling.discard)

    def _check_open(self, request: GenerationRequest) -> None:
        if not self._lifecycle.ready:
            what = "is draining" if self._lifecycle.draining else "is still loading the model"
            raise unavailable(f"this worker {what}; try another one", code="worker_not_ready")
        if request.model is not None and request.model not in self.models:
            raise model_not_found(request.model, known=self.models)
        counts = self._driver.counts()
        if counts.waiting >= self._config.max_waiting:
            raise unavailable(f"{counts.waiting} requests are waiting already", code="queue_full")

    def _prompts(self, request: GenerationRequest) -> list[Sequence[int]]:
        tokenizer = self._simulated.tokenizer
        chat = sum(len(message.content) for message in request.messages)
        for characters in (chat, *(len(prompt) for prompt in request.prompts if isinstance(prompt, str))):
            check_text_length(
                request,
                characters=characters,
                longest_token_characters=tokenizer.longest_token_characters,
                context_tokens=self._simulated.context_tokens,
            )
        if request.endpoint is Endpoint.CHAT:
            return [encode_chat(tokenizer, request.messages)]
        prompts: list[Sequence[int]] = []
        for prompt in request.prompts:
            if isinstance(prompt, str):
                prompts.append(tokenizer.encode(prompt))
            else:
                check_token_ids(prompt, vocabulary_size=tokenizer.vocabulary_size)
                prompts.append(prompt)
        return prompts

    def _sequences(
        self, request: GenerationRequest, prompts: Sequence[Sequence[int]], remote: RemoteKV | None
    ) -> list[Prompted]:
        prompted = []
        for number, prompt in enumerate(prompts):
            limit = resolve_max_tokens(
                request, prompt_tokens=len(prompt), context_tokens=self._simulated.context_tokens
            )
            if request.resumed_tokens >= len(prompt):
                raise invalid("disagg_resumed_tokens", f"{request.resumed_tokens} of a prompt of {len(prompt)} tokens")
            sequences = [
                AnswerSequence(
                    request_id=uuid.uuid4().hex,
                    index=number * request.sampling.n + choice,
                    prompt=prompt,
                    max_tokens=limit,
                    sampling=request.sampling,
                    choice=choice,
                    resumed_tokens=request.resumed_tokens,
                    default_seed=self._config.seed,
                    store=self._store,
                    language=self._language,
                    tokenizer=self._simulated.tokenizer,
                )
                for choice in range(request.sampling.n)
            ]
            prompted.append(Prompted(sequences=sequences, remote=remote))
        return prompted

    # ---- hand-over ---------------------------------------------------------------------------------------------

    def _remote(self, request: GenerationRequest, *, prompt_tokens: int) -> RemoteKV:
        """Where the prompt's KV lies. Raises ApiError where the two workers can't fit together (case KV5)."""
        try:
            remote = RemoteKV.from_params(request.kv_transfer_params or {})
        except DocumentError as error:
            raise ApiError(str(error), param="kv_transfer_params", code="invalid_value") from error
        block = self._store.block_tokens
        if remote.block_tokens not in (0, block):
            raise _mismatch(f"blocks hold {remote.block_tokens} tokens there and {block} here")
        if remote.tokens not in (0, prompt_tokens):
            raise _mismatch(
                f"the prompt has {remote.tokens} tokens there and {prompt_tokens} here: tokenizers or templates differ"
            )
        if len(remote.block_ids) * block < prompt_tokens:
            raise _mismatch(f"{len(remote.block_ids)} blocks of {block} do not hold {prompt_tokens} tokens")
        return remote

    def _keep(self, sequence: AnswerSequence) -> RemoteKV:
        """Pin the KV of a finished prefill leg and say where it is."""
        block = self._store.block_tokens
        blocks = tuple(self._driver.block_ids(sequence))[: -(-sequence.prompt_tokens // block)]
        pin = self._pins.add(request_id=sequence.request_id, block_ids=blocks, tokens=sequence.prompt_tokens)
        return RemoteKV(
            engine_id=self.address.engine_id,
            block_ids=blocks,
            host=self.address.host,
            port=self.address.port,
            transfer_id=pin.transfer_id,
            tokens=sequence.prompt_tokens,
            block_tokens=block,
            logits=sequence.view.digest.hex(),
            lease_seconds=self._pins.lease_seconds,
            tp_size=self._config.tensor,
            proof=self._pulls.keeper is not None,
        )

    def _start_pull(self, sequence: AnswerSequence, remote: RemoteKV) -> tuple[Inbound, "asyncio.Task[None]"]:
        inbound = Inbound(sequence, remote, self._pulls)
        task = asyncio.create_task(inbound.run(), name=f"kv-pull-{sequence.request_id}")
        self._pulling.add(task)
        task.add_done_callback(lambda ended: self._pull_ended(ended, sequence))
        return inbound, task

    def _pull_ended(self, task: "asyncio.Task[None]", sequence: AnswerSequence) -> None:
        self._pulling.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("a KV pull ended in a bug", exc_info=error)
        for generation in list(self.live):
            if generation.owns(sequence):
                generation.fail(ApiError("the KV of the prompt could not be pulled", status=500, code="kv_failed"))

    async def close(self) -> None:
        """Wait for pulls that are giving their pins back."""
        for task in list(self._pulling):
            task.cancel()
        if self._pulling:
            await asyncio.wait(self._pulling, timeout=3.0)


def _mismatch(problem: str) -> ApiError:
    return ApiError(f"kv_transfer_params: {problem}", status=409, param="kv_transfer_params", code="kv_mismatch")
