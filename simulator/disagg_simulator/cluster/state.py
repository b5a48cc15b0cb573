"""What every part of a run shares: the heap, the instances, the recording, and how a request begins and ends.

Heap entries are tuples (time, kind, order, subject): subject is an instance's number, a request's index, or the place
of an action. The kind is the priority at equal times. An instance's entry counts only while its time is the one the
instance is `due` at, a transfer's only while it is the request's current one, so nothing has to be taken out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappush

from disagg_contract.labels import Role
from disagg_engine.batching import FirstToken
from disagg_load.columns import Columns
from disagg_simulator.cluster.fleet import Fleet
from disagg_simulator.cluster.links import Links
from disagg_simulator.cluster.member import NEVER, Member, Phase
from disagg_simulator.cluster.meter import Meter
from disagg_simulator.deployment import Deployment, Mode, Transfer
from disagg_simulator.options import Options
from disagg_simulator.prompts import Prompts
from disagg_simulator.recording import Outcome, Recording
from disagg_simulator.routing import Routing, routing_for

STEP, CHANGE, KV, ARRIVAL, PLAN = range(5)
"""The kinds of events, in their order at equal times."""

Event = tuple[float, int, int, int]


class RunState:
    """See the module's text. `meter`, where there is one, is told what a router and its workers would count."""

    def __init__(
        self,
        deployment: Deployment,
        requests: Columns,
        *,
        seed: int,
        options: Options,
        routing: Routing | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.deployment = deployment
        self.options = options
        self.recording = Recording.empty(deployment, requests, seed=seed, gaps=options.gaps)
        self._prompts = Prompts(requests, deployment)
        self._routing = routing or routing_for(deployment, self._prompts, seed=seed)
        self._meter = meter
        self._links = Links(deployment.link)
        self._kv_bytes = deployment.groups[0].instance.kv_bytes_per_token
        self._pair = deployment.mode is Mode.DISAGGREGATED
        self._push = deployment.transfer is Transfer.PUSH
        self._prefill_emits = deployment.first_token is FirstToken.PREFILL
        self._entry = {Mode.COLOCATED: Role.WORKER, Mode.DECODE_ONLY: Role.DECODE}.get(deployment.mode, Role.PREFILL)
        self._arrivals = requests.arrival_seconds
        self._inputs, self._outputs = requests.input_tokens, requests.output_tokens
        self._priorities = requests.priorities
        self._count = len(requests)
        self._base: dict[int, int] = {}
        """Tokens that the client had before the current attempt, of requests that lost an earlier one."""
        self._last_at: dict[int, float] = {}
        """When such a request's client got its last token, or else when it was lost."""
        self._pulls: dict[int, int] = {}
        self._waiting: dict[Role, deque[int]] = {role: deque() for role in Role}
        """Requests that no instance could be chosen for."""
        self._order = 0
        self._heap: list[Event] = []
        self._actions: list[Callable[[], None]] = []
        self._pending = 0
        """Actions still to come."""
        self._arrived_count = 0
        self.now = 0.0
        self.unfinished = self._count
        self.fleet = Fleet(deployment, routing=self._routing, recording=self.recording, options=options)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something to the instances at that time."""
        self._order += 1
        heappush(self._heap, (seconds, CHANGE, self._order, len(self._actions)))
        self._actions.append(action)
        self._pending += 1

    @property
    def stuck(self) -> bool:
        """Whether nothing will happen any more but for the action under way: no arrival, no work, no other action."""
        return (
            self._arrived_count == self._count
            and not self._pending
            and not self._pulls
            and not (self._heap and self._heap[0][0] <= self.now)
            and not any(member.due < NEVER for member in self.fleet.members)
        )

    def _send_next(self) -> None:
        """Closed loop: the next request, if one is left, arrives now."""
        index = len(self._arrivals)
        if index < self._count:
            self._arrivals.append(self.now)
            heappush(self._heap, (self.now, ARRIVAL, index, index))

    def _reschedule(self, member: Member) -> None:
        """Make the heap know when the instance wants to be asked next."""
        if self.options.series:
            member.note(self.now)
        due = member.loop.next_seconds()
        if due is None or due == member.due:
            return
        if due <= self.now:
            heappush(self._heap, (self.now, PLAN, member.number, member.number))
            return
        member.due = due
        heappush(self._heap, (due, STEP, member.number, member.number))

    def _first(self, index: int, seconds: float) -> None:
        """The client gets a request's first token."""
        record = self.recording
        record.tokens[index] = 1
        record.first_token[index] = seconds
        if self._meter is not None:
            self._meter.first(
                seconds - self._arrivals[index], prefill_seconds=record.prefill_end[index] - record.prefill_start[index]
            )

    def _leave(self, member: Member, index: int) -> None:
        """The request has nothing more on the instance."""
        member.live.pop(index, None)
        if member.phase is Phase.DRAINING:
            self.fleet.check(member, now=self.now)

    def _end(self, index: int, outcome: Outcome) -> None:
        record = self.recording
        record.outcome[index] = outcome
        record.end_seconds = self.now
        self.unfinished -= 1
        if outcome is Outcome.COMPLETED:
            record.finish[index] = self.now
            if self._meter is not None:
                self._meter.ended(self._inputs[index], self._outputs[index], self.now - record.first_token[index])
        if self.options.concurrency:
            self._send_next()

    def _count_tokens(self, member: Member, index: int) -> None:
        """Put down how many tokens the client has, of a request that is under way there."""
        if member.role is not Role.PREFILL and str(index) in member.loop:
            record, base = self.recording, self._base.get(index, 0)
            record.tokens[index] = max(record.tokens[index], base + member.loop.admitted(str(index)).generated_tokens)
