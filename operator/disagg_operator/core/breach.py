"""Gangs that lost members: when the rest is torn down to be placed anew as one.

A base gang is placed whole or not at all, so a gang that was never placed has no instance on a node and cannot be
broken. One that was placed is broken while a role has fewer than its base on nodes that live; what is left then holds
GPUs and is of no use. Usually a replacement finds room nearby within seconds. Where it does not for
``termination_delay_seconds``, everything that is placed goes, and the gang looks for another domain whole. With nothing
placed it is broken no longer, so that happens once a breach.

Instances that run but are not ready are no breach: to place them anew does not make a wrong image right. Nor is a base
that was raised: a breach starts only where a role had, at the last look, what it now lacks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from disagg_crds import ConditionType, DeploymentStatus, Role, find_condition
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target


@dataclass(frozen=True, slots=True)
class Breach:
    """``short``: placed instances and the least number, by role. ``since``: seconds since the epoch."""

    short: Mapping[Role, tuple[int, int]]
    since: float
    delay_seconds: float

    @property
    def message(self) -> str:
        """A sentence that stays the same as long as the numbers do."""
        roles = "; ".join(
            f"{role.value}: {up} of at least {least} are placed" for role, (up, least) in self.short.items()
        )
        return f"{roles}; if that lasts for {self.delay_seconds:g} s, what is left is placed anew with them as one gang"

    def due(self, now: float) -> float:
        """Seconds until the gang is torn down; 0 or less: now."""
        return self.since + self.delay_seconds - now


def find_breach(target: Target, observed: Observed, previous: DeploymentStatus) -> Breach | None:
    """The breach that there is now, a new one or the one that ``previous`` tells of."""
    short = {role: (_up(section, observed), section.floor) for role, section in target.roles.items()}
    short = {role: (up, least) for role, (up, least) in short.items() if up < least}
    if not short or not any(_is_up(instance) for instance in observed.serving if instance.role in target.roles):
        return None
    known = find_condition(previous.conditions, ConditionType.MIN_AVAILABLE_BREACHED)
    if known is not None and known.status == "True":
        return Breach(short, known.last_transition_time.timestamp(), target.termination_delay_seconds)
    if not any(_had(previous, role) >= least for role, (_, least) in short.items()):
        return None
    return Breach(short, observed.now, target.termination_delay_seconds)


def remains(observed: Observed) -> tuple[Instance, ...]:
    """What is torn down: everything that has a place."""
    return tuple(instance for instance in observed.instances if instance.alive and instance.placed)


def _is_up(instance: Instance) -> bool:
    return instance.scheduled and not instance.lost


def _up(section: RoleTarget, observed: Observed) -> int:
    return sum(1 for instance in observed.of(section.role) if instance.serving and _is_up(instance))


def _had(previous: DeploymentStatus, role: Role) -> int:
    known = previous.roles.get(role)
    return 0 if known is None or known.scheduled is None else known.scheduled
