"""The event loop of the cluster lane; its rules are in the package's docstring.

Heap entries are tuples (time, kind, order, subject): subject is an instance's number, a request's index, or the place
of an action. An instance's entry counts only while its time is the one the instance is `due` at, a transfer's only
while it is the request's current one, so that nothing has to be taken out of the heap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf, isnan, nan, nextafter

from disagg_contract.labels import Role
from disagg_engine.batching import Completed, Emission, FirstToken, Request
from disagg_engine.batching import Transfer as Pull
from disagg_engine.errors import RequestTooLargeError
from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_simulator.cluster.fleet import Fleet
from disagg_simulator.cluster.links import Links
from disagg_simulator.cluster.member import NEVER, Member, Phase
from disagg_simulator.cluster.meter import Meter
from disagg_simulator.deployment import Deployment, Mode, Transfer
from disagg_simulator.options import Options
from disagg_simulator.prompts import Prompts
from disagg_simulator.recording import Outcome, Recording
from disagg_simulator.routing import Routing, routing_for

# The kinds of events, which are their priorities at equal times.
STEP, CHANGE, KV, ARRIVAL, PLAN = range(5)

Event = tuple[float, int, int, int]


class ClusterRun:
    """One run. `meter`, where there is one, is told what a router and its workers would count."""

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
        self._kv_bytes = deployment.groups[0].instance.model.kv_bytes_per_token
        self._pair = deployment.mode is Mode.DISAGGREGATED
        self._push = deployment.transfer is Transfer.PUSH
        self._prefill_emits = deployment.first_token is FirstToken.PREFILL
        self._entry = {Mode.COLOCATED: Role.WORKER, Mode.DECODE_ONLY: Role.DECODE}.get(deployment.mode, Role.PREFILL)
        self._arrivals = requests.arrival_seconds
        self._inputs, self._outputs = requests.input_tokens, requests.output_tokens
        self._count = len(requests)
        self._base: dict[int, int] = {}
        """Tokens that the client had before the current attempt, of requests that lost an earlier one."""
        self._lost_at: dict[int, float] = {}
        self._pulls: dict[int, int] = {}
        self._waiting: dict[Role, deque[int]] = {role: deque() for role in Role}
        """Requests that no instance could be chosen for."""
        self._order = 0
        self._heap: list[Event] = []
        self._actions: list[Callable[[], None]] = []
        self.now = 0.0
        self.unfinished = self._count
        self.fleet = Fleet(deployment, routing=self._routing, recording=self.recording, options=options)

    # ---- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> Recording:
        """Until everything is done, or time is up."""
        heap, members, until = self._heap, self.fleet.members, self.options.until_seconds
        self._begin()
        while heap and self.unfinished:
            now, kind, order, subject = heappop(heap)
            if now > until:
                break
            if kind == STEP:
                member = members[subject]
                if member.due != now:
                    continue
                self.now = now
                member.due = NEVER
                self._complete(member)
                if heap and heap[0][0] <= now:
                    heappush(heap, (now, PLAN, subject, subject))
                else:
                    self._plan(member)
            elif kind == PLAN:
                member = members[subject]
                self._complete(member)  # only an iteration that took no time
                self._plan(member)
            elif kind == ARRIVAL:
                self.now = now
                self._arrive(subject)
            elif kind == KV:
                if self._pulls.get(subject) == order:
                    self.now = now
                    self._arrived(subject)
            else:
                self.now = now
                self._actions[subject]()
        return self._close()

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something to the instances at that time."""
        self._order += 1
        heappush(self._heap, (seconds, CHANGE, self._order, len(self._actions)))
        self._actions.append(action)

    def _begin(self) -> None:
        if not self.options.concurrency:
            if self._count:
                heappush(self._heap, (self._arrivals[0], ARRIVAL, 0, 0))
            return
        self._arrivals = self._arrivals[:0]
        for _ in range(min(self.options.concurrency, self._count)):
            self._send_next()

    def _send_next(self) -> None:
        """Closed loop: the next request, if one is left, arrives now."""
        index = len(self._arrivals)
        if index < self._count:
            self._arrivals.append(self.now)
            heappush(self._heap, (self.now, ARRIVAL, index, index))

    def _arrive(self, index: int) -> None:
        following = index + 1
        if not self.options.concurrency and following < self._count:
            seconds = self._arrivals[following]
            if not seconds >= self.now:
                raise WorkloadError(
                    f"request {following} arrives at {seconds} s, the one before it at {self.now} s; arrivals must be "
                    "numbers that ascend"
                )
            heappush(self._heap, (seconds, ARRIVAL, following, following))
        if self._meter is not None:
            self._meter.arrived()
        if self._entry is Role.DECODE:
            self._in_place(index)
        else:
            self._dispatch(index, self._entry)

    # ---- legs --------------------------------------------------------------------------------------------------

    def _dispatch(self, index: int, role: Role) -> None:
        """Send a request's leg to an instance of that role; it waits where there is none."""
        pool = self.fleet.pools[role]
        if not pool:
            self._waiting[role].append(index)
            return
        prompt = self._inputs[index]
        if self._base:
            prompt += self._base.get(index, 0)
        number = pool[0] if len(pool) == 1 else self._routing.choose(pool, index, prompt)
        member = self.fleet.members[number]
        if role is not Role.DECODE:
            self.recording.prefill_instance[index] = number
        if role is not Role.PREFILL:
            self.recording.decode_instance[index] = number
        self._routing.dispatched(number, index, prompt)
        member.live[index] = None
        if self._push and self._pair and role is Role.DECODE:
            self._send(member, index, prompt)
        else:
            self._submit(member, index, prompt)

    def _submit(self, member: Member, index: int, prompt: int, *, computed: bool = True) -> None:
        """Hand the leg to the instance's loop; `computed`: a decode instance gets the prompt's KV from elsewhere."""
        role = member.role
        left = self._outputs[index] - prompt + self._inputs[index]
        request = Request(
            request_id=str(index),
            prompt_tokens=prompt,
            max_tokens=1 if role is Role.PREFILL else left,
            block_keys=self._prompts.keys(index, member.group),
            remote_kv=computed and role is Role.DECODE,
            keep_kv=role is Role.PREFILL and self._pair and not (self._prefill_emits and left == 1),
        )
        try:
            member.loop.submit(request, now=self.now)
        except RequestTooLargeError:
            self._refuse(member, index, prompt)
            return
        if role is Role.DECODE:
            self._tell(member, member.loop.start_transfers(now=self.now))
        self._reschedule(member)

    def _in_place(self, index: int) -> None:
        """Decode-only: the KV is there when the request arrives, and with PREFILL its first token too."""
        record = self.recording
        record.prefill_start[index] = record.prefill_end[index] = self.now
        if self._prefill_emits:
            self._first(index, self.now)
            if self._outputs[index] == 1:
                self._end(index, Outcome.COMPLETED)
                return
        self._dispatch(index, Role.DECODE)

    def _prefilled(self, member: Member, index: int) -> None:
        """A prefill leg has its token."""
        record, now = self.recording, self.now
        base = self._base.get(index, 0) if self._base else 0
        self._routing.ended(member.number, index, self._inputs[index] + base)
        if not record.tokens[index]:
            record.prefill_end[index] = now
        if self._prefill_emits or not self._pair:
            if not base:
                self._first(index, now)
            elif record.gaps is not None:
                record.gaps.add(now - self._lost_at[index], 1)
            record.tokens[index] = base + 1
            if not self._pair or base + 1 == self._outputs[index]:
                self._leave(member, index)
                self._end(index, Outcome.COMPLETED)
                return
        self._dispatch(index, Role.DECODE)

    def _reserve(self, member: Member, index: int, tokens: int) -> float:
        """Put KV on the link to a decode instance; returns when it is there."""
        self.recording.transfer_tokens += tokens
        seconds = self._links.reserve(
            tokens * self._kv_bytes,
            source=self.recording.prefill_instance[index],
            target=member.number,
            now=self.now,
        )
        if self._meter is not None:
            self._meter.transferred(seconds - self.now)
        return seconds

    def _send(self, member: Member, index: int, prompt: int) -> None:
        """Push: the KV leaves for the decode instance at once."""
        self._travel(index, self._reserve(member, index, prompt))

    def _tell(self, member: Member, pulls: Sequence[Pull]) -> None:
        """The decode instance has room for these: their KV starts to travel, where it is not there already."""
        for pull in pulls:
            index = int(pull.request_id)
            if not self._pair:
                self._ready(member, index)
            elif member.landing is None:
                self._travel(index, self._reserve(member, index, pull.pull_tokens))
            elif member.landing.claim(pull.request_id):
                self._ready(member, index)
            else:
                self._compute_here(member, index)

    def _travel(self, index: int, arrival: float) -> None:
        if arrival <= self.now:
            self._arrived(index)
            return
        self._order += 1
        self._pulls[index] = self._order
        heappush(self._heap, (arrival, KV, self._order, index))

    def _arrived(self, index: int) -> None:
        """A request's KV is at its decode instance, and its prefill instance may forget it."""
        self._pulls.pop(index, None)
        member = self.fleet.members[self.recording.decode_instance[index]]
        self._release(index)
        if member.landing is None:
            self._ready(member, index)
            return
        prompt = self._inputs[index] + self._base.get(index, 0)
        if member.landing.land(str(index), prompt):
            self._submit(member, index, prompt)
        else:
            self._compute_here(member, index)

    def _ready(self, member: Member, index: int) -> None:
        """An admitted request has its KV."""
        loop, now = member.loop, self.now
        emission = loop.kv_arrived(
            str(index),
            now=now,
            first_token=self.deployment.first_token,
            first_token_seconds=self.recording.prefill_end[index] if index not in self._base else now,
        )
        if emission is not None:
            self._emitted(member, emission, now)
            if emission.last:
                self._tell(member, loop.start_transfers(now=now))
        self._reschedule(member)

    def _compute_here(self, member: Member, index: int) -> None:
        """The decode instance has lost a prompt's KV for want of room: it computes it, with the token that is out."""
        record = self.recording
        base = self._base.get(index, 0)
        if str(index) in member.loop:
            member.loop.cancel(str(index), now=self.now)
        self._routing.ended(member.number, index, self._inputs[index] + base)
        if self._prefill_emits:
            base = self._base[index] = record.tokens[index]
            self._lost_at[index] = record.prefill_end[index]
        else:
            record.prefill_start[index] = record.prefill_end[index] = nan
        self._routing.dispatched(member.number, index, self._inputs[index] + base)
        self._submit(member, index, self._inputs[index] + base, computed=False)

    def _release(self, index: int) -> None:
        """The prefill instance may forget a request's KV."""
        member = self.fleet.members[self.recording.prefill_instance[index]]
        self._leave(member, index)
        if member.phase is not Phase.GONE:
            member.loop.start_transfers(now=self.now)  # what has just ended is pinned only by this
            member.loop.release(str(index), now=self.now)
            self._reschedule(member)

    # ---- instances ---------------------------------------------------------------------------------------------

    def _complete(self, member: Member) -> None:
        """Take what an instance has finished by now."""
        loop, role, record = member.loop, member.role, member.record
        ended = False
        for done in loop.complete(now=self.now):
            iteration = done.iteration
            member.flight = None
            record.busy_seconds += iteration.free_seconds - iteration.start_seconds
            record.iterations += iteration.steps
            record.output_tokens += done.tokens
            if iteration.chunks:
                record.prompt_tokens += iteration.prefill_tokens
                self._started(done)
            if self.options.series:
                member.slice(iteration)
            if self.recording.gaps is not None:
                for gap in done.gaps:
                    self.recording.gaps.add(gap.seconds, gap.sequences)
            if self._meter is not None:
                self._meter.iterated(role, done)
            if role is Role.PREFILL:
                for emission in done.emissions:
                    self._prefilled(member, int(emission.request_id))
                continue
            for emission in done.emissions:
                if emission.index == 1 or emission.last:
                    self._emitted(member, emission, iteration.start_seconds)
                    ended = ended or emission.last
        if ended and role is Role.DECODE and member.phase is not Phase.GONE:
            self._tell(member, loop.start_transfers(now=self.now))

    def _started(self, done: Completed) -> None:
        """Note when the computation of prompts began."""
        tokens, starts = self.recording.tokens, self.recording.prefill_start
        for work in done.works:
            index = int(work.request_id)
            if not tokens[index] and isnan(starts[index]):
                starts[index] = done.iteration.start_seconds

    def _emitted(self, member: Member, emission: Emission, start_seconds: float) -> None:
        """A colocated or decode instance has a request's first or last token."""
        record, index, now = self.recording, int(emission.request_id), emission.seconds
        if emission.index == 1:
            if member.role is Role.WORKER:
                self._routing.prefilled(member.number, index)
            if index in self._base and record.gaps is not None:
                record.gaps.add(now - self._lost_at[index], 1)
            if not record.tokens[index]:
                if isnan(record.prefill_start[index]):
                    record.prefill_start[index] = start_seconds
                if isnan(record.prefill_end[index]):
                    record.prefill_end[index] = now
                self._first(index, now)
        if emission.last:
            base = self._base.get(index, 0) if self._base else 0
            self._routing.ended(member.number, index, self._inputs[index] + base)
            self._leave(member, index)
            record.tokens[index] = self._outputs[index]
            self._end(index, Outcome.COMPLETED)

    def _plan(self, member: Member) -> None:
        """Start an instance's next iteration, if it can."""
        loop = member.loop
        due = loop.next_seconds()
        if due is not None and due <= self.now:
            plan = loop.plan(now=self.now)
            if plan.iteration is not None:
                member.flight = plan.iteration
            for request_id in plan.preempted:
                index = int(request_id)
                member.record.preemptions += 1
                if not self.recording.tokens[index]:
                    self.recording.prefill_start[index] = nan
            if plan.transfers:
                self._tell(member, plan.transfers)
        self._reschedule(member)

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

    # ---- changes of the fleet ----------------------------------------------------------------------------------

    def serve(self, member: Member) -> None:
        """The instance serves from now on, and first of all those who wait for one."""
        if member.phase is Phase.DRAINING or (member.phase is Phase.GONE and not isnan(member.record.stopped_seconds)):
            return
        self.fleet.serve(member)
        waiting, self._waiting[member.role] = self._waiting[member.role], deque()
        for index in waiting:
            self._dispatch(index, member.role)

    def set_slowdown(self, member: Member, factor: float) -> None:
        """Iterations of the instance planned from now on take that many times as long."""
        if member.phase is not Phase.GONE:
            member.slowdown = factor
            member.loop.set_slowdown(factor, now=self.now)
            self._reschedule(member)

    def lose(self, member: Member, *, for_ever: bool) -> None:
        """The instance and all KV on it are lost; its requests start again elsewhere, or fail."""
        if member.phase in (Phase.GONE, Phase.STARTING):
            return
        now, role = self.now, member.role
        for_ever = for_ever or member.phase is Phase.DRAINING
        member.loop.set_slowdown(member.slowdown, now=now)  # a window ends with the step in flight
        lost = list(member.live)
        for index in lost:
            self._count_tokens(member, index)
        self.fleet.lose(member, now=now, for_ever=for_ever)
        for index in lost:
            self._abandon(member, role, index)
        self._routing.left(member.number)
        for index in lost:
            self._try_again(index)

    def _count_tokens(self, member: Member, index: int) -> None:
        """Put down how many tokens the client has, of a request that is under way there."""
        if member.role is not Role.PREFILL and str(index) in member.loop:
            record, base = self.recording, self._base.get(index, 0)
            record.tokens[index] = max(record.tokens[index], base + member.loop.admitted(str(index)).generated_tokens)

    def _abandon(self, member: Member, role: Role, index: int) -> None:
        """Take back what a request that was lost on `member` has elsewhere, and its load."""
        record = self.recording
        self._pulls.pop(index, None)
        prompt = self._inputs[index] + self._base.get(index, 0)
        if role is not Role.PREFILL:
            self._routing.ended(member.number, index, prompt)
            prefill = record.prefill_instance[index]
            if self._pair and index in self.fleet.members[prefill].live:
                self._release(index)
            return
        decode = record.decode_instance[index]
        if index in self._waiting[Role.DECODE]:
            self._waiting[Role.DECODE].remove(index)
        elif decode >= 0 and index in self.fleet.members[decode].live:
            other = self.fleet.members[decode]
            self._routing.ended(decode, index, prompt)
            if str(index) in other.loop:
                other.loop.cancel(str(index), now=self.now)
                self._tell(other, other.loop.start_transfers(now=self.now))
                self._reschedule(other)
            self._leave(other, index)
        else:
            self._routing.ended(member.number, index, prompt)

    def _try_again(self, index: int) -> None:
        """A lost request: its prompt and the tokens sent are one longer prompt, or it has failed."""
        record = self.recording
        record.decode_instance[index] = -1
        record.retries += 1
        sent = record.tokens[index]
        if not sent:
            record.prefill_start[index] = record.prefill_end[index] = nan
        if not self.options.retry:
            self._end(index, Outcome.FAILED)
            return
        if self._entry is Role.DECODE and self._prefill_emits:
            sent -= 1  # the last token sent takes the place of the first, which is there with the KV
        if sent:
            self._base[index] = sent
        self._lost_at[index] = self.now
        self._dispatch(index, self._entry)

    # ---- ends --------------------------------------------------------------------------------------------------

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

    def _refuse(self, member: Member, index: int, prompt: int) -> None:
        """Larger than the pool."""
        self._routing.ended(member.number, index, prompt)
        self._leave(member, index)
        if member.role is Role.DECODE and self._pair and not self._push:
            self._release(index)
        self._end(index, Outcome.REFUSED)

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

    def _close(self) -> Recording:
        """What is under way stays unfinished."""
        record, until = self.recording, self.options.until_seconds
        if self.unfinished:
            record.end_seconds = until if until < inf else self.now
        for member in self.fleet.members:
            if member.phase is not Phase.GONE:
                if member.live:
                    member.loop.set_slowdown(member.slowdown, now=nextafter(record.end_seconds, inf))
                member.close_books(now=record.end_seconds)
            for index in member.live:
                self._count_tokens(member, index)
        if self.options.concurrency:
            self._arrivals.extend([record.end_seconds] * (self._count - len(self._arrivals)))
            record.requests = replace(record.requests, arrival_seconds=self._arrivals)
        return record
