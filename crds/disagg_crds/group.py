"""`DisaggGroup` (`dg`): the instances of one role, made by the operator, scaled through `/scale`.

A parent with several roles cannot have one useful `/scale`, so each role has an object of its own: planner, HPA, KEDA
and `kubectl scale dg/NAME` all write `spec.replicas` there and nowhere else. The group says nothing about *how* an
instance looks; that stays in the parent.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import DNS_LABEL_PATTERN, Model, Rule, Whole
from .meta import API_VERSION, ObjectMeta
from .roles import MAX_INSTANCES, Role
from .status import GroupStatus


class DisaggGroupSpec(Model):
    """Which instances, and how many."""

    deployment: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN)]
    """Name of the DisaggDeployment that this group belongs to; never changes."""
    role: Role
    """Role of the instances; never changes."""
    replicas: Annotated[Whole, Field(ge=0, le=MAX_INSTANCES)] = 1
    """Instances wanted; written through /scale."""

    rules = (
        Rule(
            cel="self.deployment == oldSelf.deployment",
            message="deployment cannot be changed; delete the group and the operator makes a new one",
            holds=lambda self: True,
            field="deployment",
            transition=True,
        ),
        Rule(
            cel="self.role == oldSelf.role",
            message="role cannot be changed; delete the group and the operator makes a new one",
            holds=lambda self: True,
            field="role",
            transition=True,
        ),
    )


class DisaggGroup(Model):
    """All instances of one role of a DisaggDeployment; its /scale sets how many."""

    api_version: Literal["disagg.dev/v1alpha1"] = API_VERSION
    """API group and version."""
    kind: Literal["DisaggGroup"] = "DisaggGroup"
    """Kind of this object."""
    metadata: ObjectMeta
    """Name, namespace, labels."""
    spec: DisaggGroupSpec
    """Desired state."""
    status: GroupStatus = Field(default_factory=GroupStatus)
    """Observed state."""

    @property
    def name(self) -> str:
        """metadata.name"""
        return self.metadata.name
