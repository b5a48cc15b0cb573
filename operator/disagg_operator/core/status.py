"""The status of a deployment and of its groups, computed afresh from facts.

Nothing here is carried over but the transition times of conditions, the conditions of other writers, and the memory of
the groups' replicas; so a status cannot drift from the fleet, and an unchanged fleet gives an equal status, which is
then not written. Events are the transitions between two statuses.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from disagg_crds import (
    Assignment,
    Condition,
    ConditionType,
    DeploymentStatus,
    GroupMemory,
    GroupStatus,
    PlacementStatus,
    Role,
    RoleStatus,
    find_condition,
    set_condition,
)
from disagg_operator.core.conditions import Answer, Facts, answers, cluster_answers
from disagg_operator.core.fleet import Counts, RouterView
from disagg_operator.core.quantity import show

OWN: tuple[ConditionType, ...] = (
    ConditionType.READY,
    ConditionType.AVAILABLE,
    ConditionType.PROGRESSING,
    ConditionType.GANG_SCHEDULED,
    ConditionType.MODEL_FITS,
    ConditionType.UPDATE_BLOCKED,
    ConditionType.MIN_AVAILABLE_BREACHED,
    ConditionType.QUOTA_EXCEEDED,
    ConditionType.TOPOLOGY_KNOWN,
)
"""Conditions that the operator writes; the others belong to the planner."""

PLANNERS: tuple[ConditionType, ...] = (ConditionType.METRICS_AVAILABLE, ConditionType.SCALING_ACTIVE)
"""Conditions that the planner writes."""


@dataclass(frozen=True, slots=True)
class Note:
    """An Event to post: ``type`` is Normal or Warning, ``reason`` for programs, ``message`` for people."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFacts:
    """What is known of the gang's place. Assignments are kept only while a gang is half patched."""

    domain: str | None = None
    level: str | None = None
    score: float | None = None
    message: str | None = None
    attempts: int | None = None
    excluded: Sequence[str] = ()
    assignments: tuple[Assignment, ...] = ()


def deployment_status(
    facts: Facts,
    *,
    placement: PlacementFacts,
    previous: DeploymentStatus,
    generation: int | None,
    revision: str,
    endpoint: str | None,
    now: float,
) -> DeploymentStatus:
    """The whole status that the operator owns; conditions of other writers are left out, they are theirs to keep."""
    mine = tuple(condition for condition in previous.conditions if condition.type in OWN)
    conditions = stamp((*answers(facts), *cluster_answers(facts)), previous=mine, generation=generation, now=now)
    return DeploymentStatus(
        observed_generation=generation,
        conditions=conditions,
        roles={role: role_status(count) for role, count in facts.counts.items()},
        groups={role: GroupMemory(replicas=count.desired) for role, count in facts.counts.items()},
        placement=_placement(facts, placement),
        router=_router(facts.router),
        endpoint=endpoint,
        revision=revision,
    )


def stamp(
    given: Iterable[Answer], *, previous: tuple[Condition, ...], generation: int | None, now: float
) -> tuple[Condition, ...]:
    """Answers as conditions; the transition time moves only when the status does."""
    result = previous
    for answer in given:
        new = Condition.model_validate(
            {
                "type": answer.type.value,
                "status": answer.status,
                "reason": answer.reason.value,
                "message": answer.message,
                "last_transition_time": datetime.fromtimestamp(int(now), UTC),
                "observed_generation": generation,
            }
        )
        result = set_condition(result, new)
    return result


def role_status(count: Counts) -> RoleStatus:
    return RoleStatus(
        desired=count.desired,
        current=count.current,
        gated=count.gated,
        scheduled=count.scheduled,
        ready=count.ready,
        updated=count.updated,
        draining=count.draining,
        terminating=count.terminating,
    )


def group_status(count: Counts, *, selector: str, generation: int | None) -> GroupStatus:
    """Status of a group: what ``/scale`` shows. Replicas count instances, as the selector does."""
    return GroupStatus(
        observed_generation=generation,
        replicas=count.current,
        ready_replicas=count.ready,
        updated_replicas=count.updated,
        selector=selector,
    )


def _router(router: RouterView) -> RoleStatus:
    return RoleStatus(desired=router.desired, current=router.current, ready=router.ready, updated=router.updated)


def _placement(facts: Facts, placement: PlacementFacts) -> PlacementStatus:
    lack = facts.no_room
    missing: Mapping[str, int] = lack.missing if lack is not None else {}
    return PlacementStatus(
        domain=placement.domain,
        level=placement.level,
        score=placement.score,
        message=lack.message if lack is not None else placement.message,
        best_domain=lack.best_domain if lack is not None else None,
        missing={resource: show(resource, value) for resource, value in missing.items()} or None,
        attempts=placement.attempts,
        excluded_domains=tuple(placement.excluded),
        assignments=placement.assignments,
    )


def transitions(before: DeploymentStatus, after: DeploymentStatus) -> tuple[Note, ...]:
    """Events for what changed between two statuses: a condition that turned, or a new thing that is in the way.

    Steps on the way from one to the other (created, placed, starting) are no news of their own.
    """
    notes: list[Note] = []
    for new in after.conditions:
        old = find_condition(before.conditions, new.type)
        if old is not None and (old.status, old.reason) == (new.status, new.reason):
            continue
        obstacle = new.reason in OBSTACLES and new.status != "Unknown"
        turned = new.status == "True" if old is None else old.status != new.status
        quiet = new.type not in _TOLD or (old is None and new.type == ConditionType.MODEL_FITS)
        if obstacle or (turned and not quiet):
            notes.append(Note("Warning" if obstacle else "Normal", new.reason, new.message))
    return _unique(notes)


_TOLD = (ConditionType.READY, ConditionType.GANG_SCHEDULED, ConditionType.MODEL_FITS)

OBSTACLES = frozenset(
    {
        "InsufficientCapacity",
        "NoEligibleNodes",
        "UnknownTopologyKey",
        "SearchBoundHit",
        "BindDeadlineExceeded",
        "InsufficientGpuMemory",
        "UnknownModel",
        "UnknownGpu",
        "UnknownLink",
        "QuotaExceeded",
        "Forbidden",
        "ReconcileFailed",
        "InvalidSpec",
        "GpuBudgetExceeded",
        "NoSurge",
    }
)
"""Reasons that somebody has to do something about."""


def _unique(notes: Sequence[Note]) -> tuple[Note, ...]:
    seen: dict[tuple[str, str], Note] = {}
    for note in notes:
        seen.setdefault((note.reason, note.message), note)
    return tuple(seen.values())


def desired_replicas(status: DeploymentStatus, role: Role) -> int | None:
    """Replicas remembered for a role."""
    memory = status.groups.get(role)
    return None if memory is None else memory.replicas
