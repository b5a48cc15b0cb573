"""One request, sans-IO: what happened goes in by method, what to do comes out as one command.

    begin ─► QUEUED ─► PREFILL ─► ANSWER ─► RELAYING ─► ENDED
       └──────┴──(colocated)───────┘

Invariants. At most one leg is out at a time. A leg's load is charged when it is sent and released when it ends, however
it ends. Until the first byte has reached the client any failure may be tried again on a worker that has not failed this
request yet; afterwards nothing is sent twice: the client gets an explicit error. When the answering leg fails, the
prefill is done anew too, because the failed worker may have taken the KV and an attempt never reuses a transfer of an
earlier one. Every exchange has exactly one outcome. KV that a prefill worker holds for a decode leg that did not
answer is handed to ``on_abandoned`` at once, however that came about: only this router knows that nobody will pull it.

Which workers: if a prefill and a decode worker of one revision are there, these two; else a colocated one. The decode
worker is chosen when the prefill is done, by the load of that moment. A completion with several prompts goes to a
decode worker alone, since one set of transfer parameters describes one prompt.
"""

from collections.abc import Callable
from enum import StrEnum, auto
from typing import Final

import msgspec

from disagg_contract.metrics import Leg, Outcome
from disagg_contract.openai import ApiError, error_event, invalid, model_not_found, unavailable
from disagg_router.core.bodies import Inbound, answer_body, prefill_body, read_prefill, transfer_id
from disagg_router.core.candidates import Charge
from disagg_router.core.fleet import Fleet, Worker, WorkerKey
from disagg_router.core.policies import Policy
from disagg_router.core.prompt import PromptReader, PromptView

RETRY_AFTER_SECONDS: Final = 1.0
REJECTED: Final = Outcome.REJECTED
_OVERLOADED: Final = frozenset({408, 429})
"""Below 500, and yet another worker may do better."""


class Failure(StrEnum):
    """Why a leg ended without an answer."""

    CONNECT = "could not be reached"
    TIMEOUT = "did not answer in time"
    RESET = "closed the connection before the answer was complete"
    PROTOCOL = "sent something that is no HTTP answer"
    REFUSED = "answered with an error"
    NO_KV = "did not say where the prompt's KV lies (no kv_transfer_params in its answer)"
    TRUNCATED = "ended the stream without finishing the answer"


_GONE: Final = frozenset({Failure.CONNECT, Failure.TIMEOUT, Failure.RESET})
"""Failures after which a worker must answer a probe before it is chosen again."""


class Send(msgspec.Struct, frozen=True):
    """Send ``body`` to ``worker``."""

    leg: Leg
    worker: Worker
    body: bytes


class Wait(msgspec.Struct, frozen=True):
    """No worker yet: come back when the fleet changes, or when the queue's time is over."""


class Relay(msgspec.Struct, frozen=True):
    """Pass the answer on to the client."""


class Refuse(msgspec.Struct, frozen=True):
    """Tell the client, to whom nothing was sent yet. The exchange has ended."""

    error: ApiError


class Break(msgspec.Struct, frozen=True):
    """End the answer that has begun: ``event`` tells a streaming client why; then close. The exchange has ended."""

    event: bytes


class Stop(msgspec.Struct, frozen=True):
    """Cancel the leg that is out, if any; nobody is left to be told. The exchange has ended."""


class Pause(msgspec.Struct, frozen=True):
    """Nothing to do."""


Command = Send | Wait | Relay | Refuse | Break | Stop | Pause

WAIT: Final = Wait()
RELAY: Final = Relay()
STOP: Final = Stop()
PAUSE: Final = Pause()


class State(StrEnum):
    NEW = auto()
    QUEUED = auto()
    PREFILL = auto()
    ANSWER = auto()
    RELAYING = auto()
    ENDED = auto()


