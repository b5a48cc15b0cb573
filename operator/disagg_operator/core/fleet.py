"""What the core sees of the world: instances, never manifests.

The Kubernetes shell fills these values from pods, the process runtime from child processes; every decision is a
function of them, of the target and of ``now`` (seconds since the epoch), so both runtimes decide alike.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from disagg_crds import Role

PARTNERS: Final = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}
"""Roles that serve a request together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance as observed.

    ``gated``: carries our scheduling gate. ``pinned_node``: node that we chose; ``placed_at`` when (epoch seconds).
    ``node``: node that it is bound to. ``domain``: the one it was placed in, as its label says. ``ready``: serves.
    ``draining_since``: when it was marked; None: not marked. ``drained``: it was asked and says that nothing is in
    flight or waiting to be pulled. ``failed``: it ended for good and holds no resources. ``terminating``: deletion was
    asked for; it holds its GPUs until it is gone. ``trouble``: what keeps it from starting, in words that stay the same
    from one attempt to the next; empty while nothing does. ``pairing``: what it agrees on with its partners, see
    :func:`disagg_operator.core.target.compatibility`. ``lost``: its node is gone or unreachable, so nobody can tell
    when it ends. ``fragments``: how much it fragments the cluster, see
    :func:`disagg_operator.core.placement.fragmenting`; 0 where nobody asked.
    """

    name: str
    uid: str
    role: Role
    gpus: int
    created_at: float
    revision: str = ""
    gang: str = ""
    gated: bool = False
    pinned_node: str = ""
    placed_at: float | None = None
    node: str = ""
    domain: str = ""
    ready: bool = False
    draining_since: float | None = None
    drained: bool = False
    terminating: bool = False
    failed: bool = False
    trouble: str = ""
    pairing: str = ""
    lost: bool = False
    fragments: int = 0

    @property
    def alive(self) -> bool:
        """Wanted and not on its way out."""
        return not self.terminating and not self.failed

    @property
    def held_gpus(self) -> int:
        """GPUs that it keeps others from: none once it failed, or is to be deleted on a node that is lost."""
        return 0 if self.failed or (self.lost and self.terminating) else self.gpus

    @property
    def leaving(self) -> bool:
        """On its way out, and its GPUs with it."""
        return self.held_gpus > 0 and (self.terminating or self.draining)

    @property
    def draining(self) -> bool:
        return self.draining_since is not None

    @property
    def serving(self) -> bool:
        """Counts towards the replicas: alive and not marked for draining."""
        return self.alive and not self.draining

    @property
    def scheduled(self) -> bool:
        """Bound to a node. A pinned instance is a reservation, not yet scheduled."""
        return bool(self.node)

    @property
    def placed(self) -> bool:
        """Has a node of its own, bound or reserved."""
        return bool(self.node or self.pinned_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTarget:
    """What is wanted of a role: ``replicas`` instances, of which ``base`` are placed as one gang.

    ``drain_seconds`` bounds a drain: after it the instance is deleted whatever it still holds. ``pairing``: what its
    instances agree on with those of the partner role. ``max_surge`` and ``max_unavailable``: most instances above and
    below ``replicas`` while a revision is replaced.
    """

    role: Role
    replicas: int
    base: int
    gpus: int
    revision: str = ""
    drain_seconds: float = 120.0
    pairing: str = ""
    max_surge: int = 1
    max_unavailable: int = 1

    @property
    def floor(self) -> int:
        """Instances of the base gang, fewer where fewer are wanted at all."""
        return min(self.base, self.replicas)

    @property
    def needed(self) -> int:
        """Instances that have to serve while a revision is replaced."""
        return max(self.floor, self.replicas - self.max_unavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is wanted of a deployment.

    ``gpu_budget``: most GPUs its instances may hold at a time; None: no bound. ``paused``: no revision is replaced.
    ``termination_delay_seconds``: how long the base may be broken before the gang is placed anew. ``retiring``: roles
    that left the spec and whose instances still exist; nothing of them is wanted.
    """

    deployment: str
    roles: Mapping[Role, RoleTarget]
    gpu_budget: int | None = None
    bind_deadline_seconds: float = 60.0
    paused: bool = False
    termination_delay_seconds: float = 1800.0
    retiring: Mapping[Role, RoleTarget] = field(default_factory=dict)

    def partner(self, role: Role) -> RoleTarget | None:
        """The other half of a prefill or decode role, if any of it is wanted."""
        found = self.roles.get(PARTNERS[role]) if role in PARTNERS else None
        return found if found is not None and found.replicas > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterView:
    """The router as observed. ``updated`` counts replicas of the current manifest."""

    desired: int
    current: int = 0
    ready: int = 0
    updated: int = 0
    up_to_date: bool = True


@dataclass(frozen=True, slots=True)
class Counts:
    """Instances of a role by state; each alive instance is in ``current``. ``troubles`` are distinct, in order."""

    desired: int
    current: int = 0
    gated: int = 0
    scheduled: int = 0
    ready: int = 0
    updated: int = 0
    updated_ready: int = 0
    draining: int = 0
    terminating: int = 0
    troubles: tuple[str, ...] = ()


def count(target: RoleTarget, instances: Iterable[Instance]) -> Counts:
    """Counts of one role, always afresh from the instances themselves: nothing derived is kept."""
    mine = [instance for instance in instances if instance.role == target.role]
    serving = [instance for instance in mine if instance.serving]
    updated = [instance for instance in serving if instance.revision == target.revision]
    return Counts(
        desired=target.replicas,
        current=sum(1 for instance in mine if instance.alive),
        gated=sum(1 for instance in serving if instance.gated),
        scheduled=sum(1 for instance in serving if instance.scheduled),
        ready=sum(1 for instance in serving if instance.ready),
        updated=len(updated),
        updated_ready=sum(1 for instance in updated if instance.ready),
        draining=sum(1 for instance in mine if instance.alive and instance.draining),
        terminating=sum(1 for instance in mine if instance.terminating),
        troubles=tuple(sorted({instance.trouble for instance in serving if instance.trouble and not instance.ready})),
    )


@dataclass(frozen=True, slots=True)
class Observed:
    """The fleet of one deployment at one moment. ``now`` is in seconds since the epoch.

    ``no_room``: the gang that waits found no room when it was last tried.
    """

    now: float
    instances: tuple[Instance, ...] = field(default_factory=tuple)
    no_room: bool = False

    def of(self, role: Role) -> tuple[Instance, ...]:
        return tuple(instance for instance in self.instances if instance.role == role)

    @property
    def serving(self) -> tuple[Instance, ...]:
        """Instances that count towards the replicas."""
        return tuple(instance for instance in self.instances if instance.serving)
