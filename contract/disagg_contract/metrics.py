"""Names, labels and buckets of every metric.

Exporters build their series from these constants and queries are written with them, so that a query cannot ask for a
name nobody exports. Base units everywhere: seconds, bytes, tokens. ``Metric.name`` is the exposed name without the
suffix that a kind adds (``_total`` for counters, ``_bucket``/``_sum``/``_count`` for histograms).

Every series exists, at 0, before the first request: a rate over a series that only appears with its first increment
loses that increment. That is why label values are closed sets, listed here.

Latencies are in the engine's seconds: with a time scale other than 1 a client's watch runs slower than the engine's
clock, and the SLO is about the engine's.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from disagg_contract.labels import Role


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family: exposed name, kind, help, label names and, for histograms, upper bucket bounds."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> str:
        """Name to query: counters carry ``_total``."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    @property
    def bucket(self) -> str:
        return f"{self.name}_bucket"

    @property
    def sum(self) -> str:
        return f"{self.name}_sum"

    @property
    def count(self) -> str:
        return f"{self.name}_count"


class Outcome(StrEnum):
    """How a request ended. Sums over outcomes plus those in flight equal the requests started."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The client went away."""
    REJECTED = "rejected"
    """Refused before any work: bad input or unknown model."""
    UNAVAILABLE = "unavailable"
    """Refused because no worker could take it."""
    FAILED = "failed"
    """Accepted, then ended in an error."""


class SloMet(StrEnum):
    """Which SLOs a completed request met; joint attainment cannot be had from two histograms."""

    BOTH = "both"
    TTFT = "ttft"
    """The TTFT alone."""
    TPOT = "tpot"
    """The TPOT alone."""
    NEITHER = "neither"


class Leg(StrEnum):
    """A half of a disaggregated request, or the only leg of a colocated one."""

    PREFILL = "prefill"
    DECODE = "decode"


TTFT_BUCKETS: Final = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 4.0,
    5.0, 7.5, 10.0, 15.0, 30.0, 60.0,
)  # fmt: skip
"""Seconds. Contains the TTFT SLO of every named workload: 0.125, 0.25, 0.4, 0.5, 2.5, 4 and 15 s."""
TPOT_BUCKETS: Final = (
    0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25,
    0.3, 0.5, 1.0, 2.5,
)  # fmt: skip
"""Seconds. Contains the TPOT SLO of every named workload: 0.01, 0.025, 0.035, 0.04, 0.1, 0.15, 0.2 and 0.25 s."""
TOKEN_BUCKETS: Final = (
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0,
    65536.0, 131072.0,
)  # fmt: skip
DURATION_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""Seconds, for whole requests, transfers, reconciles and forecasts."""
LAG_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds by which the wall clock lags behind the engine's."""

MODEL: Final = "model"
"""Served model name; the label of every request metric."""
OUTCOME: Final = "outcome"
SLO: Final = "slo"
ROLE: Final = "role"
LEG: Final = "leg"
REASON: Final = "reason"

# Label names that scraping adds (the chart's Prometheus and the pod monitors relabel to exactly these).
SCRAPE_NAMESPACE: Final = "namespace"
SCRAPE_POD: Final = "pod"
SCRAPE_DEPLOYMENT: Final = "disagg_deployment"
SCRAPE_ROLE: Final = "disagg_role"

