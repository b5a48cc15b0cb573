"""Settings of the four programs.

Each program has one frozen dataclass. The operator fills it from the spec and renders it with
:func:`disagg_contract.settings.to_args`; the program parses it back with :func:`disagg_contract.settings.parse`. Every
field carries its help text with the unit and the reason of the default.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from disagg_contract import ports
from disagg_contract.choices import Admission, BatchPolicy, PlannerMode, Predictor, QueueOrder, RoutingPolicy
from disagg_contract.labels import Role
from disagg_contract.settings import Config, log_level_setting, setting

__all__ = [
    "CONFIGS",
    "Admission",
    "BatchPolicy",
    "OperatorConfig",
    "PlannerConfig",
    "PlannerMode",
    "Predictor",
    "QueueOrder",
    "RouterConfig",
    "RoutingPolicy",
    "WorkerConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(Config):
    """Settings of ``disagg worker``: one simulated instance behind vLLM's HTTP interface."""

    program: ClassVar[str] = "worker"

    role: Role = setting(Role.WORKER, "prefill, decode, or worker (both phases on one instance)")
    model: str = setting("llama-3-8b", "model of the catalogue that is simulated")
    served_model_name: str = setting("", "name clients use; empty: the same as --model")
    gpu: str = setting("h100", "GPU of the catalogue that is simulated")
    tensor: int = setting(1, "tensor-parallel GPUs of the instance", low=1, high=64)
    pipeline: int = setting(1, "pipeline stages of the instance", low=1, high=64)
    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(ports.HTTP, "HTTP port; 0 takes a free one", low=0, high=65535)
    kv_host: str = setting("", "address that decode workers pull from; empty: the pod's or --host")
    kv_port: int = setting(ports.KV_TRANSFER, "port of KV pulls; 0 takes a free one", low=0, high=65535)
    time_scale: float = setting(1.0, "modelled seconds in one wall second", above=0)
    startup_seconds: float = setting(-1.0, "modelled seconds until ready; -1: weights / load bandwidth", low=-1)
    block_tokens: int = setting(16, "tokens in a KV block; vLLM's default", low=1, high=4096)
    kv_capacity_tokens: int = setting(0, "KV room in tokens; 0: what the GPUs leave after the weights", low=0)
    prefix_caching: bool = setting(True, "reuse KV blocks of equal prefixes")
    admission: Admission = setting(
        Admission.PREEMPT, "preempt (recompute when KV runs out) or reserve (input + max_tokens)"
    )
    batch_policy: BatchPolicy = setting(
        BatchPolicy.PREFILL_FIRST,
        "prefill-first or chunked, of a colocated worker; iteration (prompts and decodes together, no budget) and "
        "static (a batch runs until all are done) are baselines",
    )
    queue_order: QueueOrder = setting(
        QueueOrder.FCFS, "who is next: fcfs, shortest-first (with ageing), or preemptive (prompts under way ranked too)"
    )
    chunk_tokens: int = setting(512, "token budget of an iteration under chunked, decode tokens included", low=1)
    max_batched_tokens: int = setting(2048, "prompt tokens of one iteration; a longer prompt goes alone", low=1)
    prefill_burst: int = setting(
        8, "prefill iterations in a row while a decode waits, under prefill-first; 0: unbounded", low=0
    )
    max_sequences: int = setting(256, "sequences in one batch", low=1)
    max_waiting: int = setting(4096, "requests that may wait; more are refused with 503", low=1)
    answer_tokens_mean: float = setting(200.0, "mean length of an answer nobody bounds, tokens", above=0)
    answer_tokens_sigma: float = setting(0.4, "sigma of the lognormal answer length; 0: always the mean", low=0)
    kv_bytes_scale: float = setting(1e-4, "real bytes sent per modelled KV byte", low=0, high=1)
    link: str = setting("nvlink", "link of KV pulls, of the catalogue")
    link_bytes_per_second: float = setting(0.0, "bandwidth of that link; 0: the catalogue's", low=0)
    lease_seconds: float = setting(30.0, "wall seconds without a sign of life after which pinned KV is freed", above=0)
    grace_seconds: float = setting(120.0, "wall seconds a drain may take after SIGTERM", low=0)
    slowdown: float = setting(1.0, "factor on every iteration, to try what a slow GPU does", above=0)
    token_file: str = setting(
        "", "file with the deployment's tokens, one a line; without it whoever reaches the ports is served"
    )
    debug_endpoints: bool = setting(False, "serve /debug/slowdown")
    revision: str = setting("", "revision hash; prefill and decode of different ones are not paired")
    seed: int = setting(0, "seed of everything the instance draws")
    tokenizer: str = setting("", "tokenizer.json to use instead of the built-in tokenizer")
    iteration_log: str = setting("", "file that gets a line an iteration, stamped with the engine's clock")
    catalogue: str = setting("", "YAML file with further GPUs and models")
    log_level: str = log_level_setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig(Config):
    """Settings of ``disagg router``. Workers come from a watched file, or from pods when it is empty."""

    program: ClassVar[str] = "router"

    deployment: str = setting("", "DisaggDeployment whose pods are watched")
    namespace: str = setting("", "namespace of those pods; empty: the pod's own")
    discovery_file: str = setting("", "file with the workers, instead of watching pods")
    token_file: str = setting("", "file with the deployment's tokens, one a line; workers are shown the first")
    model: str = setting("", "served model name; the label of metrics before the first worker is known")
    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(ports.HTTP, "HTTP port; 0 takes a free one", low=0, high=65535)
    policy: RoutingPolicy = setting(RoutingPolicy.KV, "kv, least-loaded or round-robin")
    overlap_weight: float = setting(1.0, "weight of blocks still to prefill against active blocks, policy kv", low=0)
    slo_ttft_seconds: float = setting(0.0, "TTFT SLO that requests are counted against; 0: none", low=0)
    slo_tpot_seconds: float = setting(0.0, "TPOT SLO that requests are counted against; 0: none", low=0)
    leg_timeout_seconds: float = setting(600.0, "wall seconds without a byte after which a leg has failed", above=0)
    connect_timeout_seconds: float = setting(2.0, "wall seconds to connect to a worker", above=0)
    leg_attempts: int = setting(3, "workers tried for a leg before its first byte reached the client", low=1)
    queue_seconds: float = setting(5.0, "wall seconds a request waits for a first worker before 503", low=0)
    max_body_bytes: int = setting(16 * 1024 * 1024, "largest request body", low=1024)
    max_header_bytes: int = setting(64 * 1024, "largest request head", low=1024)
    max_in_flight: int = setting(8192, "requests at a time; more get 503", low=1)
    grace_seconds: float = setting(120.0, "wall seconds a drain may take after SIGTERM", low=0)
    seed: int = setting(0, "seed of random tie-breaks")
    log_level: str = log_level_setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig(Config):
    """Settings of ``disagg planner``: one planner a deployment."""

    program: ClassVar[str] = "planner"

    deployment: str = setting("", "DisaggDeployment that is scaled")
    namespace: str = setting("", "its namespace; empty: the pod's own")
    model: str = setting("llama-3-8b", "model of the catalogue, for the profile and the metrics' label")
    served_model_name: str = setting("", "label of the metrics; empty: the same as --model")
    control_url: str = setting("", "control API of the process runtime, instead of Kubernetes")
    prometheus_url: str = setting("", "Prometheus to ask; empty with --discovery-file: scrape directly")
    router_url: str = setting("", "router to scrape where there is no Prometheus")
    discovery_file: str = setting("", "workers to scrape where there is no Prometheus")
    interval_seconds: float = setting(30.0, "wall seconds between decisions", above=0)
    window_seconds: float = setting(0.0, "wall seconds a query looks back; 0: the interval", low=0)
    stale_seconds: float = setting(120.0, "age at which a sample no longer counts", above=0)
    slo_ttft_seconds: float = setting(0.5, "TTFT promised", above=0)
    slo_tpot_seconds: float = setting(0.05, "TPOT promised", above=0)
    attainment: float = setting(0.9, "share of requests that must meet both", above=0, high=1)
    prefill_scaling: bool = setting(True, "whether prefill's replicas are the planner's")
    prefill_min: int = setting(1, "fewest prefill instances", low=0)
    prefill_max: int = setting(1, "most prefill instances", low=0)
    prefill_gpu: str = setting("h100", "GPU of prefill instances")
    prefill_tensor: int = setting(1, "tensor-parallel GPUs of a prefill instance", low=1)
    prefill_pipeline: int = setting(1, "pipeline stages of a prefill instance", low=1)
    decode_scaling: bool = setting(True, "whether decode's replicas are the planner's")
    decode_min: int = setting(1, "fewest decode instances", low=0)
    decode_max: int = setting(1, "most decode instances", low=0)
    decode_gpu: str = setting("h100", "GPU of decode instances")
    decode_tensor: int = setting(1, "tensor-parallel GPUs of a decode instance", low=1)
    decode_pipeline: int = setting(1, "pipeline stages of a decode instance", low=1)
    max_sequences: int = setting(256, "sequences in one decode batch, as the workers have it", low=1)
    max_batched_tokens: int = setting(2048, "prompt tokens of one iteration, as the workers have it", low=1)
    gpu_budget: int = setting(0, "GPUs of all instances together; 0: no bound", low=0)
    predictor: Predictor = setting(Predictor.ARIMA, "arima or constant")
    mode: PlannerMode = setting(PlannerMode.ACTIVE, "active, or advisory: decide and export, never act")
    startup_seconds: float = setting(0.0, "how far ahead to forecast beside the interval: start-up time", low=0)
    scale_down_stabilization_seconds: float = setting(
        180.0, "scale-down follows the highest decision of this many seconds", low=0
    )
    link: str = setting("nvlink", "link of KV transfers, of the catalogue")
    time_scale: float = setting(1.0, "modelled seconds in one wall second, as the workers have it", above=0)
    profile: str = setting("", "profile file; empty: computed by the engine")
    host: str = setting("0.0.0.0", "address of health and metrics")
    port: int = setting(ports.PLANNER_METRICS, "port of health and metrics; 0 takes a free one", low=0, high=65535)
    catalogue: str = setting("", "YAML file with further GPUs and models")
    log_level: str = log_level_setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorConfig(Config):
    """Settings of ``disagg operator``."""

    program: ClassVar[str] = "operator"

    namespace: str = setting("", "namespace to watch; empty: all")
    image: str = setting("disagg:0.1.0", "image of workers, routers and planners where the spec names none")
    image_pull_policy: str = setting("IfNotPresent", "pull policy of those pods")
    image_pull_secrets: str = setting(
        "", "Secrets to pull that image with, separated by commas; in the pods' namespace"
    )
    network_policies: bool = setting(False, "give every deployment NetworkPolicies")
    trusted_namespaces: str = setting("", "namespaces, separated by commas, that those let at metrics and drains")
    prometheus_url: str = setting("", "Prometheus that planners ask where the spec names none")
    resync_seconds: float = setting(60.0, "every object is reconciled at least this often", above=0)
    lease_namespace: str = setting("", "namespace of the leader lease; empty: the pod's own")
    lease_seconds: float = setting(15.0, "validity of the leader lease", above=1)
    lease: bool = setting(True, "hold a leader lease before acting")
    token_max_age_seconds: float = setting(
        30 * 86_400.0, "a deployment's token is replaced at this age; 0: only when it is asked for", low=0
    )
    token_step_seconds: float = setting(
        180.0, "between two steps of a rotation: kubelets show a changed Secret within two minutes", above=0
    )
    health_port: int = setting(ports.OPERATOR_HEALTH, "port of liveness and readiness", low=0, high=65535)
    metrics_port: int = setting(ports.OPERATOR_METRICS, "port of metrics", low=0, high=65535)
    event_age_limit_seconds: float = setting(600.0, "liveness fails after this long without a watch event", above=0)
    catalogue: str = setting("", "YAML file with further GPUs and models")
    log_level: str = log_level_setting()


CONFIGS: Final[tuple[type[Config], ...]] = (WorkerConfig, RouterConfig, PlannerConfig, OperatorConfig)
