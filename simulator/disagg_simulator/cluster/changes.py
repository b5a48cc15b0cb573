"""Instances that come, slow down and are lost, and what becomes of the requests on them."""

from __future__ import annotations

from collections import deque
from math import inf, nan, nextafter

from disagg_contract.labels import Role
from disagg_simulator.cluster.legs import Legs
from disagg_simulator.cluster.member import Member, Phase
from disagg_simulator.recording import Outcome


class Changes(Legs):
    """Changes of the fleet while requests are under way."""

    def serve(self, member: Member) -> None:
        """The instance serves from now on, and first of all those who wait for one."""
        if member.stopped:
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
        # A window ends with the step in flight; one that ends just now is done.
        member.loop.set_slowdown(member.slowdown, now=nextafter(now, inf))
        lost = list(member.live)
        for index in lost:
            self._count_tokens(member, index)
        self.fleet.lose(member, now=now, for_ever=for_ever)
        for index in lost:
            self._abandon(member, role, index)
        self._routing.left(member.number)
        for index in lost:
            self._try_again(index)

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
        self._last_at[index] = self.now
        self._dispatch(index, self._entry)