C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# Router.
ROUTER_REQUESTS: Final = Metric("disagg_router_requests", C, "Requests ended, by outcome.", (MODEL, OUTCOME))
ROUTER_STARTED: Final = Metric("disagg_router_requests_started", C, "Requests whose headers were read.", (MODEL,))
ROUTER_IN_FLIGHT: Final = Metric("disagg_router_requests_in_flight", G, "Requests being served.", (MODEL,))
ROUTER_QUEUED: Final = Metric("disagg_router_requests_queued", G, "Requests that wait for a worker.", (MODEL,))
ROUTER_TTFT: Final = Metric(
    "disagg_router_ttft_seconds", H, "Time from request to first token, engine seconds.", (MODEL,), TTFT_BUCKETS
)
ROUTER_TPOT: Final = Metric(
    "disagg_router_tpot_seconds",
    H,
    "Time per output token after the first, averaged over a request.",
    (MODEL,),
    TPOT_BUCKETS,
)
ROUTER_DURATION: Final = Metric(
    "disagg_router_request_duration_seconds", H, "Whole request, engine seconds.", (MODEL,), DURATION_BUCKETS
)
ROUTER_INPUT_TOKENS: Final = Metric(
    "disagg_router_input_tokens", H, "Prompt tokens of a completed request.", (MODEL,), TOKEN_BUCKETS
)
ROUTER_OUTPUT_TOKENS: Final = Metric(
    "disagg_router_output_tokens", H, "Generated tokens of a completed request.", (MODEL,), TOKEN_BUCKETS
)
ROUTER_CACHED_TOKENS: Final = Metric(
    "disagg_router_cached_tokens", C, "Prompt tokens that a worker's prefix cache supplied.", (MODEL,)
)
ROUTER_SLO: Final = Metric("disagg_router_slo_requests", C, "Completed requests by the SLOs they met.", (MODEL, SLO))
ROUTER_LEG_ERRORS: Final = Metric("disagg_router_leg_errors", C, "Legs that failed on a worker.", (MODEL, LEG))
ROUTER_RETRIES: Final = Metric("disagg_router_retries", C, "Legs tried again on another worker.", (MODEL, LEG))
ROUTER_WORKERS: Final = Metric("disagg_router_workers", G, "Workers that may be chosen.", (ROLE,))
ROUTER_REFUSED: Final = Metric(
    "disagg_router_workers_refused", C, "Workers refused at registration, by what did not agree.", (REASON,)
)
ROUTER_CHOICE: Final = Metric(
    "disagg_router_choice_seconds", H, "Time to choose workers for a request, wall seconds.", (), LAG_BUCKETS
)

# Worker.
WORKER_REQUESTS: Final = Metric("disagg_worker_requests", C, "Requests ended, by outcome.", (MODEL, OUTCOME))
WORKER_STARTED: Final = Metric("disagg_worker_requests_started", C, "Requests accepted or refused.", (MODEL,))
WORKER_RUNNING: Final = Metric("disagg_worker_requests_running", G, "Sequences in the batch.", (MODEL,))
WORKER_WAITING: Final = Metric("disagg_worker_requests_waiting", G, "Sequences waiting for admission.", (MODEL,))
WORKER_WAITING_TOKENS: Final = Metric("disagg_worker_waiting_tokens", G, "Prompt tokens not yet prefilled.", (MODEL,))
WORKER_TTFT: Final = Metric("disagg_worker_ttft_seconds", H, "Arrival to first token here.", (MODEL,), TTFT_BUCKETS)
WORKER_TPOT: Final = Metric("disagg_worker_tpot_seconds", H, "Time per output token here.", (MODEL,), TPOT_BUCKETS)
WORKER_QUEUE: Final = Metric("disagg_worker_queue_seconds", H, "Arrival to first iteration.", (MODEL,), TTFT_BUCKETS)
WORKER_PREFILL: Final = Metric(
    "disagg_worker_prefill_seconds",
    H,
    "First iteration to the end of the prompt, without queueing.",
    (MODEL,),
    TTFT_BUCKETS,
)
WORKER_TRANSFER: Final = Metric(
    "disagg_worker_kv_transfer_seconds", H, "Pull of a prompt's KV, queueing included.", (MODEL,), TTFT_BUCKETS
)
WORKER_TRANSFER_BYTES: Final = Metric("disagg_worker_kv_transfer_bytes", C, "Modelled KV bytes pulled.", (MODEL,))
WORKER_TRANSFER_FAILURES: Final = Metric(
    "disagg_worker_kv_transfer_failures", C, "Pulls that failed; the prompt was prefilled here instead.", (MODEL,)
)
WORKER_PINNED_BLOCKS: Final = Metric(
    "disagg_worker_kv_pinned_blocks", G, "Blocks held for decode workers that have not pulled them.", (MODEL,)
)
WORKER_LEASES_EXPIRED: Final = Metric("disagg_worker_kv_leases_expired", C, "Pins freed by silence.", (MODEL,))
WORKER_PROMPT_TOKENS: Final = Metric("disagg_worker_prompt_tokens", C, "Prompt tokens prefilled here.", (MODEL,))
WORKER_CACHED_TOKENS: Final = Metric("disagg_worker_cached_tokens", C, "Prompt tokens found in cache.", (MODEL,))
WORKER_GENERATED_TOKENS: Final = Metric("disagg_worker_generated_tokens", C, "Tokens generated here.", (MODEL,))
WORKER_PREEMPTIONS: Final = Metric("disagg_worker_preemptions", C, "Sequences put back for recomputation.", (MODEL,))
WORKER_ITERATIONS: Final = Metric("disagg_worker_iterations", C, "Iterations of the batching loop.", (MODEL,))
WORKER_BUSY: Final = Metric("disagg_worker_busy_seconds", C, "Engine seconds spent in iterations.", (MODEL,))
WORKER_KV_USAGE: Final = Metric("disagg_worker_kv_usage_ratio", G, "KV room in use, 0 to 1.", (MODEL,))
WORKER_KV_TOKENS: Final = Metric("disagg_worker_kv_capacity_tokens", G, "KV room in tokens.", (MODEL,))
WORKER_LAG: Final = Metric(
    "disagg_worker_clock_lag_seconds",
    H,
    "Wall clock behind the engine's at the end of an iteration.",
    (MODEL,),
    LAG_BUCKETS,
)
WORKER_LATE: Final = Metric(
    "disagg_worker_late_iterations", C, "Iterations whose lag passed a fifth of a step: such a run is void.", (MODEL,)
)
WORKER_DRAINING: Final = Metric("disagg_worker_draining", G, "1 while the worker takes nothing new.", (MODEL,))
WORKER_READY: Final = Metric("disagg_worker_ready", G, "1 once the weights are loaded.", (MODEL,))

