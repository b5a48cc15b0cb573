"""What the core asks a runtime to do. Each action names one instance and says why, for logs and Events."""

from dataclasses import dataclass

from disagg_crds import Reason, Role
from disagg_operator.core.fleet import Instance


@dataclass(frozen=True, slots=True)
class Create:
    """Make one instance of ``role``; on Kubernetes it is born gated. ``base``: it belongs to the base gang."""

    role: Role
    base: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """Mark the instance: routers stop choosing it. It is deleted once it says that it is empty."""

    instance: Instance
    reason: str


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Take the mark away: the instance is wanted again."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Delete:
    """Ask for deletion; the worker's own SIGTERM handling finishes what still runs within the grace period."""

    instance: Instance
    reason: str


Action = Create | Drain | CancelDrain | Delete


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an update cannot go on, and in ``message`` also what would let it."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Actions of one pass.

    ``unaffordable``: instances that are wanted but would break the GPU budget, even once everything that is on its way
    out is gone. ``obstacle``: what keeps old revisions from being replaced.
    """

    actions: tuple[Action, ...] = ()
    unaffordable: int = 0
    obstacle: Obstacle | None = None
