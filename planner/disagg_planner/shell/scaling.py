"""The seams through which the planner acts: groups to scale, and somewhere to say why.

Both runtimes have the same semantics. A scale carries a resource version; a write with a stale one is a conflict, and
the loop reads again and decides again. A refusal is deferred. Conditions and Events are for people and programs that
watch; a sink that fails never stops the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from disagg_contract.control import Condition, Event
from disagg_contract.labels import Role
from disagg_planner.core.fleet import Fleet, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """A group as read, with the version that a write must carry."""

    group: Group
    resource_version: str


class GroupScaler(Protocol):
    """Reads and writes the replicas of the groups of one deployment."""

    async def read(self, role: Role) -> ScaleState:
        """Raises ScalerError."""
        ...

    async def write(self, role: Role, replicas: int, resource_version: str) -> None:
        """Raises ScaleConflict, ScaleRefused or ScalerError."""
        ...


class Reporter(Protocol):
    """Takes conditions and events of the deployment. Raises ScalerError when they did not get through."""

    async def conditions(self, conditions: tuple[Condition, ...]) -> None:
        """All conditions that the planner owns, each time."""
        ...

    async def event(self, event: Event) -> None: ...


class Runtime(GroupScaler, Reporter, Protocol):
    """One side that offers both."""

    async def close(self) -> None: ...


def fleet_of(states: dict[Role, ScaleState]) -> Fleet:
    """The groups without their versions."""
    return {role: state.group for role, state in states.items()}