# vLLM's own names, exported beside ours so that tools written for vLLM work unchanged. One label: model_name.
VLLM_MODEL: Final = "model_name"
VLLM_RUNNING: Final = Metric("vllm:num_requests_running", G, "Sequences in the batch.", (VLLM_MODEL,))
VLLM_WAITING: Final = Metric("vllm:num_requests_waiting", G, "Sequences waiting.", (VLLM_MODEL,))
VLLM_KV_USAGE: Final = Metric("vllm:kv_cache_usage_perc", G, "KV room in use, 0 to 1.", (VLLM_MODEL,))
VLLM_PROMPT_TOKENS: Final = Metric("vllm:prompt_tokens", C, "Prompt tokens prefilled.", (VLLM_MODEL,))
VLLM_GENERATION_TOKENS: Final = Metric("vllm:generation_tokens", C, "Tokens generated.", (VLLM_MODEL,))
VLLM_TTFT: Final = Metric("vllm:time_to_first_token_seconds", H, "Time to first token.", (VLLM_MODEL,), TTFT_BUCKETS)
VLLM_TPOT: Final = Metric(
    "vllm:request_time_per_output_token_seconds", H, "Time per output token of a request.", (VLLM_MODEL,), TPOT_BUCKETS
)
VLLM_ITL: Final = Metric("vllm:inter_token_latency_seconds", H, "Gap between tokens.", (VLLM_MODEL,), TPOT_BUCKETS)
VLLM_E2E: Final = Metric("vllm:e2e_request_latency_seconds", H, "Whole request.", (VLLM_MODEL,), DURATION_BUCKETS)
VLLM_PREFIX_QUERIES: Final = Metric("vllm:prefix_cache_queries", C, "Prompt tokens looked up.", (VLLM_MODEL,))
VLLM_PREFIX_HITS: Final = Metric("vllm:prefix_cache_hits", C, "Prompt tokens found in cache.", (VLLM_MODEL,))
VLLM_PREEMPTIONS: Final = Metric("vllm:num_preemptions", C, "Preempted sequences.", (VLLM_MODEL,))
VLLM_SUCCESS: Final = Metric(
    "vllm:request_success", C, "Requests finished, by reason.", (VLLM_MODEL, "finished_reason")
)

