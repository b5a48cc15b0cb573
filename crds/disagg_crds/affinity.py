"""Where the pods of one role may go: required node affinity, as in a Pod, and the role's own placement rules."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import LabelKey, LabelValue, Model, Rule, Whole

_LEVEL = Field(max_length=317)


class NodeOperator(StrEnum):
    """How a node's label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class NodeRequirement(Model):
    """One demand on a label of the node; as in a Pod."""

    key: LabelKey
    """Label key."""
    operator: NodeOperator
    """In, NotIn, Exists, DoesNotExist, Gt or Lt."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64)] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Values to compare with: one or more for In and NotIn, one whole number for Gt and Lt, none for the others."""

    rules = (
        Rule(
            cel=(
                "self.operator in ['Exists', 'DoesNotExist'] ? (!has(self.values) || size(self.values) == 0) : "
                "(has(self.values) && (self.operator in ['Gt', 'Lt'] ? size(self.values) == 1 : size(self.values) > 0))"
            ),
            message="Exists and DoesNotExist take no values, Gt and Lt take one, In and NotIn take at least one",
            holds=lambda self: _fits(self.operator, len(self.values)),
            field="values",
        ),
    )


def _fits(operator: NodeOperator, values: int) -> bool:
    if operator in (NodeOperator.EXISTS, NodeOperator.DOES_NOT_EXIST):
        return values == 0
    return values == 1 if operator in (NodeOperator.GT, NodeOperator.LT) else values > 0


class NodeSelectorTerm(Model):
    """Demands that all have to hold."""

    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(max_length=16)] = Field(
        json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Demands on labels of the node; without any no node will do."""


class NodeSelector(Model):
    """Terms of which one has to hold."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(max_length=8)] = Field(
        json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Terms of which one has to hold."""

    rules = (
        Rule(
            cel="size(self.nodeSelectorTerms) > 0",
            message="nodeSelectorTerms needs at least one term",
            holds=lambda self: len(self.node_selector_terms) > 0,
            field="nodeSelectorTerms",
        ),
    )


class NodeAffinity(Model):
    """Which nodes a pod may go to; as in a Pod."""

    required_during_scheduling_ignored_during_execution: NodeSelector
    """What a node has to be like."""


class Affinity(Model):
    """Affinity of the pods. Pods of a gang are kept together or apart by placement, not by pod affinity."""

    node_affinity: NodeAffinity
    """Which nodes a pod may go to."""


class Spread(Model):
    """How the instances of a role are kept apart."""

    level: Annotated[str, Field(min_length=1, max_length=317)]
    """Level of spec.placement.levels whose domains share the instances."""
    most: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    """Most instances of the current revision in one domain, whatever else; absent: as evenly as can be."""


class RolePlacement(Model):
    """What a role asks beyond spec.placement. Levels are label keys of spec.placement.levels."""

    required: Annotated[str, _LEVEL] | None = None
    """Level whose domains the role must not cross; absent or empty: nothing beyond spec.placement."""
    preferred: Annotated[str, _LEVEL] | None = None
    """Level that the role stays within when it can; absent or empty: none."""
    instance_within: Annotated[str, _LEVEL] | None = None
    """Level whose domains no single instance may cross; absent or empty: nothing beyond the others."""
    spread: Spread | None = None
    """How the instances are kept apart; absent: they are packed."""

    @property
    def levels(self) -> tuple[str, ...]:
        """Every level that is named."""
        named = (self.required, self.preferred, self.instance_within, self.spread.level if self.spread else None)
        return tuple(level for level in named if level)
