"""The event loop of the cluster lane; its rules are in the package's docstring.

Heap entries are tuples (time, priority, order, kind, subject): subject is an instance's number or a request's index.
An instance's entry counts only while its time is the one the instance is `due` at, a transfer's only while it is the
request's current one, so that nothing has to be taken out of the heap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import isnan

from disagg_contract.labels import Role
from disagg_engine.batching import Completed, Emission, FirstToken, Request, Transfer
from disagg_engine.errors import RequestTooLargeError
from disagg_load.columns import Columns
from disagg_simulator.cluster.links import Links
from disagg_simulator.cluster.member import NEVER, Member, Phase
from disagg_simulator.deployment import Deployment, Group, Mode
from disagg_simulator.options import DEFAULTS, Options
from disagg_simulator.prompts import Prompts
from disagg_simulator.recording import Outcome, Recording
from disagg_simulator.routing import Routing, routing_for

# Priorities at equal times, and with them the kinds of events.
STEP, CHANGE, KV, ARRIVAL, PLAN = range(5)

Event = tuple[float, int, int, int]
"""(time, kind, order, subject)."""


def simulate_cluster(
    deployment: Deployment,
    requests: Columns,
    *,
    seed: int,
    options: Options = DEFAULTS,
    routing: Routing | None = None,
) -> Recording:
    """Run `requests` through `deployment` with the pods' own parts. `routing`: instead of the deployment's policy."""
    run = ClusterRun(deployment, requests, seed=seed, options=options, routing=routing)
    return run.run()


class ClusterRun:
    """One run."""

    def __init__(
        self, deployment: Deployment, requests: Columns, *, seed: int, options: Options, routing: Routing | None
    ) -> None:
        self._deployment = deployment
        self._options = options
        self._prompts = Prompts(requests, deployment)
        self._routing = routing or routing_for(deployment, self._prompts, seed=seed)
        self._links = Links(deployment.link)
        self._kv_bytes = deployment.groups[0].instance.model.kv_bytes_per_token
        self._entry = {
            Mode.COLOCATED: Role.WORKER,
            Mode.DECODE_ONLY: Role.DECODE,
        }.get(deployment.mode, Role.PREFILL)
        self._pair = deployment.mode is Mode.DISAGGREGATED
        self._prefill_emits = deployment.first_token is FirstToken.PREFILL
        self.recording = Recording.empty(deployment, requests, seed=seed, gaps=options.gaps)
        self._arrivals = requests.arrival_seconds
        self._inputs = requests.input_tokens
        self._outputs = requests.output_tokens
        self._count = len(requests)
        self._sent = 0
        self._open = 0
        self._base: dict[int, int] = {}
        self._pulls: dict[int, int] = {}
        self._order = 0
        self._heap: list[Event] = []
        self.members: list[Member] = []
        self._pools: dict[Role, tuple[int, ...]] = {}
        self.now = 0.0
        for group in deployment.groups:
            for _ in range(group.replicas):
                self._serve(self._create(group))

    # ---- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> Recording:
        """Until everything is done, or time is up."""
        heap, members, until = self._heap, self.members, self._options.until_seconds
        self._start()
        while heap:
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
            elif kind == KV and self._pulls.get(subject) == order:
                self.now = now
                self._pulled(subject)
        return self._close()

    def _start(self) -> None:
        closed = self._options.concurrency
        if not closed:
            if self._count:
                heappush(self._heap, (self._arrivals[0], ARRIVAL, 0, 0))
            return
        self._arrivals = self._arrivals[:0]
        for _ in range(min(closed, self._count)):
            self._send_next()

    def _send_next(self) -> None:
        """Closed loop: the next request, if one is left, arrives now."""
        index = len(self._arrivals)
        if index < self._count:
            self._arrivals.append(self.now)
            heappush(self._heap, (self.now, ARRIVAL, index, index))

    def _arrive(self, index: int) -> None:
        following = index + 1
        if not self._options.concurrency and following < self._count:
            heappush(self._heap, (self._arrivals[following], ARRIVAL, following, following))
        self._sent = following
        if self._entry is Role.DECODE:
            self._in_place(index)
        else:
            self._dispatch(index, self._entry)

    # ---- legs --------------------------------------------------------------------------------------------------

    def _dispatch(self, index: int, role: Role) -> None:
        """Send a request's leg to an instance of that role."""
        base = self._base.get(index, 0) if self._base else 0
        prompt = self._inputs[index] + base
        left = self._outputs[index] - base
        pool = self._pools[role]
        number = pool[0] if len(pool) == 1 else self._routing.choose(pool, index, prompt)
        member = self.members[number]
        prefill = role is Role.PREFILL
        request = Request(
            request_id=str(index),
            prompt_tokens=prompt,
            max_tokens=1 if prefill else left,
            block_keys=self._prompts.keys(index, member.group),
            remote_kv=role is Role.DECODE,
            keep_kv=prefill and self._pair and not (self._prefill_emits and left == 1),
        )
        record = self.recording
        if role is not Role.DECODE:
            record.prefill_instance[index] = number
        if not prefill:
            record.decode_instance[index] = number
        try:
            member.loop.submit(request, now=self.now)
        except RequestTooLargeError:
            self._refuse(index)
            return
        self._routing.dispatched(number, index, prompt)
        member.live[index] = None
        if role is Role.DECODE:
            self._tell(member, member.loop.start_transfers(now=self.now))
        self._reschedule(member)

    def _in_place(self, index: int) -> None:
        """Decode-only: the KV is there when the request arrives, and with PREFILL its first token too."""
        record = self.recording
        record.prefill_start[index] = record.prefill_end[index] = self.now
        if self._prefill_emits:
            record.first_token[index] = self.now
            record.tokens[index] = 1
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
            if not record.tokens[index]:
                record.first_token[index] = now
            record.tokens[index] = base + 1
            if not self._pair or base + 1 == self._outputs[index]:
                del member.live[index]
                self._end(index, Outcome.COMPLETED)
                return
        self._tell(member, member.loop.start_transfers(now=now))
        self._dispatch(index, Role.DECODE)

    def _tell(self, member: Member, transfers: Sequence[Transfer]) -> None:
        """The decode instance has room for these: their KV starts to travel."""
        for transfer in transfers:
            index = int(transfer.request_id)
            arrival = self.now
            if self._pair:
                self.recording.transfer_tokens += transfer.pull_tokens
                arrival = self._links.reserve(
                    transfer.pull_tokens * self._kv_bytes,
                    source=self.recording.prefill_instance[index],
                    target=member.number,
                    now=self.now,
                )
            if arrival <= self.now:
                self._pulled(index)
            else:
                self._order += 1
                self._pulls[index] = self._order
                heappush(self._heap, (arrival, KV, self._order, index))

    def _pulled(self, index: int) -> None:
        """A request's KV is at its decode instance."""
        now, request_id = self.now, str(index)
        self._pulls.pop(index, None)
        member = self.members[self.recording.decode_instance[index]]
        if self._pair:
            self._release(index)
        emission = member.loop.kv_arrived(request_id, now=now, first_token=self._deployment.first_token)
        if emission is not None:
            self._emitted(member, emission, now)
            self._tell(member, member.loop.start_transfers(now=now))
        self._reschedule(member)

    def _release(self, index: int) -> None:
        """The prefill instance may forget a request's KV."""
        member = self.members[self.recording.prefill_instance[index]]
        member.live.pop(index, None)
        member.loop.release(str(index), now=self.now)
        self._reschedule(member)

    # ---- instances ---------------------------------------------------------------------------------------------

    def _complete(self, member: Member) -> None:
        """Take what an instance has finished by now."""
        loop, now = member.loop, self.now
        record = member.record
        room = False
        for done in loop.complete(now=now):
            iteration = done.iteration
            record.busy_seconds += iteration.free_seconds - iteration.start_seconds
            record.iterations += 1
            record.output_tokens += len(done.emissions)
            if iteration.shape.chunks:
                record.prompt_tokens += iteration.shape.prefill_tokens
                self._started(done)
            if member.role is Role.PREFILL:
                for emission in done.emissions:
                    self._prefilled(member, int(emission.request_id))
                continue
            for emission in done.emissions:
                if emission.index == 1 or emission.last:
                    self._emitted(member, emission, iteration.start_seconds)
                    room = room or emission.last
        if room and member.role is Role.DECODE:
            self._tell(member, loop.start_transfers(now=now))

    def _started(self, done: Completed) -> None:
        """Note when the computation of prompts began."""
        record = self.recording
        tokens, starts = record.tokens, record.prefill_start
        for work in done.works:
            index = int(work.request_id)
            if not tokens[index] and isnan(starts[index]):
                starts[index] = done.iteration.start_seconds

    def _emitted(self, member: Member, emission: Emission, start_seconds: float) -> None:
        """A colocated or decode instance has a request's first or last token."""
        record, index, now = self.recording, int(emission.request_id), emission.seconds
        if emission.index == 1 and member.role is Role.WORKER:
            self._routing.prefilled(member.number, index)
        if not record.tokens[index]:
            record.tokens[index] = 1
            record.first_token[index] = now
            if isnan(record.prefill_start[index]):
                record.prefill_start[index] = start_seconds
            if isnan(record.prefill_end[index]):
                record.prefill_end[index] = now
        if emission.last:
            base = self._base.get(index, 0) if self._base else 0
            del member.live[index]
            self._routing.ended(member.number, index, self._inputs[index] + base)
            record.tokens[index] = self._outputs[index]
            self._end(index, Outcome.COMPLETED)

    def _plan(self, member: Member) -> None:
        """Start an instance's next iteration, if it can."""
        loop = member.loop
        due = loop.next_seconds()
        if due is not None and due <= self.now:
            plan = loop.plan(now=self.now)
            for request_id in plan.preempted:
                index = int(request_id)
                if not self.recording.tokens[index]:
                    self.recording.prefill_start[index] = float("nan")
                member.record.preemptions += 1
            if plan.transfers:
                self._tell(member, plan.transfers)
        self._reschedule(member)

    def _reschedule(self, member: Member) -> None:
        """Make the heap know when the instance wants to be asked next."""
        due = member.loop.next_seconds()
        if due is None or due == member.due:
            return
        if due <= self.now:
            heappush(self._heap, (self.now, PLAN, member.number, member.number))
            return
        member.due = due
        heappush(self._heap, (due, STEP, member.number, member.number))

    # ---- the fleet ---------------------------------------------------------------------------------------------

    def _create(self, group: Group) -> Member:
        number = len(self.members)
        rank = sum(other.role is group.role for other in self.members)
        member = Member(number, group, name=f"{group.role.value}-{rank}", started_seconds=self.now)
        self.members.append(member)
        self.recording.instances.append(member.record)
        return member

    def _serve(self, member: Member) -> None:
        member.phase = Phase.SERVING
        self._routing.joined(member.number, member.group)
        self._changed()

    def _changed(self) -> None:
        for role in Role:
            self._pools[role] = tuple(
                member.number for member in self.members if member.role is role and member.phase is Phase.SERVING
            )

    # ---- ends --------------------------------------------------------------------------------------------------

    def _refuse(self, index: int) -> None:
        """Larger than the pool."""
        if self.recording.prefill_instance[index] >= 0 and self._pair:
            self._release(index)
        self._end(index, Outcome.REFUSED)

    def _end(self, index: int, outcome: Outcome) -> None:
        record = self.recording
        record.outcome[index] = outcome
        if outcome is Outcome.COMPLETED:
            record.finish[index] = self.now
        record.end_seconds = self.now
        if self._options.concurrency:
            self._send_next()

    def _close(self) -> Recording:
        """What is under way stays unfinished."""
        record = self.recording
        until = self._options.until_seconds
        if self._heap:
            record.end_seconds = until
        for member in self.members:
            counts = member.loop.counts()
            member.record.prefix_queried_tokens += counts.prefix_queried_tokens
            member.record.prefix_hit_tokens += counts.prefix_hit_tokens
            if member.role is Role.PREFILL:
                continue
            for index in member.live:
                base = self._base.get(index, 0)
                record.tokens[index] = max(
                    record.tokens[index], base + member.loop.admitted(str(index)).generated_tokens
                )
        if self._options.concurrency:
            missing = self._count - len(self._arrivals)
            self._arrivals.extend([record.end_seconds] * missing)
            record.requests = replace(record.requests, arrival_seconds=self._arrivals)
        return record