# Planner.
PLANNER_DECISIONS: Final = Metric("disagg_planner_decisions", C, "Decisions, by what came of them.", ("result",))
PLANNER_WANTED: Final = Metric("disagg_planner_wanted_replicas", G, "Replicas the last decision asked for.", (ROLE,))
PLANNER_CURRENT: Final = Metric("disagg_planner_current_replicas", G, "Replicas the group had then.", (ROLE,))
PLANNER_OBSERVED_RATE: Final = Metric("disagg_planner_observed_requests_per_second", G, "Load of the last interval.")
PLANNER_FORECAST_RATE: Final = Metric("disagg_planner_forecast_requests_per_second", G, "Load expected next.")
PLANNER_OBSERVED_ISL: Final = Metric("disagg_planner_observed_input_tokens", G, "Mean prompt tokens observed.")
PLANNER_FORECAST_ISL: Final = Metric("disagg_planner_forecast_input_tokens", G, "Mean prompt tokens expected.")
PLANNER_OBSERVED_OSL: Final = Metric("disagg_planner_observed_output_tokens", G, "Mean generated tokens observed.")
PLANNER_FORECAST_OSL: Final = Metric("disagg_planner_forecast_output_tokens", G, "Mean generated tokens expected.")
PLANNER_OBSERVED_TTFT: Final = Metric("disagg_planner_observed_ttft_seconds", G, "Mean TTFT observed.")
PLANNER_OBSERVED_TPOT: Final = Metric("disagg_planner_observed_tpot_seconds", G, "Mean TPOT observed.")
PLANNER_CORRECTION: Final = Metric("disagg_planner_correction_ratio", G, "Observed over predicted latency.", ("phase",))
PLANNER_HOLDING: Final = Metric("disagg_planner_holding", G, "1 while metrics are missing and replicas are kept.")
PLANNER_SLO_TTFT: Final = Metric("disagg_planner_slo_ttft_seconds", G, "TTFT the deployment promises.")
PLANNER_SLO_TPOT: Final = Metric("disagg_planner_slo_tpot_seconds", G, "TPOT the deployment promises.")
PLANNER_RESULTS: Final = ("applied", "kept", "held", "deferred", "advised", "failed")
"""Values of label ``result``: written, nothing to do, no usable metrics, refused for now, advisory, error."""
PLANNER_PHASES: Final = ("prefill", "decode")

# Operator.
OPERATOR_RECONCILES: Final = Metric("disagg_operator_reconciles", C, "Reconciles, by result.", ("kind", "result"))
OPERATOR_RECONCILE: Final = Metric(
    "disagg_operator_reconcile_seconds", H, "One reconcile.", ("kind",), DURATION_BUCKETS
)
OPERATOR_QUEUE: Final = Metric("disagg_operator_queue_length", G, "Objects waiting to be reconciled.")
OPERATOR_PLACEMENTS: Final = Metric("disagg_operator_placements", C, "Gang placement attempts, by result.", ("result",))
OPERATOR_LAST_EVENT: Final = Metric("disagg_operator_last_event_age_seconds", G, "Age of the newest watch event.")
OPERATOR_REPLICAS: Final = Metric(
    "disagg_operator_group_replicas", G, "Instances of a group, by state.", ("namespace", "deployment", ROLE, "state")
)
OPERATOR_RESULTS: Final = ("ok", "conflict", "error")
OPERATOR_PLACEMENT_RESULTS: Final = ("placed", "no-room", "bind-timeout", "gang-terminated", "error")
OPERATOR_REPLICA_STATES: Final = ("desired", "current", "ready")

ALL: Final[tuple[Metric, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every metric above, in the order of the file."""
REFUSAL_REASONS: Final = ("role", "block_tokens", "tokenizer_digest", "template_digest", "hash_digest", "malformed")
"""Values of label ``reason`` of ROUTER_REFUSED: the field of WorkerInfo that is not what the other workers say."""
ROLES: Final = tuple(role.value for role in Role)
del C, G, H
