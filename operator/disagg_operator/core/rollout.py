"""Rolling updates: which instances of an old revision may go now, and how many new ones come first.

No step takes the ready instances of a role below what is needed: ``minAvailable``, and ``replicas - maxUnavailable``.
GPUs are scarce, so an instance is replaced in place where that lets one go first; only where it does not, up to
``maxSurge`` new ones are made beforehand.

Prefill and decode instances exchange KV only where their pairing is equal. A change that leaves it equal moves each
role alone. One that does not splits the deployment in two for a while, and then an instance is of *use* only if the
other role has a ready one of its pairing: a step must leave every role the useful instances that it needs too. One new
instance alone serves nobody, so first instances of both roles come together or not at all, no role takes its first old
instance away while the other cannot move, and neither runs ahead of the other by more than one instance of its own. The
last decode instance of a pairing stays until the prefill instances that hand over to it are gone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disagg_crds import Reason, Role
from disagg_operator.core.actions import Obstacle
from disagg_operator.core.fleet import Instance, Observed, RoleTarget, Target
from disagg_operator.core.ranking import removal_rank


@dataclass(frozen=True, slots=True)
class Rollout:
    """``surge``: instances that each role may have above its replicas. ``victims``: who goes now, with the reason."""

    surge: Mapping[Role, int]
    victims: Mapping[Role, tuple[Instance, ...]]
    obstacle: Obstacle | None = None


def plan_rollout(target: Target, observed: Observed) -> Rollout:
    """One step; an unchanged fleet gives the same step again."""
    if target.paused:
        return Rollout({}, {})
    crew = _Crew(target, observed)
    surge, obstacle = _surge(target, observed, crew)
    idle = {role: tuple(i for i in crew.old(role) if not i.ready) for role in target.roles}
    victims = _take(target, crew)
    return Rollout(surge, {role: idle[role] + victims[role] for role in target.roles}, obstacle)


class _Crew:
    """Serving instances by role; ``gone`` are those that the plan takes away."""

    def __init__(self, target: Target, observed: Observed) -> None:
        self.target = target
        self.observed = observed
        self.serving = {role: [i for i in observed.of(role) if i.serving] for role in target.roles}
        self.gone: set[str] = set()

    def old(self, role: Role) -> list[Instance]:
        revision = self.target.roles[role].revision
        return [i for i in self.serving[role] if i.revision != revision]

    def foreign(self, role: Role) -> list[Instance]:
        """Instances that cannot exchange KV with the current revision of the partner role."""
        if self.target.partner(role) is None:
            return []
        pairing = self.target.roles[role].pairing
        return [i for i in self.serving[role] if i.pairing != pairing]

    def ready(self, role: Role) -> list[Instance]:
        return [i for i in self.serving[role] if i.ready and i.uid not in self.gone]

    def paired(self, role: Role, pairing: str) -> list[Instance]:
        """Ready instances of one pairing."""
        return [i for i in self.ready(role) if i.pairing == pairing]

    def useful(self, role: Role) -> int:
        partner = self.target.partner(role)
        mine = self.ready(role)
        if partner is None:
            return len(mine)
        theirs = {i.pairing for i in self.ready(partner.role)}
        return sum(1 for i in mine if i.pairing in theirs)

    def in_place(self, role: Role) -> bool:
        """Whether an instance may go before another has taken its place, once all of them serve.

        Where the pairing changes, an instance may take the use of too many partners along, the only one of a role for
        example.
        """
        section = self.target.roles[role]
        if section.replicas <= section.needed:
            return False
        foreign = [i for i in self.foreign(role) if i.ready and i.uid not in self.gone]
        if not foreign or len(self.ready(role)) < section.replicas:
            return True
        return any(_harmless(self.target, self, i) for i in foreign)

    def is_last_resort(self, candidate: Instance) -> bool:
        """The last decode instance that prefill instances of its pairing, draining ones included, can hand over to."""
        if candidate.role is not Role.DECODE:
            return False
        others = [i for i in self.paired(Role.DECODE, candidate.pairing) if i is not candidate]
        return not others and any(
            i.alive and i.ready and i.pairing == candidate.pairing for i in self.observed.of(Role.PREFILL)
        )

    def moved(self, role: Role) -> int:
        """Instances of the wanted number that are not of a foreign pairing any more."""
        left = sum(1 for i in self.foreign(role) if i.uid not in self.gone)
        return max(0, self.target.roles[role].replicas - left)


# Surge


def _surge(target: Target, observed: Observed, crew: _Crew) -> tuple[dict[Role, int], Obstacle | None]:
    """Instances above the replicas by role, within the budget, and what is in the way of more."""
    above = {role: max(0, len(crew.serving[role]) - section.replicas) for role, section in target.roles.items()}
    extra = {role: min(number, len(crew.serving[role]) - len(crew.old(role))) for role, number in above.items()}
    # What was added stays until the old ones are gone: it is what lets them go.
    surge = {
        role: min(extra[role], section.max_surge) if any(i.ready for i in crew.foreign(role)) else 0
        for role, section in target.roles.items()
    }
    purse = _left(target, observed, crew)
    obstacle: Obstacle | None = None
    for unit in _units(target, crew):
        if any(above[role] > extra[role] for role in unit):
            # Fewer are wanted than there are old ones: those that are too many go first.
            continue
        stuck = next((role for role in unit if target.roles[role].max_surge == 0), None)
        if stuck is not None:
            obstacle = obstacle or _no_surge(target, stuck)
            continue
        first = {role: max(0, 1 - extra[role]) for role in unit}
        cost = sum(target.roles[role].gpus * number for role, number in first.items())
        if purse is not None and cost > purse:
            obstacle = obstacle or _no_budget(target, unit, cost - purse)
            continue
        purse = None if purse is None else purse - cost
        for role in unit:
            section = target.roles[role]
            most = min(section.max_surge, sum(1 for i in crew.old(role) if i.ready))
            surge[role] = min(extra[role] + first[role], most)
            while surge[role] < most and (purse is None or section.gpus <= purse):
                purse = None if purse is None else purse - section.gpus
                surge[role] += 1
    return surge, None if _moves(target, observed, crew) else obstacle


def _units(target: Target, crew: _Crew) -> list[tuple[Role, ...]]:
    """Roles that have to surge; those whose first instances of a new pairing need each other, together."""
    waiting = [role for role in target.roles if not crew.in_place(role) and any(i.ready for i in crew.old(role))]
    first = tuple(role for role in waiting if crew.foreign(role) and not _has_new(target, crew, role))
    return ([first] if first else []) + [(role,) for role in waiting if role not in first]


def _has_new(target: Target, crew: _Crew, role: Role) -> bool:
    return any(i.pairing == target.roles[role].pairing for i in crew.serving[role])


def _left(target: Target, observed: Observed, crew: _Crew) -> int | None:
    """GPUs of the budget that are left for a surge once what leaves is gone and what is missing is made."""
    if target.gpu_budget is None:
        return None
    held = sum(i.held_gpus for i in observed.instances if not i.leaving)
    missing = sum(
        section.gpus * max(0, section.replicas - len(crew.serving[role])) for role, section in target.roles.items()
    )
    return target.gpu_budget - held - missing


def _moves(target: Target, observed: Observed, crew: _Crew) -> bool:
    """Whether the update goes on already: somebody leaves, or starts."""
    starting = any(not i.ready for role in target.roles for i in crew.serving[role])
    return starting or any(i.leaving for i in observed.instances)


def _no_surge(target: Target, role: Role) -> Obstacle:
    section = target.roles[role]
    why = (
        f"{section.needed} of {section.replicas} {role.value} instances have to serve"
        if section.needed == section.replicas
        else f"without the only {role.value} instance the other role is of no use"
    )
    return Obstacle(
        Reason.NO_SURGE,
        f"{why}, and spec.{role.value}.update.maxSurge is 0: set it to 1, or {_lower(target, section)}",
    )


def _no_budget(target: Target, unit: Iterable[Role], lack: int) -> Obstacle:
    names = " and ".join(f"one {role.value}" for role in unit)
    lowered = " and ".join(_lower(target, target.roles[role]) for role in unit)
    return Obstacle(
        Reason.GPU_BUDGET_EXCEEDED,
        f"{names} instance more must serve before an old one may go, which spec.gpuBudget {target.gpu_budget} does not "
        f"allow: raise it by {lack}, or {lowered}",
    )


def _lower(target: Target, section: RoleTarget) -> str:
    """What lets an instance be replaced in place."""
    partner = target.partner(section.role)
    if section.replicas > section.needed and partner is not None:
        section = partner
    if section.floor < section.replicas:
        return f"set spec.{section.role.value}.update.maxUnavailable to 1"
    return f"lower spec.{section.role.value}.minAvailable to {section.replicas - 1}, which interrupts it"


# Victims


def _take(target: Target, crew: _Crew) -> dict[Role, tuple[Instance, ...]]:
    taken: dict[Role, list[Instance]] = {role: [] for role in target.roles}
    while True:
        order = sorted(target.roles, key=lambda role: crew.moved(role) / max(1, target.roles[role].replicas))
        found = next((i for role in order if (i := _next(target, crew, role)) is not None), None)
        if found is None:
            return {role: tuple(instances) for role, instances in taken.items()}
        crew.gone.add(found.uid)
        taken[found.role].append(found)


def _next(target: Target, crew: _Crew, role: Role) -> Instance | None:
    """The old instance of a role that may go next, those of no use first."""
    section = target.roles[role]
    candidates = [i for i in crew.old(role) if i.ready and i.uid not in crew.gone]
    if len(crew.ready(role)) - 1 < section.needed:
        return None
    candidates.sort(key=lambda i: (removal_rank(i, section.revision), i.name))
    return next((i for i in candidates if _in_step(target, crew, i) and _harmless(target, crew, i)), None)


def _harmless(target: Target, crew: _Crew, candidate: Instance) -> bool:
    """Whether every role keeps the useful instances that it needs, or loses none, as the pairing changes."""
    if candidate.pairing == target.roles[candidate.role].pairing:
        return True
    before = {role: crew.useful(role) for role in target.roles}
    gone = crew.gone
    crew.gone = gone | {candidate.uid}
    after = {role: crew.useful(role) for role in target.roles}
    crew.gone = gone
    return all(after[role] >= section.needed or after[role] == before[role] for role, section in target.roles.items())


def _in_step(target: Target, crew: _Crew, candidate: Instance) -> bool:
    """Whether the partner role keeps up with a change of the pairing."""
    section, partner = target.roles[candidate.role], target.partner(candidate.role)
    if partner is None or candidate.pairing == section.pairing:
        return True
    if crew.is_last_resort(candidate):
        return False
    if not crew.foreign(partner.role):
        return True
    new = any(i.scheduled and i.pairing == partner.pairing for i in crew.serving[partner.role])
    if not new and not crew.in_place(partner.role):
        return False
    if candidate.role is Role.PREFILL and len(crew.paired(Role.DECODE, candidate.pairing)) <= 1:
        # The last decode instance of this pairing waits for it.
        return True
    mine = crew.moved(section.role) / section.replicas if section.replicas else 1.0
    return mine < (crew.moved(partner.role) + 1) / partner.replicas
