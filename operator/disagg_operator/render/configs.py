"""Settings of workers, routers and planners as a deployment's spec asks for them."""

from dataclasses import dataclass

from disagg_contract.config import (
    Admission,
    BatchPolicy,
    PlannerConfig,
    PlannerMode,
    Predictor,
    RouterConfig,
    RoutingPolicy,
    WorkerConfig,
)
from disagg_contract.labels import Role as ContractRole
from disagg_crds import DisaggDeployment, Role, RoleSpec
from disagg_operator.core.target import compatibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every program gets from its operator rather than from the spec.

    ``image`` and ``image_pull_policy``: of pods whose spec names none; ``image_pull_secrets``: Secrets to pull it with.
    ``prometheus_url``: where planners look by default. ``network_policies``: whether to render them, and
    ``trusted_namespaces``: whose pods they let at workers besides routers. ``catalogue``: file with further GPUs and
    models, as the programs see it. ``version``: of this package.
    """

    image: str = ""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    prometheus_url: str = ""
    network_policies: bool = False
    trusted_namespaces: tuple[str, ...] = ()
    catalogue: str = ""
    log_level: str = "info"
    version: str = ""


def worker_config(deployment: DisaggDeployment, role: Role, *, around: Surroundings) -> WorkerConfig:
    """Settings of an instance, without addresses: the runtime knows those."""
    spec, section = deployment.spec, deployment.spec.roles[role]
    engine, batching = spec.engine.simulated, section.batching
    return WorkerConfig(
        role=ContractRole(role.value),
        model=spec.model,
        gpu=section.gpu.type,
        tensor=section.parallelism.tensor,
        pipeline=section.parallelism.pipeline,
        time_scale=engine.time_scale,
        startup_seconds=-1.0 if engine.startup_seconds is None else engine.startup_seconds,
        block_tokens=engine.block_tokens,
        admission=Admission(engine.admission.value),
        batch_policy=BatchPolicy(batching.policy.value),
        chunk_tokens=batching.chunk_tokens,
        max_batched_tokens=batching.max_batched_tokens,
        max_sequences=batching.max_sequences,
        answer_tokens_mean=engine.answer_tokens_mean,
        answer_tokens_sigma=engine.answer_tokens_sigma,
        kv_bytes_scale=engine.kv_bytes_scale,
        link=spec.link.type,
        link_bytes_per_second=spec.link.bandwidth_bytes_per_second or 0.0,
        grace_seconds=worker_grace_seconds(section),
        slowdown=engine.slowdown,
        debug_endpoints=engine.debug_endpoints,
        revision=compatibility(deployment),
        catalogue=around.catalogue,
        log_level=around.log_level,
    )


def worker_grace_seconds(section: RoleSpec) -> float:
    """How long a worker's own drain may take: a little less than the time after which it is killed."""
    grace = float(section.template.termination_grace_period_seconds)
    return max(0.0, min(grace - 2.0, grace * 0.95))


def router_config(deployment: DisaggDeployment, *, around: Surroundings) -> RouterConfig:
    """Settings of a router, without addresses and without the way it discovers workers."""
    spec = deployment.spec
    grace = float(spec.router.template.termination_grace_period_seconds)
    return RouterConfig(
        deployment=deployment.name,
        model=spec.model,
        policy=RoutingPolicy(spec.router.policy.value),
        slo_ttft_seconds=spec.slo.ttft_seconds,
        slo_tpot_seconds=spec.slo.tpot_seconds,
        grace_seconds=max(0.0, min(grace - 2.0, grace * 0.95)),
        log_level=around.log_level,
    )


def needs_planner(deployment: DisaggDeployment) -> bool:
    """Whether the planner has something to decide: it scales prefill and decode."""
    spec = deployment.spec
    return any(section is not None and section.planned for section in (spec.prefill, spec.decode))


def planner_config(deployment: DisaggDeployment, *, around: Surroundings) -> PlannerConfig:
    """Settings of the planner, without addresses. A role that somebody else scales keeps its number as both bounds."""
    spec = deployment.spec
    prefill, decode = spec.prefill, spec.decode
    if prefill is None or decode is None:
        raise ValueError(f"{deployment.name} has no prefill and decode roles, so no planner can scale them")
    return PlannerConfig(
        deployment=deployment.name,
        model=spec.model,
        prometheus_url=spec.planner.prometheus.url or around.prometheus_url,
        interval_seconds=spec.planner.interval_seconds,
        slo_ttft_seconds=spec.slo.ttft_seconds,
        slo_tpot_seconds=spec.slo.tpot_seconds,
        attainment=spec.slo.attainment,
        prefill_scaling=prefill.planned,
        prefill_min=_least(prefill),
        prefill_max=_most(prefill),
        prefill_gpu=prefill.gpu.type,
        prefill_tensor=prefill.parallelism.tensor,
        prefill_pipeline=prefill.parallelism.pipeline,
        decode_scaling=decode.planned,
        decode_min=_least(decode),
        decode_max=_most(decode),
        decode_gpu=decode.gpu.type,
        decode_tensor=decode.parallelism.tensor,
        decode_pipeline=decode.parallelism.pipeline,
        max_sequences=decode.batching.max_sequences,
        max_batched_tokens=prefill.batching.max_batched_tokens,
        gpu_budget=spec.gpu_budget or 0,
        predictor=Predictor(spec.planner.predictor.value),
        mode=PlannerMode(spec.planner.mode.value),
        scale_down_stabilization_seconds=spec.planner.scale_down_stabilization_seconds,
        link=spec.link.type,
        time_scale=spec.engine.simulated.time_scale,
        catalogue=around.catalogue,
        log_level=around.log_level,
    )


def _least(section: RoleSpec) -> int:
    return section.autoscaling.min if section.autoscaling is not None else section.initial_replicas


def _most(section: RoleSpec) -> int:
    return section.autoscaling.max if section.autoscaling is not None else section.initial_replicas
