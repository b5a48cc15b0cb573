"""The groups as the planner finds them, and the increases it waits for.

An increase is in flight from the moment it was written until its instances have been ready for one whole stabilisation
window. While it is, no further decrease of that group undoes it and no correction is learned from the overloaded old
instances. An increase that does not become ready (no capacity, a broken image) expires after a bound, so that it cannot
silence the planner for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from disagg_contract.labels import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Replicas of one role: wanted, existing (draining and terminating ones included), ready; None is unknown."""

    replicas: int
    existing: int
    ready: int | None = None

    @property
    def serving(self) -> int:
        """Ready instances, or the existing ones where nobody says what is ready."""
        return self.existing if self.ready is None else self.ready


Fleet = Mapping[Role, Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """An increase under way. `ready_at` is when all instances were first seen ready."""

    target: int
    since: float
    ready_at: float | None = None
    expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What is remembered of a group: its replicas at the last look, and an increase under way."""

    replicas: int
    in_flight: InFlight | None = None

    @property
    def waiting(self) -> bool:
        """Whether instances of an increase are not ready yet, within the bound."""
        return self.in_flight is not None and self.in_flight.ready_at is None and not self.in_flight.expired


def track(
    before: Tracked | None, group: Group, *, now: float, settle_seconds: float, pending_seconds: float
) -> Tracked:
    """What to remember of a group after looking at it."""
    flight = before.in_flight if before is not None else None
    if flight is not None and group.replicas < flight.target:
        flight = None
    grown = group.replicas > (before.replicas if before is not None else group.serving)
    if grown:
        flight = InFlight(target=group.replicas, since=now)
    if flight is None:
        return Tracked(replicas=group.replicas)
    ready = group.serving >= flight.target
    if ready and flight.ready_at is None:
        flight = replace(flight, ready_at=now, expired=False)
    if flight.ready_at is not None:
        if now - flight.ready_at >= settle_seconds:
            return Tracked(replicas=group.replicas)
    elif not flight.expired and now - flight.since >= pending_seconds:
        flight = replace(flight, expired=True)
    return Tracked(replicas=group.replicas, in_flight=flight)
