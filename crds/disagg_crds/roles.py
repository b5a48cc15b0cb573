"""One role of a deployment: how many instances, on which GPUs, batching how, in which pods.

An *instance* is one full copy of the weights on tensor x pipeline GPUs. A role is either pinned (`replicas`) or scaled
by somebody (`autoscaling`), never both: that is what keeps a single writer for the number.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .affinity import Affinity, RolePlacement
from .base import CATALOGUE_NAME_PATTERN, LabelKey, LabelValue, Model, Quantity, ResourceName, Rule, Whole

#: Most instances a role may have: keeps every list derived from it bounded.
MAX_INSTANCES = 1024
_OWN_PREFIX = "disagg.dev/"


class Role(StrEnum):
    """What an instance does. `worker` serves both phases."""

    PREFILL = "prefill"
    DECODE = "decode"
    WORKER = "worker"


class AutoscalingMode(StrEnum):
    """Who writes the replicas of a group: our planner, or somebody else through `/scale` (HPA, KEDA, kubectl)."""

    PLANNER = "planner"
    EXTERNAL = "external"


class BatchingPolicy(StrEnum):
    """How prompts join running decodes: whole and first, or in chunks that share the step's token budget."""

    PREFILL_FIRST = "prefill-first"
    CHUNKED = "chunked"


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model):
    """A taint that the pods accept; as in a Pod."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """Taint key; absent with operator Exists matches every taint."""
    operator: TolerationOperator = TolerationOperator.EQUAL
    """Exists, or Equal (the value has to match)."""
    value: LabelValue | None = None
    """Taint value, with operator Equal."""
    effect: TaintEffect | None = None
    """Taint effect; absent matches all."""
    toleration_seconds: Annotated[Whole, Field(ge=0)] | None = None
    """Seconds that a running pod stays after the taint appears (effect NoExecute); absent: for ever."""

    rules = (
        Rule(
            cel="has(self.key) || self.operator == 'Exists'",
            message="a toleration without a key needs operator Exists",
            holds=lambda self: self.key is not None or self.operator is TolerationOperator.EXISTS,
            field="operator",
        ),
        Rule(
            cel="!has(self.value) || self.value == '' || self.operator == 'Equal'",
            message="operator Exists takes no value",
            holds=lambda self: not self.value or self.operator is TolerationOperator.EQUAL,
            field="operator",
        ),
    )


class EnvVar(Model):
    """An environment variable of the container."""

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=32768)] = ""
    """Its value, taken literally."""


ResourceList = Annotated[dict[LabelKey, Quantity], Field(max_length=16)]


class Resources(Model):
    """Requests and limits of the container besides the GPUs, which follow from gpu and parallelism."""

    requests: ResourceList = Field(default_factory=dict)
    """Requested amounts, for example `cpu: 500m`, `memory: 2Gi`."""
    limits: ResourceList = Field(default_factory=dict)
    """Upper bounds."""


class PodTemplate(Model):
    """What a user may change about the pods of a part."""

    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels added to the pods; keys under disagg.dev/ are the operator's own."""
    annotations: Annotated[dict[LabelKey, Annotated[str, Field(max_length=16384)]], Field(max_length=32)] = Field(
        default_factory=dict
    )
    """Annotations added to the pods; keys under disagg.dev/ are the operator's own."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(default_factory=dict)
    """Node labels that a node must carry to be considered."""
    affinity: Affinity | None = None
    """Required node affinity."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Taints that the pods accept."""
    resources: Resources = Field(default_factory=Resources)
    """Requests and limits besides the GPUs."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64)] = Field(
        default=(),
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Environment variables added to the container."""
    priority_class_name: Annotated[str, Field(max_length=253)] | None = None
    """PriorityClass of the pods; absent: the cluster's default."""
    runtime_class_name: Annotated[str, Field(max_length=253)] | None = None
    """RuntimeClass of the pods, for example nvidia; absent: the node's default."""
    termination_grace_period_seconds: Annotated[Whole, Field(ge=0, le=86400)] = 120
    """Seconds that a draining pod gets to finish its requests before it is killed."""

    rules = (
        Rule(
            cel=f"!has(self.labels) || self.labels.all(k, !k.startsWith('{_OWN_PREFIX}'))",
            message="labels under disagg.dev/ belong to the operator; choose another prefix",
            holds=lambda self: not any(key.startswith(_OWN_PREFIX) for key in self.labels),
            field="labels",
        ),
        Rule(
            cel=f"!has(self.annotations) || self.annotations.all(k, !k.startsWith('{_OWN_PREFIX}'))",
            message="annotations under disagg.dev/ belong to the operator; choose another prefix",
            holds=lambda self: not any(key.startswith(_OWN_PREFIX) for key in self.annotations),
            field="annotations",
        ),
    )


