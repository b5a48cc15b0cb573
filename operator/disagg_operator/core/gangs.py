"""Which pods have to be placed together, derived afresh from the fleet at every pass.

The base gang is the base number of instances of every role. While it is incomplete, what is missing of it is one
all-or-nothing gang: the whole base at first, a single pod when one was lost later. Further instances are gangs of
their own, and may go once the base is *scheduled*: waiting for Ready would deadlock workers that need their peers.
Where an update changes what prefill and decode agree on, the first new instance of each is of no use without the other,
so these two are one gang.
Because nothing is read from a status, a deployment that returns from zero takes the same path as a new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target


@dataclass(frozen=True, slots=True)
class Gang:
    """Instances to place together. ``base``: they are (what is missing of) the base gang."""

    name: str
    instances: tuple[Instance, ...]
    base: bool


@dataclass(frozen=True, slots=True)
class GangState:
    """``gangs`` can be placed now. ``absent`` base instances do not exist yet, so the base has to wait for them.

    ``base_scheduled``: every role has its base bound to nodes. ``base_placed``: bound or reserved.
    """

    gangs: tuple[Gang, ...]
    absent: int
    base_scheduled: bool
    base_placed: bool


def base_name(deployment: str) -> str:
    """Value of the gang label of base instances."""
    return deployment


def gangs(target: Target, observed: Observed) -> GangState:
    """The gangs that wait for a place."""
    missing: list[Instance] = []
    absent = 0
    scheduled = placed = True
    for role in target.roles.values():
        serving = _serving(observed, role)
        scheduled &= sum(1 for instance in serving if instance.scheduled) >= role.floor
        gap = max(0, role.floor - sum(1 for instance in serving if instance.placed))
        placed &= gap == 0
        waiting = _waiting(serving)
        missing += waiting[:gap]
        absent += max(0, gap - len(waiting))
    if not placed:
        ready = () if absent else (Gang(base_name(target.deployment), tuple(missing), True),)
        return GangState(ready, absent, False, False)
    extras = [instance for role in target.roles.values() for instance in _waiting(_serving(observed, role))]
    pair = _first_pair(target, observed)
    small = [Gang(instance.name, (instance,), False) for instance in extras if instance not in pair]
    if pair:
        small.insert(0, Gang(pair[0].name, pair, False))
    return GangState(tuple(small) if scheduled else (), 0, scheduled, True)


def _first_pair(target: Target, observed: Observed) -> tuple[Instance, ...]:
    """One waiting instance of both prefill and decode, while neither has a placed one that could serve with it."""
    found: list[Instance] = []
    for role in target.roles.values():
        if target.partner(role.role) is None:
            continue
        new = [instance for instance in _serving(observed, role) if instance.pairing == role.pairing]
        waiting = _waiting(new)
        if not waiting or any(instance.placed for instance in new):
            return ()
        found.append(waiting[0])
    return tuple(found)


def overdue(target: Target, observed: Observed) -> tuple[tuple[Instance, ...], ...]:
    """Attempts that missed the bind deadline, each with all instances that have to be given back.

    An attempt is the set of instances that were pinned at the same moment under the same gang name. One straggler
    gives back the whole attempt, bound members included, because half a gang holds GPUs that nobody can use; only
    where others of the deployment have a place already does it give back the stragglers alone.
    """
    attempts: dict[tuple[str, float], list[Instance]] = {}
    for instance in observed.instances:
        if instance.alive and instance.placed_at is not None and not instance.gated:
            attempts.setdefault((instance.gang, instance.placed_at), []).append(instance)
    late: list[tuple[Instance, ...]] = []
    for (_, placed_at), members in sorted(attempts.items()):
        unbound = [instance for instance in members if not instance.scheduled]
        if unbound and observed.now - placed_at >= target.bind_deadline_seconds:
            accompanied = any(instance.placed and instance not in members for instance in observed.serving)
            late.append(tuple(unbound if accompanied else members))
    return tuple(late)


def _serving(observed: Observed, role: RoleTarget) -> list[Instance]:
    return [instance for instance in observed.of(role.role) if instance.serving]


def _waiting(serving: Sequence[Instance]) -> list[Instance]:
    gated = [instance for instance in serving if instance.gated and not instance.placed]
    return sorted(gated, key=lambda instance: (instance.created_at, instance.name))
