"""The CustomResourceDefinitions, as documents built from the models.

One place says how the kinds present themselves to `kubectl`: short names, category, printer columns and the `/scale`
subresource. Detail columns have priority 1 and show with `-o wide`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .base import Model
from .deployment import DisaggDeployment
from .group import DisaggGroup
from .meta import CATEGORY, DEPLOYMENT_KIND, DEPLOYMENT_PLURAL, GROUP, GROUP_KIND, GROUP_PLURAL, VERSION
from .schema import Schema, structural_schema


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    description: str
    type: str = "string"
    priority: int = 0

    def to_dict(self) -> dict[str, Any]:
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.priority:
            column["priority"] = self.priority
        column["description"] = self.description
        return column


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind presents itself to the API server and to kubectl."""

    model: type[Model]
    kind: str
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    scale: bool = False

    @property
    def crd_name(self) -> str:
        """Name of the CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"

    @property
    def file_name(self) -> str:
        """Name of the generated file."""
        return f"{GROUP}_{self.plural}.yaml"


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "Time since creation.", type="date")

KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        model=DisaggDeployment,
        kind=DEPLOYMENT_KIND,
        plural=DEPLOYMENT_PLURAL,
        short_name="dd",
        columns=(
            Column("Model", ".spec.model", "Model that is served."),
            Column("Ready", _condition("Ready", "status"), "Whether every wanted instance serves."),
            Column("Reason", _condition("Ready", "reason"), "Why it is ready or not."),
            Column("Prefill", ".status.roles.prefill.summary", "Prefill instances, ready/wanted."),
            Column("Decode", ".status.roles.decode.summary", "Decode instances, ready/wanted."),
            Column("Worker", ".status.roles.worker.summary", "Colocated instances, ready/wanted.", priority=1),
            Column("Router", ".status.router.summary", "Router pods, ready/wanted.", priority=1),
            Column("Domain", ".status.placement.domain", "NVLink domain that holds the GPU pods."),
            Column(
                "Score",
                ".status.placement.score",
                "How well the GPU pods are placed, from 0 to 1.",
                type="number",
                priority=1,
            ),
            Column("Scheduled", _condition("GangScheduled", "status"), "Whether the gang is bound.", priority=1),
            Column("Metrics", _condition("MetricsAvailable", "status"), "Whether the planner sees.", priority=1),
            Column("Endpoint", ".status.endpoint", "URL of the router inside the cluster.", priority=1),
            Column("Message", _condition("Ready", "message"), "The reason in a sentence.", priority=1),
            _AGE,
        ),
    ),
    Kind(
        model=DisaggGroup,
        kind=GROUP_KIND,
        plural=GROUP_PLURAL,
        short_name="dg",
        scale=True,
        columns=(
            Column("Deployment", ".spec.deployment", "DisaggDeployment that the group belongs to."),
            Column("Role", ".spec.role", "Role of the instances."),
            Column("Desired", ".spec.replicas", "Instances wanted.", type="integer"),
            Column("Current", ".status.replicas", "Instances that exist.", type="integer"),
            Column("Ready", ".status.readyReplicas", "Instances that serve.", type="integer"),
            Column("Updated", ".status.updatedReplicas", "Current revision.", type="integer", priority=1),
            _AGE,
        ),
    ),
)


def build_crd(kind: Kind, *, version: str) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind; `version` is the release that it came with."""
    subresources: dict[str, Any] = {"status": {}}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": kind.crd_name,
            "labels": {
                "app.kubernetes.io/name": "disagg",
                "app.kubernetes.io/part-of": "disagg",
                "app.kubernetes.io/version": version,
            },
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short_name],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.to_dict() for column in kind.columns],
                    "schema": {"openAPIV3Schema": _object_schema(kind.model)},
                }
            ],
        },
    }


def _object_schema(model: type[Model]) -> Schema:
    """The whole object: spec as it is read (with defaults), status as it is written, metadata as the server has it."""
    whole = structural_schema(model)
    properties = {
        "apiVersion": {"type": "string", "description": "API group and version of this representation."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
        "spec": whole["properties"]["spec"],
        "status": structural_schema(_part(model, "status"), defaults=False),
    }
    schema: Schema = {"description": whole["description"], "type": "object", "required": ["spec"]}
    if "x-kubernetes-validations" in whole:
        schema["x-kubernetes-validations"] = whole["x-kubernetes-validations"]
    schema["properties"] = properties
    return schema


def _part(model: type[Model], field: str) -> type[Model]:
    annotation = model.model_fields[field].annotation
    if not (isinstance(annotation, type) and issubclass(annotation, Model)):
        raise TypeError(f"{model.__name__}.{field} is {annotation!r}, not a model")
    return annotation
