"""A request's way through the roles: prefill leg, transfer, decode leg."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush
from math import isnan, nan

from disagg_contract.labels import Role
from disagg_engine.batching import Emission, Request
from disagg_engine.batching import Transfer as Pull
from disagg_engine.errors import RequestTooLargeError
from disagg_simulator.cluster.member import Member, Phase
from disagg_simulator.cluster.state import KV, RunState
from disagg_simulator.recording import Outcome


class Legs(RunState):
    """What happens to a request from its arrival to its last token."""

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
            priority=self._priorities[index] if self._priorities is not None else 0,
        )
        try:
            member.loop.submit(request, now=self.now)
        except RequestTooLargeError:
            self._refuse(member, index, prompt)
            return
        if role is Role.DECODE:
            self._tell(member, member.loop.start_transfers(now=self.now))
        elif role is Role.PREFILL:
            member.prompts += 1
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
        member.prompts -= 1
        base = self._base.get(index, 0) if self._base else 0
        self._routing.ended(member.number, index, self._inputs[index] + base)
        if not record.tokens[index]:
            record.prefill_end[index] = now
        if self._prefill_emits or not self._pair:
            if not base:
                self._first(index, now)
            else:
                if record.gaps is not None:
                    record.gaps.add(now - self._last_at[index], 1)
                self._last_at[index] = now
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
            first_token_seconds=self._last_at.get(index, self.recording.prefill_end[index]),
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
            self._last_at.setdefault(index, record.prefill_end[index])
        elif not record.tokens[index]:
            record.prefill_start[index] = record.prefill_end[index] = nan
        self._routing.dispatched(member.number, index, self._inputs[index] + base)
        self._submit(member, index, self._inputs[index] + base, computed=False)

    def _release(self, index: int) -> None:
        """The prefill instance may forget a request's KV."""
        member = self.fleet.members[self.recording.prefill_instance[index]]
        self._leave(member, index)
        if member.phase is not Phase.GONE:
            loop, request_id = member.loop, str(index)
            if not loop.holds(request_id):  # its token has come just now: it is put away first
                loop.start_transfers(now=self.now)
            loop.release(request_id, now=self.now)
            if member.prompts or self.options.series:  # else nobody is there to use the room
                self._reschedule(member)

    def _emitted(self, member: Member, emission: Emission, start_seconds: float) -> None:
        """A colocated or decode instance has a request's first or last token."""
        record, index, now = self.recording, int(emission.request_id), emission.seconds
        if emission.index == 1:
            if member.role is Role.WORKER:
                self._routing.prefilled(member.number, index)
            if index in self._base and record.gaps is not None:
                record.gaps.add(now - self._last_at[index], 1)
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

    def _refuse(self, member: Member, index: int, prompt: int) -> None:
        """Larger than the pool."""
        self._routing.ended(member.number, index, prompt)
        self._leave(member, index)
        if member.landing is not None:
            member.landing.forget(str(index))
        elif member.role is Role.DECODE and self._pair:
            self._release(index)
        self._end(index, Outcome.REFUSED)
