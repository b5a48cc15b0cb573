"""The event loop of the cluster lane; its rules are in the package's docstring."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from math import inf, isnan, nan, nextafter

from disagg_contract.labels import Role
from disagg_engine.batching import Completed
from disagg_load.errors import WorkloadError
from disagg_simulator.cluster.changes import Changes
from disagg_simulator.cluster.member import NEVER, Member, Phase
from disagg_simulator.cluster.state import ARRIVAL, KV, PLAN, STEP
from disagg_simulator.recording import Recording


class ClusterRun(Changes):
    """One run: call `run` once."""

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
                self._pending -= 1
                self._actions[subject]()
        return self._close()

    def _begin(self) -> None:
        if not self.options.concurrency:
            if self._count:
                heappush(self._heap, (self._arrivals[0], ARRIVAL, 0, 0))
            return
        self._arrivals = self._arrivals[:0]
        for _ in range(min(self.options.concurrency, self._count)):
            self._send_next()

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
        self._arrived_count = following
        if self._meter is not None:
            self._meter.arrived()
        if self._entry is Role.DECODE:
            self._in_place(index)
        else:
            self._dispatch(index, self._entry)

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
                    self.recording.prefill_start[index] = self.recording.prefill_end[index] = nan
            if plan.transfers:
                self._tell(member, plan.transfers)
        self._reschedule(member)

    def _close(self) -> Recording:
        """What is under way stays unfinished."""
        record, until = self.recording, self.options.until_seconds
        if self.unfinished:
            record.end_seconds = until if until < inf else self.now
        for member in self.fleet.members:
            if member.phase is not Phase.GONE:
                if member.live:
                    member.loop.set_slowdown(member.slowdown, now=nextafter(record.end_seconds, inf))
                member.close_books(now=record.end_seconds, gaps=record.gaps)
            for index in member.live:
                self._count_tokens(member, index)
        if self.options.concurrency:
            self._arrivals.extend([record.end_seconds] * (self._count - len(self._arrivals)))
            record.requests = replace(record.requests, arrival_seconds=self._arrivals)
        return record
