"""All instances of a run, and who may be chosen.

    STARTING ──serve──► SERVING ──drain──► DRAINING ──(empty)──► GONE
                          ▲  └──────────── lose ─────────────────► │
                          └──────────────── renew ─────────────────┘

Only serving instances are in the pools. A drained one keeps what it has, pinned KV included, until that is done; a lost
one loses it at once and may come back under its number, with nothing on it.
"""

from __future__ import annotations

from disagg_contract.labels import Role
from disagg_simulator.cluster.member import Member, Phase
from disagg_simulator.deployment import Deployment, Group, Transfer
from disagg_simulator.options import Lane, Options
from disagg_simulator.recording import Recording
from disagg_simulator.routing import Routing


class Fleet:
    """See the module's text. `pools` are the numbers of the serving instances by role, ascending."""

    def __init__(self, deployment: Deployment, *, routing: Routing, recording: Recording, options: Options) -> None:
        self._routing = routing
        self._recording = recording
        self._skips = options.lane is not Lane.STEPPER
        self._gaps = options.gaps
        self._pushed = deployment.transfer is Transfer.PUSH
        self.members: list[Member] = []
        self.pools: dict[Role, tuple[int, ...]] = dict.fromkeys(Role, ())
        for group in deployment.groups:
            for _ in range(group.replicas):
                self.serve(self.create(group, now=0.0))

    def of(self, role: Role) -> list[Member]:
        """Instances of a role that exist, oldest first; one that is lost and will come back is among them."""
        return [member for member in self.members if member.role is role and not member.stopped]

    def create(self, group: Group, *, now: float) -> Member:
        """A further instance, which does not serve yet."""
        rank = sum(other.role is group.role for other in self.members)
        member = Member(
            len(self.members),
            group,
            name=f"{group.role.value}-{rank}",
            started_seconds=now,
            skips=self._skips,
            gaps=self._gaps,
            pushed=self._pushed and group.role is Role.DECODE,
        )
        self.members.append(member)
        self._recording.instances.append(member.record)
        return member

    def serve(self, member: Member) -> None:
        """The instance may be chosen from now on."""
        member.phase = Phase.SERVING
        self._routing.joined(member.number, member.group)
        self._changed(member.role)

    def drain(self, member: Member, *, now: float) -> None:
        """Choose it no longer; it stops when it is empty."""
        if member.phase is Phase.SERVING:
            member.phase = Phase.DRAINING
            self._changed(member.role)
            self.check(member, now=now)
        elif member.phase is not Phase.DRAINING and not member.stopped:
            self._stop(member, now=now)

    def check(self, member: Member, *, now: float) -> None:
        """Something left the instance: a draining one may be empty now."""
        if member.phase is Phase.DRAINING and not member.live:
            self._routing.left(member.number)
            self._stop(member, now=now)

    def lose(self, member: Member, *, now: float, for_ever: bool) -> None:
        """The instance is gone with all it had; what was dispatched to it has to be told as ended before `left`."""
        member.close_books(now=now, gaps=self._recording.gaps)
        member.renew()
        member.phase = Phase.GONE
        if for_ever:
            member.record.stopped_seconds = now
        self._changed(member.role)

    def _stop(self, member: Member, *, now: float) -> None:
        if member.phase is not Phase.GONE:
            member.close_books(now=now, gaps=self._recording.gaps)
            member.renew()
            member.phase = Phase.GONE
        member.record.stopped_seconds = now

    def _changed(self, role: Role) -> None:
        self.pools[role] = tuple(
            member.number for member in self.members if member.role is role and member.phase is Phase.SERVING
        )
