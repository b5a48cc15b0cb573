"""`DisaggDeployment` (`dd`): what a user applies.

One object says which model is served, how fast it has to answer, by what engine, and what each role looks like; the
operator derives everything else. Invariants across sections live here: the set of roles makes sense, and a GPU budget
holds at least what the deployment starts with.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from .base import CATALOGUE_NAME_PATTERN, DNS_LABEL_PATTERN, Flag, LabelKey, Model, Number, Rule, Whole
from .meta import API_VERSION, ObjectMeta
from .roles import PodTemplate, Role, RoleSpec
from .status import DeploymentStatus
from .vllm import ObjectName, VllmEngine

DOMAIN_LABEL = "nvidia.com/gpu.clique"
HOST_LABEL = "kubernetes.io/hostname"


class Slo(Model):
    """Service level objectives of one request."""

    ttft_seconds: Annotated[Number, Field(gt=0, le=3600)]
    """Time to first token, seconds."""
    tpot_seconds: Annotated[Number, Field(gt=0, le=3600)]
    """Time per output token after the first, averaged over the request, seconds."""
    attainment: Annotated[Number, Field(gt=0, le=1)] = 0.9
    """Share of requests that must meet both."""


class EngineType(StrEnum):
    """What runs in the worker pods."""

    SIMULATED = "simulated"
    VLLM = "vllm"


class Admission(StrEnum):
    """When a request may join the batch: KV reserved for input + max_tokens, or preempted and recomputed when short."""

    RESERVE = "reserve"
    PREEMPT = "preempt"


class SimulatedEngine(Model):
    """Settings of the simulated GPUs."""

    time_scale: Annotated[Number, Field(gt=0, le=10000)] = 1.0
    """Modelled seconds in one second of wall time."""
    startup_seconds: Annotated[Number, Field(ge=0, le=86400)] | None = None
    """Modelled seconds until an instance is ready; absent: weights divided by the load bandwidth."""
    block_tokens: Annotated[Whole, Field(ge=1, le=4096)] = 16
    """Tokens in a KV block."""
    kv_bytes_scale: Annotated[Number, Field(ge=0, le=1)] = 0.0001
    """Bytes really sent per modelled byte of KV."""
    admission: Admission = Admission.PREEMPT
    """Admission policy of the batching loop."""
    answer_tokens_mean: Annotated[Number, Field(ge=1, le=1000000)] = 200.0
    """Mean of the lognormal distribution that ends answers, tokens."""
    answer_tokens_sigma: Annotated[Number, Field(ge=0, le=4)] = 0.4
    """Sigma of that distribution; 0: every answer has the mean length."""
    slowdown: Annotated[Number, Field(ge=0.01, le=100)] = 1.0
    """Factor on every modelled step: 1.5 makes the GPUs half as slow again as the model says."""
    debug_endpoints: Flag = False
    """Serve /debug/slowdown on the workers, for drills."""


class Engine(Model):
    """What runs in the worker pods."""

    type: EngineType = EngineType.SIMULATED
    """simulated: GPUs modelled by the engine, behind the same HTTP interface as vLLM. vllm: vLLM, from your image."""
    image: Annotated[str, Field(max_length=512)] = ""
    """Image of the workers; empty: the operator's own, which is for simulated ones."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Pull policy of that image."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8)] = Field(
        default=(), json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """Secrets of the deployment's namespace to pull that image with."""
    kv_format: Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")] = ""
    """Format of the KV that the image writes. Change it with an image whose KV older ones cannot read, and back."""
    simulated: SimulatedEngine = Field(default_factory=SimulatedEngine)
    """Settings of the simulated engine."""
    vllm: VllmEngine | None = None
    """Settings of vLLM."""

    rules = (
        Rule(
            cel="!has(self.type) || self.type != 'vllm' || (has(self.image) && self.image != '')",
            message="type vllm needs an image that holds vLLM, for example vllm/vllm-openai with the tag you tested",
            holds=lambda self: self.type is not EngineType.VLLM or bool(self.image),
            field="image",
        ),
        Rule(
            cel="!has(self.vllm) || (has(self.type) && self.type == 'vllm')",
            message="the section vllm goes with type vllm",
            holds=lambda self: self.vllm is None or self.type is EngineType.VLLM,
            field="vllm",
        ),
    )

    @property
    def vllm_settings(self) -> VllmEngine:
        """The section vllm, or its defaults."""
        return self.vllm or VllmEngine()


