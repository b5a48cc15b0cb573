"""One accepted HTTP request: its answers in the making, and what has been sampled and not yet been sent.

The driver calls in from its steps; the connection's task waits for `next`. A request's further choices share their
prompt with its first one and are submitted once that has its first token, so that they find the prompt's blocks in the
cache instead of computing them n times over.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from disagg_contract.openai import ApiError, GenerationRequest, Usage
from disagg_contract.transfer import RemoteKV
from disagg_engine.batching import Transfer
from disagg_engine.errors import RequestTooLargeError
from disagg_workers.driver import EngineDriver
from disagg_workers.sequence import AnswerSequence, Sampled
from disagg_workers.telemetry import AnswerTimes, Telemetry
from disagg_workers.transfer.inbound import Inbound


@dataclass(slots=True, kw_only=True)
class Prompted:
    """One prompt of a request and its choices; all but the first wait until it has its first token."""

    sequences: list[AnswerSequence]
    waiting: list[AnswerSequence] = field(default_factory=list)
    remote: RemoteKV | None = None


class Generation:
    """See the module's text. ``arrival_seconds`` is the engine time at which the request's head was read."""

    def __init__(
        self,
        *,
        request: GenerationRequest,
        identity: str,
        created: int,
        arrival_seconds: float,
        prompts: Sequence[Prompted],
        driver: EngineDriver,
        telemetry: Telemetry,
        prefilled: Callable[[AnswerSequence], RemoteKV] | None,
    ) -> None:
        self.request = request
        self.identity = identity
        self.created = created
        self.arrival_seconds = arrival_seconds
        self.remote_kv: RemoteKV | None = None
        self.times: dict[int, AnswerTimes] = {}
        self.reasons: list[str] = []
        self._prompts = list(prompts)
        self._driver = driver
        self._telemetry = telemetry
        self._prefilled = prefilled
        self._lead = {prompted.sequences[0].request_id: prompted for prompted in prompts}
        self._sequences = [sequence for prompted in prompts for sequence in prompted.sequences]
        self._open = len(self._sequences)
        self._cached_tokens = 0
        self._fresh: list[Sampled] = []
        self._error: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._inbound: dict[str, tuple[Inbound, asyncio.Task[None]]] = {}

    # ---- life --------------------------------------------------------------------------------------------------

    def start(self, inbound: Callable[[AnswerSequence, RemoteKV], tuple[Inbound, asyncio.Task[None]]]) -> None:
        """Submit the first choice of every prompt. ``inbound`` starts a pull. Raises RequestTooLargeError."""
        for prompted in self._prompts:
            first, prompted.waiting = prompted.sequences[0], prompted.sequences[1:]
            if prompted.remote is not None:
                self._inbound[first.request_id] = inbound(first, prompted.remote)
            try:
                self._submit(first, remote_kv=prompted.remote is not None)
            except RequestTooLargeError:
                # A pull starts first, because the loop may have room for it at once. One whose sequence never was
                # in the loop waits for room that nobody will reserve, and would renew its lease for ever.
                if prompted.remote is not None:
                    self._inbound.pop(first.request_id)[1].cancel()
                raise

    def _submit(self, sequence: AnswerSequence, *, remote_kv: bool = False) -> None:
        self._driver.submit(sequence, self, remote_kv=remote_kv, keep_kv=self._prefilled is not None)

    def cancel(self) -> None:
        """Drop everything that is not finished; its KV is free when this returns."""
        for prompted in self._prompts:
            prompted.waiting.clear()
        for sequence in self._sequences:
            # Only a pull that is cut short: one that has done its part may still be saying so to the other side.
            if self._driver.cancel(sequence) and sequence.request_id in self._inbound:
                self._inbound[sequence.request_id][1].cancel()

    def fail(self, error: ApiError) -> None:
        """End the request with an error that its client gets to see."""
        if self._error is None and self._open:
            self._error = error
            self.cancel()
            self._wake()

    def owns(self, sequence: AnswerSequence) -> bool:
        """Whether the sequence is one of this request's."""
        return sequence in self._sequences

    # ---- the driver's consumer ---------------------------------------------------------------------------------

    def sampled(self, sequence: AnswerSequence, sampled: Sampled) -> None:
        """A token came into being."""
        times = self.times.get(sampled.index)
        if times is None:
            self._first(sequence)
            self._telemetry.token(None)
        else:
            seconds = sequence.last_seconds or times.last_seconds
            self._telemetry.token(seconds - times.last_seconds)
            times.last_seconds = seconds
            times.tokens += 1
        self._fresh.append(sampled)
        if sampled.finish_reason is not None:
            self._open -= 1
            self.reasons.append(sampled.finish_reason)
            if self._prefilled is not None:
                self.remote_kv = self._prefilled(sequence)
        if self.request.stream or self._open == 0:
            self._wake()

    def _first(self, sequence: AnswerSequence) -> None:
        admitted = self._driver.loop.admitted(sequence.request_id)
        first = sequence.first_seconds or 0.0
        inbound = self._inbound.get(sequence.request_id)
        self.times[sequence.index] = AnswerTimes(
            arrival_seconds=self.arrival_seconds,
            admitted_seconds=admitted.arrival_seconds
            if admitted.admitted_seconds is None
            else admitted.admitted_seconds,
            first_seconds=first,
            last_seconds=first,
            tokens=1,
            remote=inbound is not None,
        )
        prompted = self._lead.get(sequence.request_id)
        if prompted is None:
            return
        self._cached_tokens += admitted.cached_tokens
        if prompted.waiting:
            # Not from inside the driver's step: submitting would close sequences whose tokens it still holds.
            self._driver.at(first, lambda _: self._submit_waiting(prompted))

    def _submit_waiting(self, prompted: Prompted) -> None:
        waiting, prompted.waiting = prompted.waiting, []
        for sequence in waiting:
            self._submit(sequence)

    def transfer_due(self, sequence: AnswerSequence, transfer: Transfer, *, now: float) -> None:
        """The loop has room for the prompt's KV."""
        self._inbound[sequence.request_id][0].reserve(transfer, now=now)

    # ---- the connection ----------------------------------------------------------------------------------------

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            prompt_tokens=sum(prompted.sequences[0].prompt_tokens for prompted in self._prompts),
            completion_tokens=sum(sequence.generated_tokens for sequence in self._sequences),
            cached_tokens=self._cached_tokens,
        )

    @property
    def choices(self) -> int:
        """Answers of the whole request."""
        return len(self._sequences)

    def prompt_of(self, index: int) -> list[int]:
        """Prompt token ids of a choice."""
        sequence = self._sequences[index]
        return sequence.tokens[: sequence.prompt_tokens]

    async def next(self) -> list[Sampled]:
        """What was sampled since the last call; [] once everything was handed out. Raises ApiError.

        For a request that is not streamed: everything at once, at the end.
        """
        whole = not self.request.stream
        while self._error is None and self._open and (whole or not self._fresh):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._fresh and (self._error is None or not whole):
            fresh, self._fresh = self._fresh, []
            return fresh
        if self._error is not None:
            raise self._error
        return []

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