class Exchange:
    """See the module's text. ``attempts`` is the number of workers tried for each leg.

    ``on_abandoned`` gets a prefill worker and the id of a transfer that it holds in vain. Engines whose answer names
    no such id (it is our extension) have leases of their own, and nothing is called.
    """

    __slots__ = (
        "_charge",
        "_failed",
        "_failures",
        "_fleet",
        "_held",
        "_on_abandoned",
        "_policy",
        "_prompt",
        "_reader",
        "_revision",
        "attempts",
        "cached_tokens",
        "leg",
        "leg_errors",
        "outcome",
        "request",
        "retries",
        "state",
        "time_scale",
        "worker",
    )

    def __init__(
        self,
        request: Inbound,
        *,
        fleet: Fleet,
        policy: Policy,
        reader: PromptReader,
        attempts: int,
        on_abandoned: Callable[[Worker, str], None],
    ) -> None:
        self.request: Final = request
        self.attempts: Final = attempts
        self._fleet = fleet
        self._policy = policy
        self._reader = reader
        self._prompt: PromptView | None = None
        self._charge: Charge[Worker] | None = None
        self._on_abandoned = on_abandoned
        self._held: tuple[Worker, msgspec.Raw] | None = None
        self._revision = ""
        self._failed: dict[Leg, set[WorkerKey]] = {}
        self._failures: dict[Leg, int] = {}
        self.state = State.NEW
        self.outcome: Outcome | None = None
        self.leg = Leg.PREFILL
        self.worker: Worker | None = None
        self.time_scale = 1.0
        self.cached_tokens: int | None = None
        """Prompt tokens that the prefill worker's cache supplied; None without a prefill leg."""
        self.leg_errors: list[Leg] = []
        self.retries: list[Leg] = []

    # What happened.

    def begin(self) -> Command:
        """The request is complete."""
        known = self._fleet.known_models
        if known and not self.request.model:
            if len(known) > 1:
                return self._refuse(invalid("model", f"is missing; expected one of {', '.join(known)}"), REJECTED)
            self.request.model = known[0]
        if known and self.request.model not in known:
            return self._refuse(model_not_found(self.request.model, known=known), REJECTED)
        return self._dispatch()

    def fleet_changed(self) -> Command:
        """Perhaps there is a worker now."""
        return self.begin() if self.state is State.QUEUED else PAUSE

    def queue_expired(self) -> Command:
        """No worker came in time."""
        if self.state is not State.QUEUED:
            return PAUSE
        return self._refuse(_no_worker(self.request.model), Outcome.UNAVAILABLE)

    def prefill_answered(self, status: int, body: bytes) -> Command:
        """The prefill leg's answer is complete."""
        command = self.answer_began(status)
        if status >= 400 or command is not RELAY:
            return command
        answer = read_prefill(body)
        if answer is None or answer.transfer is None:
            return self.leg_failed(Failure.NO_KV)
        self._release()
        if self.worker is not None:
            self._held = self.worker, answer.transfer
        self.cached_tokens = answer.usage.cached_tokens if answer.usage else 0
        return self._send_answer(answer.transfer)

    def answer_began(self, status: int) -> Command:
        """Status of the answer: relayed, what is wrong with the request included, or tried elsewhere."""
        if status >= 500 or status in _OVERLOADED:
            return self.leg_failed(Failure.REFUSED, status=status)
        if not 200 <= status < 300 and status < 400:
            return self.leg_failed(Failure.PROTOCOL, status=status)
        if status >= 400:
            self.outcome = REJECTED
        return RELAY

    def relaying(self) -> None:
        """The first byte goes to the client: from here on nothing is tried again."""
        self.state = State.RELAYING
        self._held = None

    def relayed(self) -> None:
        """The answer is complete."""
        if self.outcome is None:
            self._held = None
        self._end(self.outcome or Outcome.COMPLETED)

    def answer_failed(self) -> None:
        """The worker ended its answer with an error event of its own, which the client has got."""
        self.leg_errors.append(self.leg)
        self._end(Outcome.FAILED)

    def leg_failed(self, failure: Failure, *, status: int = 0) -> Command:
        """The leg that is out ended without a complete answer."""
        if self.state not in (State.PREFILL, State.ANSWER, State.RELAYING):
            return PAUSE
        worker, leg = self.worker, self.leg
        self._release()
        self._abandon()
        self.leg_errors.append(leg)
        if worker is not None:
            self._failed.setdefault(leg, set()).add(worker.key)
            if failure in _GONE:
                self._fleet.suspect(worker)
        error = _failed(worker, leg, failure, status)
        if self.state is State.RELAYING:
            self._end(Outcome.FAILED)
            return Break(error_event(error))
        self._failures[leg] = self._failures.get(leg, 0) + 1
        if self._failures[leg] >= self.attempts:
            return self._give_up(error)
        command = self._dispatch(last=error)
        if isinstance(command, Send):
            self.retries.append(leg)
        return command

    def client_gone(self) -> Command:
        """Nobody is waiting for the answer any more."""
        if self.state is State.ENDED:
            return PAUSE
        self._end(Outcome.CANCELLED)
        return STOP

    def shut_down(self) -> Command:
        """The router ends before the answer is complete: the client is told, and not left to guess (case AP3)."""
        if self.state is State.ENDED:
            return PAUSE
        error = unavailable(
            "the router was stopped before the answer was complete",
            code="router_stopped",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )
        if self.state is not State.RELAYING:
            return self._refuse(error, Outcome.UNAVAILABLE)
        self._end(Outcome.FAILED)
        return Break(error_event(error))

    # What to do.

    def _dispatch(self, last: ApiError | None = None) -> Command:
        """Send the first leg that the fleet can serve now; ``last`` is the error of the attempt before."""
        pools = self._fleet.pools(self.request.model)
        untried = self._untried(Leg.PREFILL, pools.prefill)
        if self.request.prompts > 1 and pools.pairs:
            return self._send_answer(None, last)
        if untried:
            return self._send_prefill(untried)
        colocated = self._untried(Leg.DECODE, pools.colocated)
        if colocated:
            return self._send(Leg.DECODE, colocated, answer_body(self.request, None), prefills=True)
        if last is not None and pools.servable:
            return self._give_up(last)
        return self._wait()

    def _send_prefill(self, pool: tuple[Worker, ...]) -> Command:
        command = self._send(Leg.PREFILL, pool, prefill_body(self.request), prefills=True)
        self._revision = command.worker.info.revision
        return command

    def _send_answer(self, transfer: msgspec.Raw | None, last: ApiError | None = None) -> Command:
        """The decode leg, with the KV of a prefill or, for several prompts, without."""
        pools = self._fleet.pools(self.request.model)
        pairs = pools.pairs
        if transfer is None:
            decode = tuple(worker for pair in pairs.values() for worker in pair.decode)
        else:
            decode = pairs[self._revision].decode if self._revision in pairs else ()
        pool = self._untried(Leg.DECODE, decode)
        if pool:
            return self._send(Leg.DECODE, pool, answer_body(self.request, transfer), prefills=transfer is None)
        if decode or last is not None:
            return self._give_up(last or _no_worker(self.request.model))
        return self._wait()

    def _wait(self) -> Command:
        """Queue; a worker that comes back has answered a probe, and may be tried again."""
        self._abandon()
        self._failed.clear()
        self.state = State.QUEUED
        return WAIT

    def _send(self, leg: Leg, pool: tuple[Worker, ...], body: bytes, *, prefills: bool) -> Send:
        prompt = self._prompt
        if prompt is None:
            prompt = self._reader.view(self.request, block_tokens=pool[0].info.block_tokens)
            self._prompt = prompt
        worker = self._policy.choose(pool, prompt)
        tokens = self._policy.dispatched(worker, prompt) if prefills else 0
        self._charge = self._fleet.charge(worker, tokens=tokens, blocks=prompt.blocks)
        self.worker = worker
        self.time_scale = worker.info.time_scale
        self.leg = leg
        self.state = State.PREFILL if leg is Leg.PREFILL else State.ANSWER
        return Send(leg, worker, body)

    def _untried(self, leg: Leg, pool: tuple[Worker, ...]) -> tuple[Worker, ...]:
        failed = self._failed.get(leg)
        if not failed:
            return pool
        return tuple(worker for worker in pool if worker.key not in failed)

    # How it ends.

    def _give_up(self, error: ApiError) -> Command:
        return self._refuse(error, Outcome.UNAVAILABLE if error.status == 503 else Outcome.FAILED)

    def _refuse(self, error: ApiError, outcome: Outcome) -> Command:
        self._end(outcome)
        return Refuse(error)

    def _end(self, outcome: Outcome) -> None:
        if self.state is State.ENDED:
            return
        self._release()
        self._abandon()
        self.state = State.ENDED
        self.outcome = outcome

    def _release(self) -> None:
        if self._charge is not None:
            self._charge.release()
            self._charge = None

    def _abandon(self) -> None:
        """Nobody will pull what the prefill worker holds."""
        held, self._held = self._held, None
        if held is not None and (name := transfer_id(held[1])):
            self._on_abandoned(held[0], name)


def _no_worker(model: str) -> ApiError:
    return unavailable(
        f"model {model!r} has no worker that can take the request; try again later",
        code="no_worker",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def _failed(worker: Worker | None, leg: Leg, failure: Failure, status: int) -> ApiError:
    name = worker.name if worker is not None else ""
    with_status = f" ({status})" if status else ""
    message = f"the {leg} worker {name} {failure}{with_status}"
    if status in (429, 503):
        return unavailable(message, code="overloaded", retry_after_seconds=RETRY_AFTER_SECONDS)
    return ApiError(message, status=504 if failure is Failure.TIMEOUT else 502, code="worker_failed")
