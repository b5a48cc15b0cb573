"""What the operator and the planner report. A count that is unknown is absent, never 0."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, computed_field
from pydantic.config import JsonDict

from .base import Message, Quantity, StatusModel, Timestamp, Whole
from .conditions import Condition
from .roles import MAX_INSTANCES, Role

Count = Annotated[Whole, Field(ge=0)]
_CONDITIONS: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


class RoleStatus(StatusModel):
    """Instances of one role, counted from the live pods at each reconcile."""

    desired: Count | None = None
    """Instances wanted, from spec.replicas of the group."""
    current: Count | None = None
    """Instances that exist and are not terminating."""
    gated: Count | None = None
    """Instances that still carry our scheduling gate."""
    scheduled: Count | None = None
    """Instances whose pods are bound to nodes."""
    ready: Count | None = None
    """Instances that serve."""
    updated: Count | None = None
    """Instances of the current revision."""
    draining: Count | None = None
    """Instances that finish their requests before they go."""
    terminating: Count | None = None
    """Instances that are being deleted."""

    @computed_field(description="ready/desired, as kubectl prints it; absent while either is unknown.")  # type: ignore[prop-decorator]
    @property
    def summary(self) -> str | None:
        """`ready/desired`, or None while either is unknown."""
        if self.ready is None or self.desired is None:
            return None
        return f"{self.ready}/{self.desired}"


class GroupMemory(StatusModel):
    """What is kept about a group so that a deleted one comes back as it was."""

    replicas: Count
    """Last replicas that the group had."""


class Assignment(StatusModel):
    """One pod of a gang that is being pinned."""

    uid: Annotated[str, Field(min_length=1, max_length=64)]
    """UID of the pod."""
    pod: Annotated[str, Field(max_length=253)]
    """Name of the pod."""
    node: Annotated[str, Field(max_length=253)]
    """Node that the pod is pinned to."""


class PlacementStatus(StatusModel):
    """Where the gang is, or why it is nowhere."""

    domain: Annotated[str, Field(max_length=253)] | None = None
    """Domain that holds the gang: the value of the level's node label."""
    level: Annotated[str, Field(max_length=317)] | None = None
    """Node label key that the domain is a value of."""
    score: Annotated[float, Field(ge=0, le=1)] | None = None
    """How well the gang is placed, 1 is best."""
    message: Message | None = None
    """What was placed where and why, or what is missing and by how much."""
    best_domain: Annotated[str, Field(max_length=253)] | None = None
    """Domain that came closest when nothing fits."""
    missing: Annotated[dict[str, Quantity], Field(max_length=16)] | None = None
    """Amount of each resource that the best domain lacks."""
    attempts: Count | None = None
    """Attempts at placing the current gang."""
    last_attempt_time: Timestamp | None = None
    """When the last attempt was made."""
    excluded_domains: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=64)] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Domains left out because a gang missed its bind deadline there."""
    assignments: Annotated[tuple[Assignment, ...], Field(max_length=4 * MAX_INSTANCES)] = Field(
        default=(),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"]},
    )
    """Pods of a gang that is being pinned, kept only until all of them are."""


class DeploymentStatus(StatusModel):
    """Observed state of a deployment."""

    observed_generation: Count | None = None
    """Generation of the spec that was last reconciled."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32)] = Field(
        default=(), json_schema_extra=_CONDITIONS
    )
    """Answers to the questions that programs and people ask."""
    roles: Annotated[dict[Role, RoleStatus], Field(max_length=8)] = Field(default_factory=dict)
    """Instances by role."""
    groups: Annotated[dict[Role, GroupMemory], Field(max_length=8)] = Field(default_factory=dict)
    """Last replicas by role, kept so that a deleted group comes back as it was."""
    placement: PlacementStatus = Field(default_factory=PlacementStatus)
    """Where the gang is, or why it is nowhere."""
    router: RoleStatus | None = None
    """Router pods."""
    endpoint: Annotated[str, Field(max_length=2048)] | None = None
    """URL inside the cluster that OpenAI clients use as base, without /v1."""
    revision: Annotated[str, Field(max_length=63)] | None = None
    """Revision of the pods that the spec asks for."""


class GroupStatus(StatusModel):
    """Observed state of a group; what /scale and an HPA read."""

    observed_generation: Count | None = None
    """Generation of the group that was last reconciled."""
    replicas: Count | None = None
    """Instances that exist and are not terminating."""
    ready_replicas: Count | None = None
    """Instances that serve."""
    updated_replicas: Count | None = None
    """Instances of the current revision."""
    selector: Annotated[str, Field(max_length=1024)] | None = None
    """Label selector, as text, that matches one leader pod an instance."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32)] = Field(
        default=(), json_schema_extra=_CONDITIONS
    )
    """Answers to the questions that programs and people ask."""