class Gpu(Model):
    """The GPU that an instance runs on."""

    type: Annotated[str, Field(min_length=1, max_length=63, pattern=CATALOGUE_NAME_PATTERN)]
    """Name in the catalogue of GPUs, for example a100-80gb or h100."""
    resource_name: ResourceName = "nvidia.com/gpu"
    """Extended resource that the pods request, one per GPU; `domain/name`."""


class Parallelism(Model):
    """How one instance is spread over GPUs: it takes tensor x pipeline of them."""

    tensor: Annotated[Whole, Field(ge=1, le=64)] = 1
    """GPUs that share each layer."""
    pipeline: Annotated[Whole, Field(ge=1, le=64)] = 1
    """Stages that share the layers among them."""


class Batching(Model):
    """Bounds and policy of the batching loop of an instance."""

    max_batched_tokens: Annotated[Whole, Field(ge=1, le=1048576)] = 2048
    """Most prompt tokens in one iteration; a longer prompt runs alone (prefill-first)."""
    max_sequences: Annotated[Whole, Field(ge=1, le=65536)] = 256
    """Most sequences in one iteration."""
    policy: BatchingPolicy = BatchingPolicy.PREFILL_FIRST
    """prefill-first: waiting prompts run before decodes. chunked: prompts are cut to the step's token budget."""
    chunk_tokens: Annotated[Whole, Field(ge=1, le=1048576)] = 512
    """Token budget of a step, decode tokens counted (chunked)."""


class Autoscaling(Model):
    """The replicas of the role are written by somebody through /scale of its group."""

    mode: AutoscalingMode = AutoscalingMode.PLANNER
    """planner: our planner decides. external: an HPA, KEDA or a person does."""
    min: Annotated[Whole, Field(ge=1, le=MAX_INSTANCES)] = 1
    """Fewest instances."""
    max: Annotated[Whole, Field(ge=1, le=MAX_INSTANCES)]
    """Most instances."""
    initial: Annotated[Whole, Field(ge=1, le=MAX_INSTANCES)] | None = None
    """Instances that the group starts with; absent: min."""

    rules = (
        Rule(
            cel="self.min <= self.max",
            message="min must not be above max",
            holds=lambda self: self.min <= self.max,
            field="min",
        ),
        Rule(
            cel="!has(self.initial) || (self.min <= self.initial && self.initial <= self.max)",
            message="initial must lie between min and max",
            holds=lambda self: self.initial is None or self.min <= self.initial <= self.max,
            field="initial",
        ),
    )

    @property
    def start(self) -> int:
        """Instances that the group starts with."""
        return self.min if self.initial is None else self.initial


class RoleUpdate(Model):
    """Bounds of a rolling update. Whatever they are, minAvailable instances keep serving."""

    max_surge: Annotated[Whole, Field(ge=0, le=MAX_INSTANCES)] = 1
    """Most instances above the wanted number. They are made only where none may be taken away first."""
    max_unavailable: Annotated[Whole, Field(ge=0, le=MAX_INSTANCES)] = 1
    """Most instances that may be missing at a time; 0: a new one serves before an old one goes."""

    rules = (
        Rule(
            cel="!has(self.maxSurge) || !has(self.maxUnavailable) || self.maxSurge > 0 || self.maxUnavailable > 0",
            message="maxSurge and maxUnavailable must not both be 0, because then no instance could be replaced",
            holds=lambda self: self.max_surge > 0 or self.max_unavailable > 0,
            field="maxSurge",
        ),
    )


