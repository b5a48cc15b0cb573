"""Conditions: the machine-readable half of a status.

Each condition type answers one question, and its reason says why in a word that programs may compare. "Not scheduled"
and "not ready" are different reasons, and so are a quota, a model that does not fit and metrics that are missing. The
list is a map keyed by type: operator and planner write different keys of it with server-side apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from .base import Message, StatusModel, Timestamp, Whole

ConditionStatus = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """The questions that conditions answer. The last two are written by the planner, the others by the operator."""

    READY = "Ready"
    """Every wanted instance of the current generation serves."""
    AVAILABLE = "Available"
    """At least minAvailable instances of every role, and a router, serve."""
    PROGRESSING = "Progressing"
    """The operator is still changing something."""
    GANG_SCHEDULED = "GangScheduled"
    """The base gang is bound to nodes of one domain."""
    MODEL_FITS = "ModelFits"
    """Weights and some KV fit into the GPUs of an instance."""
    UPDATE_BLOCKED = "UpdateBlocked"
    """Instances of an old revision cannot be replaced: there is no room to move."""
    MIN_AVAILABLE_BREACHED = "MinAvailableBreached"
    """A role that was placed lost instances and has fewer than minAvailable placed ones."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A ResourceQuota or LimitRange of the namespace refuses pods."""
    TOPOLOGY_KNOWN = "TopologyKnown"
    """Nodes carry the labels that the placement asks for."""
    METRICS_AVAILABLE = "MetricsAvailable"
    """The planner reads fresh, finite metrics."""
    SCALING_ACTIVE = "ScalingActive"
    """The planner's decisions are written."""


class Reason(StrEnum):
    """Why a condition has its status. One word is used for one cause, wherever it shows."""

    # Ready, Available, Progressing
    ALL_INSTANCES_READY = "AllInstancesReady"
    MINIMUM_AVAILABLE = "MinimumAvailable"
    INSTANCES_NOT_READY = "InstancesNotReady"
    INSTANCES_NOT_CREATED = "InstancesNotCreated"
    INSTANCES_NOT_SCHEDULED = "InstancesNotScheduled"
    BELOW_MINIMUM = "BelowMinimum"
    ROUTER_NOT_READY = "RouterNotReady"
    SCALED_TO_ZERO = "ScaledToZero"
    RECONCILED = "Reconciled"
    CREATING = "Creating"
    UPDATING = "Updating"
    SCALING = "Scaling"
    DRAINING = "Draining"
    DELETING = "Deleting"
    RECONCILE_FAILED = "ReconcileFailed"
    INVALID_SPEC = "InvalidSpec"
    QUOTA_EXCEEDED = "QuotaExceeded"
    FORBIDDEN = "Forbidden"
    GPU_BUDGET_EXCEEDED = "GpuBudgetExceeded"
    # GangScheduled
    GANG_BOUND = "GangBound"
    GANG_PLACED = "GangPlaced"
    GANG_INCOMPLETE = "GangIncomplete"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    NO_ELIGIBLE_NODES = "NoEligibleNodes"
    UNKNOWN_TOPOLOGY_KEY = "UnknownTopologyKey"
    BIND_DEADLINE_EXCEEDED = "BindDeadlineExceeded"
    SEARCH_BOUND_HIT = "SearchBoundHit"
    NOT_APPLICABLE = "NotApplicable"
    # ModelFits
    FITS = "Fits"
    INSUFFICIENT_GPU_MEMORY = "InsufficientGpuMemory"
    UNKNOWN_MODEL = "UnknownModel"
    UNKNOWN_GPU = "UnknownGpu"
    UNKNOWN_LINK = "UnknownLink"
    # UpdateBlocked
    UP_TO_DATE = "UpToDate"
    PAUSED = "Paused"
    NO_SURGE = "NoSurge"
    # MinAvailableBreached
    NOT_PLACED = "NotPlaced"
    MEMBERS_LOST = "MembersLost"
    # QuotaExceeded, TopologyKnown
    WITHIN_QUOTA = "WithinQuota"
    LABELS_FOUND = "LabelsFound"
    # MetricsAvailable, ScalingActive
    METRICS_FRESH = "MetricsFresh"
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    METRICS_NOT_FINITE = "MetricsNotFinite"
    METRICS_PARTIAL = "MetricsPartial"
    METRICS_UNREACHABLE = "MetricsUnreachable"
    METRICS_URL_MISSING = "MetricsUrlMissing"
    DECISIONS_WRITTEN = "DecisionsWritten"
    ADVISORY = "Advisory"
    HOLDING = "Holding"
    SCALE_REJECTED = "ScaleRejected"
    SLO_INFEASIBLE = "SloInfeasible"


class Condition(StatusModel):
    """One answer, after the API conventions' metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
    """The question, in CamelCase."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word for programs."""
    message: Message = ""
    """Why, in a sentence for people."""
    last_transition_time: Timestamp
    """When status last changed."""
    observed_generation: Annotated[Whole, Field(ge=0)] | None = None
    """Generation of the spec that the answer is about."""


def set_condition(conditions: Iterable[Condition], new: Condition) -> tuple[Condition, ...]:
    """`conditions` with `new` in place of the one of its type, or at the end.

    The transition time changes only with the status: an unchanged answer returns equal conditions, so that a reconcile
    without news writes nothing.
    """
    result: list[Condition] = []
    placed = False
    for old in conditions:
        if old.type != new.type:
            result.append(old)
            continue
        if old.status == new.status:
            new = new.model_copy(update={"last_transition_time": old.last_transition_time})
        result.append(new)
        placed = True
    if not placed:
        result.append(new)
    return tuple(result)


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of that type, if there is one."""
    return next((condition for condition in conditions if condition.type == type_), None)