class RouterPolicy(StrEnum):
    """How the router chooses instances."""

    KV = "kv"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class AntiAffinity(StrEnum):
    """Whether replicas keep away from each other's nodes."""

    NONE = "none"
    PREFERRED = "preferred"
    REQUIRED = "required"


class Router(Model):
    """The OpenAI-compatible front of the deployment."""

    replicas: Annotated[Whole, Field(ge=1, le=64)] = 1
    """Router pods."""
    policy: RouterPolicy = RouterPolicy.KV
    """kv: cost of blocks still to prefill plus load. least-loaded: shortest queue. round-robin: in turn."""
    service_type: ServiceType = ServiceType.CLUSTER_IP
    """Type of the Service in front of the routers."""
    port: Annotated[Whole, Field(ge=1, le=65535)] = 8000
    """Port of that Service."""
    anti_affinity: AntiAffinity = AntiAffinity.PREFERRED
    """Whether router pods keep to nodes of their own: none, preferred or required. Required ones update one by one."""
    template: PodTemplate = Field(default_factory=PodTemplate)
    """Changes to the router pods."""


class PlannerMode(StrEnum):
    """active: decisions are written. advisory: they are only reported."""

    ACTIVE = "active"
    ADVISORY = "advisory"


class Predictor(StrEnum):
    """How the next interval's load is forecast."""

    ARIMA = "arima"
    CONSTANT = "constant"


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


class Prometheus(Model):
    """Where the planner reads metrics."""

    url: Annotated[str, Field(max_length=2048)] | None = None
    """Base URL of the Prometheus API; absent: the operator's default, set by the chart."""

    rules = (
        Rule(
            cel="!has(self.url) || (isURL(self.url) && url(self.url).getScheme() in ['http', 'https'])",
            message="url must be an absolute http or https URL, for example http://prometheus.monitoring:9090",
            holds=lambda self: self.url is None or _is_http_url(self.url),
            field="url",
        ),
    )


class Planner(Model):
    """The planner; it runs when a role has autoscaling.mode planner."""

    interval_seconds: Annotated[Number, Field(ge=0.1, le=86400)] = 30.0
    """Seconds between two decisions."""
    mode: PlannerMode = PlannerMode.ACTIVE
    """active: decisions are written. advisory: they are only reported."""
    predictor: Predictor = Predictor.ARIMA
    """How the next interval's load is forecast."""
    scale_down_stabilization_seconds: Annotated[Number, Field(ge=0, le=86400)] = 180.0
    """A role shrinks only to the highest target of this many past seconds."""
    prometheus: Prometheus = Field(default_factory=Prometheus)
    """Where the planner reads metrics."""
    template: PodTemplate = Field(default_factory=PodTemplate)
    """Changes to the planner's pod."""


class Provisioning(StrEnum):
    """What happens when no domain has room: nothing is ungated, and the status says what is missing."""

    NONE = "none"


class StagePairing(StrEnum):
    """Whether the same pipeline stage of prefill and decode shares a node, so that KV moves inside it."""

    NONE = "none"
    PREFERRED = "preferred"
    REQUIRED = "required"


class Preemption(StrEnum):
    """Whether a gang that fits nowhere else may take the room of pods of lower priority."""

    NEVER = "never"
    LOWER_PRIORITY = "lowerPriority"


