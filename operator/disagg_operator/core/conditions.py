"""Answers to Ready, Available, Progressing, GangScheduled, ModelFits, and to what may be in the way.

Each function answers one question from counts taken afresh from the fleet. "Ready" is about the current generation:
an instance of an old revision that still serves does not count, so that a rollout is never called done half-way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from disagg_crds import ConditionType, Reason, Role
from disagg_operator.core.actions import Obstacle
from disagg_operator.core.breach import Breach
from disagg_operator.core.fit import Fit
from disagg_operator.core.fleet import Counts, RoleTarget, RouterView
from disagg_operator.core.gangs import GangState
from disagg_operator.core.placement import NoRoom


@dataclass(frozen=True, slots=True)
class Answer:
    """A condition without its times."""

    type: ConditionType
    status: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """What kept this pass from finishing, as a reason for programs and a sentence for people."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the answers are computed from. ``domain``: where the gang is; ``no_room``: why one is nowhere.

    ``late``: instances that were just given back for missing their bind deadline. ``obstacle``: what keeps an update
    from going on. ``retiring``: instances of roles that left the spec, of which ``retiring_ready`` serve. ``levels``:
    whether nodes carry the labels that the placement names; None: nobody can tell.
    """

    roles: Mapping[Role, RoleTarget]
    counts: Mapping[Role, Counts]
    router: RouterView
    gang: GangState
    fit: Fit
    domain: str | None = None
    no_room: NoRoom | None = None
    late: int = 0
    unaffordable: int = 0
    failure: Failure | None = None
    bind_deadline_seconds: float = 60.0
    notes: Sequence[str] = field(default_factory=tuple)
    obstacle: Obstacle | None = None
    paused: bool = False
    breach: Breach | None = None
    retiring: int = 0
    retiring_ready: int = 0
    levels: "Levels | None" = None


@dataclass(frozen=True, slots=True)
class Levels:
    """``unknown``: levels that no node has the label of. ``asked``: the spec names them, they are no default."""

    unknown: tuple[str, ...]
    asked: bool


def answers(facts: Facts) -> tuple[Answer, ...]:
    """One answer to each question that has one in any runtime, in a fixed order."""
    gang = _gang(facts)
    return (
        _ready(facts, gang),
        _available(facts, gang),
        _progressing(facts),
        gang,
        _fits(facts),
        _blocked_update(facts),
    )


def cluster_answers(facts: Facts) -> tuple[Answer, ...]:
    """Answers to questions that only a cluster raises."""
    return (_breached(facts), _quota(facts), _topology(facts))


def _blocked_update(facts: Facts) -> Answer:
    kind = ConditionType.UPDATE_BLOCKED
    old = sum(map(_old, facts.counts.values()))
    if facts.obstacle is not None:
        return Answer(kind, "True", facts.obstacle.reason, facts.obstacle.message)
    if not old:
        return Answer(kind, "False", Reason.UP_TO_DATE, "every instance is of the current revision")
    if facts.paused:
        return Answer(kind, "False", Reason.PAUSED, "spec.paused keeps instances of an old revision")
    refused = facts.failure is not None and facts.failure.reason in (Reason.QUOTA_EXCEEDED, Reason.FORBIDDEN)
    stop = _blocked(facts) if refused or not facts.fit.fits else None
    if stop is not None:
        return Answer(kind, "True", stop.reason, f"instances of the current revision cannot be made: {stop.message}")
    leaving = any(count.draining or count.terminating for count in facts.counts.values())
    if facts.no_room is not None and not leaving:
        message = (
            f"an instance must serve before an old one may go, and there is no room for it: {facts.no_room.message}; "
            "free that much, or lower minAvailable so that one may go first"
        )
        return Answer(kind, "True", facts.no_room.reason, message)
    return Answer(kind, "False", Reason.UPDATING, "instances are being replaced by the current revision")


def _breached(facts: Facts) -> Answer:
    kind = ConditionType.MIN_AVAILABLE_BREACHED
    if facts.breach is not None:
        return Answer(kind, "True", Reason.MEMBERS_LOST, facts.breach.message)
    if facts.gang.base_scheduled:
        return Answer(kind, "False", Reason.MINIMUM_AVAILABLE, "minAvailable of every role is placed")
    return Answer(kind, "False", Reason.NOT_PLACED, "the gang waits to be placed as one")


def _quota(facts: Facts) -> Answer:
    kind = ConditionType.QUOTA_EXCEEDED
    if facts.failure is not None and facts.failure.reason is Reason.QUOTA_EXCEEDED:
        return Answer(kind, "True", Reason.QUOTA_EXCEEDED, facts.failure.message)
    return Answer(kind, "False", Reason.WITHIN_QUOTA, "no quota and no limit range of the namespace refuses pods")


def _topology(facts: Facts) -> Answer:
    kind = ConditionType.TOPOLOGY_KNOWN
    levels = facts.levels
    if levels is None:
        return Answer(kind, "Unknown", Reason.NO_ELIGIBLE_NODES, "no node is known to the operator")
    if not levels.unknown:
        return Answer(kind, "True", Reason.LABELS_FOUND, "nodes carry the labels of the placement's levels")
    message = f"no node has the label {' or '.join(levels.unknown)}, so each node counts as a domain of its own"
    if levels.asked:
        return Answer(kind, "False", Reason.UNKNOWN_TOPOLOGY_KEY, f"{message}: check spec.placement")
    return Answer(kind, "True", Reason.NOT_APPLICABLE, message)


def _fits(facts: Facts) -> Answer:
    return Answer(ConditionType.MODEL_FITS, _text(facts.fit.fits), facts.fit.reason, facts.fit.message)


def _gang(facts: Facts) -> Answer:
    kind = ConditionType.GANG_SCHEDULED
    wanted = sum(role.floor for role in facts.roles.values())
    if not facts.fit.fits:
        return Answer(kind, "False", facts.fit.reason, "nothing is placed while the model does not fit")
    if wanted == 0 and not any(count.current for count in facts.counts.values()):
        return Answer(kind, "True", Reason.SCALED_TO_ZERO, "no instance is wanted")
    where = f" in domain {facts.domain}" if facts.domain else ""
    if facts.gang.base_scheduled:
        extra = "" if facts.no_room is None else f"; further instances wait: {facts.no_room.message}"
        return Answer(kind, "True", Reason.GANG_BOUND, f"the base gang of {wanted} is bound{where}{extra}")
    if facts.no_room is not None:
        return Answer(kind, "False", facts.no_room.reason, facts.no_room.message)
    if facts.late:
        message = (
            f"{facts.late} instances were not bound within {facts.bind_deadline_seconds:g} s and were given back; "
            "another domain is tried"
        )
        return Answer(kind, "False", Reason.BIND_DEADLINE_EXCEEDED, message)
    if facts.gang.base_placed:
        return Answer(kind, "False", Reason.GANG_PLACED, f"the base gang of {wanted} has nodes{where}, not all bound")
    present = wanted - facts.gang.absent
    return Answer(kind, "False", Reason.GANG_INCOMPLETE, f"{present} of the base gang's {wanted} instances exist")


def _ready(facts: Facts, gang: Answer) -> Answer:
    kind = ConditionType.READY
    blocked = _blocked(facts)
    if blocked is not None:
        return Answer(kind, "False", blocked.reason, blocked.message)
    short = {role: count for role, count in facts.counts.items() if count.updated_ready < count.desired}
    if short:
        return Answer(kind, "False", _why_short(short, facts), _list(short, gang, facts))
    surplus = {role: count for role, count in facts.counts.items() if _old(count)}
    if surplus:
        if facts.paused:
            return Answer(
                kind, "False", Reason.PAUSED, "instances of an old revision serve, and spec.paused keeps them"
            )
        return Answer(kind, "False", Reason.UPDATING, "instances of an old revision still serve")
    if facts.retiring:
        return Answer(kind, "False", Reason.UPDATING, f"{facts.retiring} instances of roles that left the spec remain")
    if not any(count.desired for count in facts.counts.values()):
        return Answer(kind, "False", Reason.SCALED_TO_ZERO, "no instance is wanted, so nothing serves")
    router = facts.router
    if router.ready < max(1, router.desired) or router.updated < router.desired or not router.up_to_date:
        return Answer(kind, "False", Reason.ROUTER_NOT_READY, f"{router.ready} of {router.desired} routers are ready")
    return Answer(kind, "True", Reason.ALL_INSTANCES_READY, "every instance and router of this generation serves")


def _why_short(short: Mapping[Role, Counts], facts: Facts) -> Reason:
    if facts.no_room is None and any(map(_old, short.values())):
        return Reason.PAUSED if facts.paused else Reason.UPDATING
    if any(count.current - count.draining < count.desired for count in short.values()):
        return Reason.INSTANCES_NOT_CREATED
    if any(count.scheduled < count.desired for count in short.values()):
        return Reason.INSTANCES_NOT_SCHEDULED
    if any(count.ready >= count.desired for count in short.values()):
        return Reason.UPDATING
    return Reason.INSTANCES_NOT_READY


def _list(short: Mapping[Role, Counts], gang: Answer, facts: Facts) -> str:
    text = "; ".join(f"{role.value}: {_state(count)}" for role, count in short.items())
    waiting = any(count.scheduled < count.desired for count in short.values())
    if waiting and gang.reason not in _PLAIN:
        return f"{text}; {gang.message}"
    return text if facts.no_room is None else f"{text}; {facts.no_room.message}"


def _old(count: Counts) -> int:
    """Instances of an old revision that still serve."""
    return count.current - count.draining - count.updated


def _state(count: Counts) -> str:
    why = f" ({'; '.join(count.troubles)})" if count.troubles else ""
    if _old(count):
        return f"{count.updated_ready} of {count.desired} of this revision ready{why}, {_old(count)} of an old one left"
    return f"{count.updated_ready} of {count.desired} ready, {count.scheduled} scheduled{why}"


_PLAIN = (Reason.GANG_BOUND, Reason.GANG_INCOMPLETE)


def _available(facts: Facts, gang: Answer) -> Answer:
    kind = ConditionType.AVAILABLE
    if not any(count.ready for count in facts.counts.values()) and not any(r.replicas for r in facts.roles.values()):
        return Answer(kind, "False", Reason.SCALED_TO_ZERO, "no instance is wanted, so nothing serves")
    below = [
        f"{role.value}: {facts.counts[role].ready} of at least {max(1, target.floor)}"
        for role, target in facts.roles.items()
        if facts.counts[role].ready < max(1, target.floor)
    ]
    if below and facts.retiring_ready and facts.router.ready:
        message = f"{facts.retiring_ready} instances of roles that left the spec serve until the others do"
        return Answer(kind, "True", Reason.UPDATING, message)
    if below:
        unscheduled = gang.status != "True"
        reason = Reason.INSTANCES_NOT_SCHEDULED if unscheduled else Reason.BELOW_MINIMUM
        return Answer(kind, "False", reason, "; ".join(below))
    if facts.router.ready < 1:
        return Answer(kind, "False", Reason.ROUTER_NOT_READY, "no router is ready")
    return Answer(kind, "True", Reason.MINIMUM_AVAILABLE, "at least minAvailable of every role, and a router, serve")


def _blocked(facts: Facts) -> Failure | None:
    if facts.failure is not None:
        return facts.failure
    if not facts.fit.fits:
        return Failure(facts.fit.reason, facts.fit.message)
    if facts.unaffordable:
        return Failure(
            Reason.GPU_BUDGET_EXCEEDED,
            f"{facts.unaffordable} more instances would hold more GPUs than spec.gpuBudget allows, "
            "terminating ones counted",
        )
    return None


def _progressing(facts: Facts) -> Answer:
    kind = ConditionType.PROGRESSING
    blocked = _blocked(facts)
    if blocked is not None:
        return Answer(kind, "False", blocked.reason, blocked.message)
    counts = facts.counts.values()
    if any(count.terminating for count in counts):
        return Answer(kind, "True", Reason.DELETING, "instances are being deleted")
    if any(count.draining for count in counts):
        return Answer(kind, "True", Reason.DRAINING, "instances finish their requests before they go")
    if facts.paused and any(map(_old, counts)):
        return Answer(kind, "False", Reason.PAUSED, "spec.paused keeps instances of an old revision")
    if any(count.updated < count.current for count in counts):
        return Answer(kind, "True", Reason.UPDATING, "instances are being replaced by the current revision")
    if any(count.current < count.desired for count in counts):
        return Answer(kind, "True", Reason.CREATING, "instances are being created")
    if any(count.updated_ready < count.desired for count in counts):
        return Answer(kind, "True", Reason.SCALING, "instances are being placed and started")
    if facts.retiring:
        return Answer(kind, "True", Reason.UPDATING, "instances of roles that left the spec are on their way out")
    return Answer(kind, "False", Reason.RECONCILED, "everything is as the spec asks")


def _text(value: bool) -> str:
    return "True" if value else "False"