class RoleSpec(Model):
    """The instances of one role."""

    replicas: Annotated[Whole, Field(ge=0, le=MAX_INSTANCES)] | None = None
    """Instances, kept equal by the operator; a hand-made scale is reverted. Exactly one of replicas and autoscaling."""
    autoscaling: Autoscaling | None = None
    """Bounds within which somebody else sets the instances. Exactly one of replicas and autoscaling."""
    min_available: Annotated[Whole, Field(ge=0, le=MAX_INSTANCES)] | None = None
    """Instances that must be placed together and stay up for the role to be of use; absent: 1, or 0 with 0 replicas."""
    gpu: Gpu
    """GPU of each instance."""
    parallelism: Parallelism = Field(default_factory=Parallelism)
    """GPUs of one instance."""
    gpus_per_pod: Annotated[Whole, Field(ge=1, le=4096)] | None = None
    """GPUs of each pod of an instance, for instances that span nodes; absent: all of them, in one pod."""
    placement: RolePlacement = Field(default_factory=RolePlacement)
    """Where the instances may go, beyond spec.placement."""
    batching: Batching = Field(default_factory=Batching)
    """Batching loop of one instance."""
    template: PodTemplate = Field(default_factory=PodTemplate)
    """Changes to the pods."""
    update: RoleUpdate = Field(default_factory=RoleUpdate)
    """Bounds of a rolling update."""

    rules = (
        Rule(
            cel="has(self.replicas) != has(self.autoscaling)",
            message="give exactly one of replicas and autoscaling",
            holds=lambda self: (self.replicas is None) != (self.autoscaling is None),
        ),
        Rule(
            cel="!has(self.gpusPerPod) || self.parallelism.tensor * self.parallelism.pipeline % self.gpusPerPod == 0",
            message="gpusPerPod must divide the GPUs of an instance (tensor x pipeline)",
            holds=lambda self: self.gpus_per_pod is None or self.gpus_per_instance % self.gpus_per_pod == 0,
            field="gpusPerPod",
        ),
        Rule(
            cel="!has(self.minAvailable) || !has(self.replicas) || self.minAvailable <= self.replicas",
            message="minAvailable must not be above replicas",
            holds=lambda self: None in (self.min_available, self.replicas) or self.min_available <= self.replicas,
            field="minAvailable",
        ),
        Rule(
            cel="!has(self.minAvailable) || !has(self.autoscaling) || self.minAvailable <= self.autoscaling.min",
            message="minAvailable must not be above autoscaling.min",
            holds=lambda self: (
                None in (self.min_available, self.autoscaling) or self.min_available <= self.autoscaling.min
            ),
            field="minAvailable",
        ),
    )

    @property
    def gpus_per_instance(self) -> int:
        """tensor x pipeline."""
        return self.parallelism.tensor * self.parallelism.pipeline

    @property
    def pods_per_instance(self) -> int:
        """Pods that an instance is made of."""
        return 1 if self.gpus_per_pod is None else self.gpus_per_instance // self.gpus_per_pod

    @property
    def initial_replicas(self) -> int:
        """Instances that a new group is created with."""
        if self.autoscaling is not None:
            return self.autoscaling.start
        return self.replicas or 0

    @property
    def base_instances(self) -> int:
        """Instances of the base gang: minAvailable, or its default."""
        if self.min_available is not None:
            return self.min_available
        return min(1, self.initial_replicas)

    @property
    def planned(self) -> bool:
        """True when our planner writes the replicas."""
        return self.autoscaling is not None and self.autoscaling.mode is AutoscalingMode.PLANNER