class Placement(Model):
    """Where the GPU pods may go; they are placed as one gang."""

    levels: Annotated[tuple[LabelKey, ...], Field(min_length=1, max_length=8)] = Field(
        default=(DOMAIN_LABEL, HOST_LABEL), json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """Node label keys from the widest to the narrowest domain."""
    required: Annotated[str, Field(max_length=317)] | None = None
    """Level whose domains the gang must not cross; absent: the first of levels; empty: none, any node will do."""
    preferred: Annotated[str, Field(max_length=317)] | None = None
    """Level that the gang stays within when it can; absent or empty: none."""
    stage_pairing: StagePairing = StagePairing.NONE
    """Whether the same pipeline stage of prefill and decode shares a node: none, preferred or required."""
    preemption: Preemption = Preemption.NEVER
    """never: room held by pods of lower priority is taken. lowerPriority: the scheduler may evict them for the gang."""
    bind_deadline_seconds: Annotated[Number, Field(ge=1, le=86400)] = 60.0
    """Seconds after which a placed gang that is not bound gives its pods back."""
    gang_termination_delay_seconds: Annotated[Number, Field(ge=1, le=604800)] = 1800.0
    """Seconds that a role may have fewer than minAvailable placed instances before the gang is placed anew as one."""
    node_loss_seconds: Annotated[Whole, Field(ge=0, le=86400)] = 60
    """Seconds that pods stay on a node that is not ready or unreachable before they are replaced."""
    provisioning: Provisioning = Provisioning.NONE
    """What happens when no domain has room."""

    rules = (
        Rule(
            cel="!has(self.levels) || self.levels.all(a, self.levels.exists_one(b, a == b))",
            message="levels must not repeat a label key",
            holds=lambda self: len(set(self.levels)) == len(self.levels),
            field="levels",
        ),
        Rule(
            cel="!has(self.required) || self.required == '' || self.required in self.levels",
            message="required must be one of levels, or empty",
            holds=lambda self: not self.required or self.required in self.levels,
            field="required",
        ),
        Rule(
            cel="!has(self.preferred) || self.preferred == '' || self.preferred in self.levels",
            message="preferred must be one of levels, or empty",
            holds=lambda self: not self.preferred or self.preferred in self.levels,
            field="preferred",
        ),
    )

    @property
    def required_level(self) -> str | None:
        """Label key whose domains the gang must not cross; None: any node will do."""
        if self.required is None:
            return self.levels[0]
        return self.required or None

    @property
    def preferred_level(self) -> str | None:
        """Label key that the gang stays within when it can."""
        return self.preferred or None


class Link(Model):
    """The modelled link that carries KV from prefill to decode."""

    type: Annotated[str, Field(min_length=1, max_length=63, pattern=CATALOGUE_NAME_PATTERN)] = "nvlink"
    """Name in the catalogue of links, for example nvlink, ib-400 or eth-100."""
    bandwidth_bytes_per_second: Annotated[Number, Field(gt=0, le=1e15)] | None = None
    """Bandwidth in one direction, bytes per second; absent: the catalogue's."""


def _cel_known_levels(role: str) -> str:
    place = f"self.{role}.placement"
    names = [f"{place}.required", f"{place}.preferred", f"{place}.instanceWithin"]
    tests = [f"(!has({name}) || {name} == '' || {name} in self.placement.levels)" for name in names]
    tests.append(f"(!has({place}.spread) || {place}.spread.level in self.placement.levels)")
    return f"(!has(self.{role}) || {' && '.join(tests)})"


def _cel_start_gpus(role: str) -> str:
    section = f"self.{role}"
    gpus = f"{section}.parallelism.tensor * {section}.parallelism.pipeline"
    start = (
        f"(has({section}.replicas) ? {section}.replicas : has({section}.autoscaling) ? "
        f"(has({section}.autoscaling.initial) ? {section}.autoscaling.initial : {section}.autoscaling.min) : 0)"
    )
    return f"(has({section}) ? {start} * {gpus} : 0)"


def _cel_unplanned(role: str) -> str:
    section = f"self.{role}"
    return f"(!has({section}) || !has({section}.autoscaling) || {section}.autoscaling.mode != 'planner')"


class DisaggDeploymentSpec(Model):
    """Desired state of a deployment."""

    model: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$")]
    """Name of the model: in the catalogue for simulated engines; also the name that clients ask for."""
    slo: Slo
    """Service level objectives; the planner scales for them and the metrics count against them."""
    engine: Engine = Field(default_factory=Engine)
    """What runs in the worker pods."""
    prefill: RoleSpec | None = None
    """Instances that compute prompts; goes with decode."""
    decode: RoleSpec | None = None
    """Instances that generate tokens; goes with prefill."""
    worker: RoleSpec | None = None
    """Instances that do both (colocated)."""
    router: Router = Field(default_factory=Router)
    """The front of the deployment."""
    planner: Planner = Field(default_factory=Planner)
    """The planner; it runs when a role has autoscaling.mode planner."""
    placement: Placement = Field(default_factory=Placement)
    """Where the GPU pods may go."""
    link: Link = Field(default_factory=Link)
    """The modelled KV link."""
    gpu_budget: Annotated[Whole, Field(ge=0, le=1000000)] | None = None
    """Most GPUs that all pods of the deployment may hold, surging and terminating ones counted; absent: no bound."""
    paused: Flag = False
    """Leave instances of an older revision as they are. What is missing is still created, of the current revision."""

    rules = (
        Rule(
            cel="has(self.prefill) == has(self.decode)",
            message="prefill and decode go together: give both or neither",
            holds=lambda self: (self.prefill is None) == (self.decode is None),
        ),
        Rule(
            cel="has(self.prefill) || has(self.decode) || has(self.worker)",
            message="give at least one role: prefill with decode, or worker",
            holds=lambda self: bool(self.roles),
        ),
        Rule(
            cel="!has(self.worker) || !has(self.worker.autoscaling) || self.worker.autoscaling.mode == 'external'",
            message="the planner scales prefill and decode only; give worker replicas, or autoscaling.mode external",
            holds=lambda self: self.worker is None or not self.worker.planned,
            field="worker",
        ),
        Rule(
            cel=" && ".join(_cel_known_levels(role) for role in Role),
            message="every level that a role names must be one of placement.levels",
            holds=lambda self: all(
                level in self.placement.levels for section in self.roles.values() for level in section.placement.levels
            ),
            field="placement.levels",
        ),
        Rule(
            cel=(
                "self.placement.stagePairing == 'none' || (has(self.prefill) && has(self.decode) && "
                "self.prefill.parallelism.pipeline == self.decode.parallelism.pipeline)"
            ),
            message="stagePairing needs prefill and decode with the same parallelism.pipeline",
            holds=lambda self: (
                self.placement.stage_pairing is StagePairing.NONE
                or (
                    None not in (self.prefill, self.decode)
                    and self.prefill.parallelism.pipeline == self.decode.parallelism.pipeline
                )
            ),
            field="placement.stagePairing",
        ),
        Rule(
            cel=f"self.engine.type != 'vllm' || ({_cel_unplanned(Role.PREFILL)} && {_cel_unplanned(Role.DECODE)})",
            message=(
                "the planner knows how fast simulated engines are, not how fast vLLM is on your GPUs; with engine.type "
                "vllm give replicas, or autoscaling.mode external"
            ),
            holds=lambda self: self.engine.type is not EngineType.VLLM or not self.planned,
        ),
        Rule(
            cel="!has(self.gpuBudget) || " + " + ".join(_cel_start_gpus(role) for role in Role) + " <= self.gpuBudget",
            message="gpuBudget must hold all instances at the start (replicas, or autoscaling.initial)",
            holds=lambda self: self.gpu_budget is None or self.initial_gpus <= self.gpu_budget,
            field="gpuBudget",
        ),
    )

    @property
    def roles(self) -> Mapping[Role, RoleSpec]:
        """The sections that are present, in the order prefill, decode, worker."""
        sections = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.WORKER: self.worker}
        return {role: section for role, section in sections.items() if section is not None}

    @property
    def initial_gpus(self) -> int:
        """GPUs that the deployment holds when it starts."""
        return sum(section.initial_replicas * section.gpus_per_instance for section in self.roles.values())

    @property
    def planned(self) -> bool:
        """True when a planner has to run."""
        return any(section.planned for section in self.roles.values())


class DisaggDeployment(Model):
    """A model served by prefill and decode instances that are placed, routed to and scaled as one."""

    api_version: Literal["disagg.dev/v1alpha1"] = API_VERSION
    """API group and version."""
    kind: Literal["DisaggDeployment"] = "DisaggDeployment"
    """Kind of this object."""
    metadata: ObjectMeta
    """Name, namespace, labels."""
    spec: DisaggDeploymentSpec
    """Desired state."""
    status: DeploymentStatus = Field(default_factory=DeploymentStatus)
    """Observed state."""

    rules = (
        Rule(
            cel=f"self.metadata.name.matches('{DNS_LABEL_PATTERN}')",
            message=(
                "metadata.name must be at most 63 lower-case letters, digits and '-', start with a letter and end "
                "alphanumerically, because it becomes a label value and part of Service names"
            ),
            holds=lambda self: self.metadata.names_a_service,
        ),
    )

    @property
    def name(self) -> str:
        """metadata.name"""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """metadata.namespace, `default` when the document has none."""
        return self.metadata.namespace or "default"
