"""What the API server is on Kubernetes: scales with resource versions, conditions and events, in memory.

Writers are the planner and people (through the control API) and the runtime itself. A scale is written with the
resource version that was read; a stale one is refused, and the writer reads and decides again.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from disagg_contract.control import Condition, Event, Scale
from disagg_contract.labels import Role
from disagg_crds import DisaggDeployment
from disagg_crds import Role as SpecRole
from disagg_operator.core.fleet import Counts
from disagg_operator.core.groups import decide_group, revert_message
from disagg_operator.errors import Conflict, NotFound

KEPT_EVENTS: Final = 256


class Board:
    """Wanted replicas of each role, and what was said about the deployment."""

    def __init__(self, deployment: DisaggDeployment, *, clock: Callable[[], float] = time.time) -> None:
        self._deployment = deployment
        self._clock = clock
        self._version = 1
        self._scales: dict[Role, Scale] = {}
        self._conditions: dict[str, Condition] = {}
        self._events: deque[tuple[float, Event]] = deque(maxlen=KEPT_EVENTS)
        for role, section in deployment.spec.roles.items():
            decision = decide_group(section, live=None, remembered=None)
            self._scales[Role(role.value)] = Scale(Role(role.value), decision.replicas, "1")

    def scale(self, role: Role) -> Scale:
        """Raises NotFound when the deployment has no such role."""
        try:
            return self._scales[role]
        except KeyError:
            known = ", ".join(found.value for found in self._scales)
            raise NotFound(f"no group of role {role.value}; this deployment has {known}", code=404) from None

    def scales(self) -> tuple[Scale, ...]:
        return tuple(self._scales.values())

    def rescale(self, role: Role, *, replicas: int, resource_version: str) -> Scale:
        """Write wanted replicas. Raises Conflict when ``resource_version`` is not the newest."""
        found = self.scale(role)
        if resource_version != found.resource_version:
            sent = f"not {resource_version!r}" if resource_version else "and none was sent"
            raise Conflict(
                f"resource version of {role.value} is {found.resource_version!r}, {sent}: read the scale again, "
                "and send the version that it has",
                code=409,
            )
        if replicas != found.replicas:
            self._version += 1
            found = replace(found, replicas=replicas, resource_version=str(self._version))
            self._scales[role] = found
        return found

    def revert(self) -> None:
        """Put hand-made scales of roles with fixed replicas back, and say so."""
        for role, section in self._deployment.spec.roles.items():
            key = Role(role.value)
            scale = self._scales[key]
            decision = decide_group(section, live=scale.replicas, remembered=scale.replicas)
            if decision.revert:
                self.rescale(key, replicas=decision.replicas, resource_version=scale.resource_version)
                self.record("Warning", "ScaleReverted", revert_message(key.value, decision))

    def observe(self, counts: Mapping[SpecRole, Counts]) -> None:
        """Show how many instances there are."""
        for role, count in counts.items():
            key = Role(role.value)
            self._scales[key] = replace(self._scales[key], current=count.current, ready=count.ready)

    def replicas(self) -> dict[SpecRole, int]:
        return {SpecRole(role.value): scale.replicas for role, scale in self._scales.items()}

    def put_condition(self, condition: Condition) -> None:
        self._conditions[condition.type] = condition

    def conditions(self) -> tuple[Condition, ...]:
        return tuple(self._conditions.values())

    def record(self, kind: str, reason: str, message: str) -> None:
        self._events.append((self._clock(), Event(kind, reason, message)))

    def events(self) -> tuple[tuple[float, Event], ...]:
        return tuple(self._events)
