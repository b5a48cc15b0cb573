"""From a recording to the figures that people compare.

Latency statistics are over requests that were answered in full, their mean being the mean of exactly that list. A time
to first token is the sum of queueing, prefill and transfer, all read off the same clock, so the means of the parts add
up to the mean of the whole. Attainment is over all requests that arrived: refused, lost and unfinished ones are misses.
Rates are per second from the first arrival to the end of the run.

Beyond capacity (`disagg_simulator.stability`) delays say how long the run was; those that kept growing are left out
then. Throughput keeps its meaning, and attainment and good requests/s are those of this very run.

`Result.to_json` is a contract: other programs read these names. Absent figures are null, never 0 or NaN.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

import numpy as np

from disagg_contract import __version__
from disagg_contract.config import BatchPolicy
from disagg_contract.labels import Role
from disagg_engine.batching.speculation import Speculation
from disagg_load.report import Attainment, Distribution, Slo
from disagg_simulator.deployment import Deployment, Group, Mode
from disagg_simulator.figures import Figures
from disagg_simulator.recording import Gaps, Outcome, Recording
from disagg_simulator.stability import Stability, assess, grows
from disagg_simulator.statistics import (
    Bools,
    Floats,
    a_second,
    distribution,
    share_interval,
    weighted_distribution,
)
from disagg_simulator.usage import Cost, GroupUsage, cost, gpu_seconds, group_usage

SCHEMA = "disagg.dev/simulation/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftParts:
    """What the time to first token consists of; see `disagg_simulator.recording`."""

    queueing: Distribution
    prefill: Distribution
    transfer: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a simulation, in seconds of its clock.

    `requests` = `completed` + `refused` + `failed` + `unfinished`. requests_over_context: those of them that pods would
    refuse, being longer than the model's context; they are served here. gpus: at the start. gpu_seconds: of all
    instances while they existed, also those that a planner added. changed: whether any came or went.
    attainment_interval: of both objectives, 95 %.
    """

    deployment: Deployment
    workload: str
    seed: int
    slo: Slo
    requests: int
    completed: int
    refused: int
    failed: int
    unfinished: int
    requests_over_context: int
    duration_seconds: float
    stability: Stability
    throughput_requests_per_second: float | None
    throughput_tokens_per_second: float | None
    good_requests: int
    good_requests_per_second: float | None
    input_tokens: int
    output_tokens: int
    transfer_tokens: int
    ttft_seconds: Distribution | None
    ttft_parts_seconds: TtftParts | None
    tpot_seconds: Distribution | None
    tbt_seconds: Distribution | None
    e2e_seconds: Distribution | None
    attainment: Attainment | None
    attainment_interval: tuple[float, float] | None
    gpus: int
    gpu_seconds: float
    changed: bool
    usage: tuple[GroupUsage, ...]
    cost: Cost

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""

        def per_gpu(value: float | None) -> float | None:
            return None if value is None else value / self.mean_gpus

        def per_good(value: float | None) -> float | None:
            return None if value is None or not self.good_requests else value / self.good_requests

        return {
            "schema": SCHEMA,
            "versions": {"disagg": __version__},
            "seed": self.seed,
            "workload": self.workload,
            "deployment": deployment_to_json(self.deployment),
            "first_token": self.deployment.first_token.value,
            "slo": asdict(self.slo),
            "requests": self.requests,
            "completed": self.completed,
            "refused": self.refused,
            "failed": self.failed,
            "unfinished": self.unfinished,
            "requests_over_context": self.requests_over_context,
            "duration_seconds": self.duration_seconds,
            "stable": self.stability.stable,
            "stability": {
                "offered_requests_per_second": self.stability.offered_requests_per_second,
                "load": self.stability.load,
                "capacity_requests_per_second": self.stability.capacity_requests_per_second,
            },
            "throughput_requests_per_second": self.throughput_requests_per_second,
            "throughput_tokens_per_second": self.throughput_tokens_per_second,
            "good_requests": self.good_requests,
            "good_requests_per_second": self.good_requests_per_second,
            "gpus": self.gpus,
            "mean_gpus": self.mean_gpus,
            "gpu_seconds": self.gpu_seconds,
            "throughput_requests_per_second_per_gpu": per_gpu(self.throughput_requests_per_second),
            "good_requests_per_second_per_gpu": per_gpu(self.good_requests_per_second),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "transfer_tokens": self.transfer_tokens,
            "ttft_seconds": _shown(self.ttft_seconds),
            "ttft_parts_seconds": _shown(self.ttft_parts_seconds),
            "tpot_seconds": _shown(self.tpot_seconds),
            "tbt_seconds": _shown(self.tbt_seconds),
            "e2e_seconds": _shown(self.e2e_seconds),
            "attainment": _shown(self.attainment),
            "attainment_interval": None if self.attainment_interval is None else list(self.attainment_interval),
            "groups": [asdict(group) for group in self.usage],
            "preemptions": sum(group.preemptions for group in self.usage),
            "prefix_hit_rate": self.prefix_hit_rate,
            "cost_dollars": self.cost.dollars,
            "cost_dollars_per_good_request": per_good(self.cost.dollars),
            "energy_joules": self.cost.joules,
            "energy_joules_per_good_request": per_good(self.cost.joules),
        }

    @property
    def mean_gpus(self) -> float:
        """GPUs that existed on the average: what figures a GPU are divided by."""
        if self.changed and self.duration_seconds > 0:
            return self.gpu_seconds / self.duration_seconds
        return self.gpus

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of prompt tokens found in a cache, over the groups that compute prompts; None without any caching."""
        rates = [group for group in self.usage if group.prefix_hit_rate is not None and group.role != "decode"]
        prompts = sum(group.prompt_tokens for group in rates)
        if not prompts:
            return rates[0].prefix_hit_rate if rates else None
        return sum(group.prompt_tokens * (group.prefix_hit_rate or 0.0) for group in rates) / prompts


def _shown(value: Distribution | TtftParts | Attainment | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def deployment_to_json(deployment: Deployment) -> dict[str, Any]:
    """What was simulated, with everything that changes a number."""
    described: dict[str, Any] = {
        "mode": deployment.mode.value,
        "model": deployment.groups[0].instance.model.name,
        "groups": [_group_to_json(group) for group in deployment.groups],
    }
    if deployment.mode is Mode.DISAGGREGATED:
        described["link"] = {
            "name": deployment.link.name,
            "bytes_per_second": _finite(deployment.link.bytes_per_second),
            "latency_seconds": deployment.link.latency_seconds,
            "sharing": deployment.link.sharing.value,
        }
        described["transfer"] = deployment.transfer.value
    described["routing"] = deployment.routing.value
    described["overlap_weight"] = deployment.overlap_weight
    return described


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _group_to_json(group: Group) -> dict[str, Any]:
    batching, instance = group.batching, group.instance
    return {
        "role": group.role.value,
        "replicas": group.replicas,
        "gpu": instance.gpu.name,
        "tensor": instance.tensor,
        "pipeline": instance.pipeline,
        "data_parallel": instance.data_parallel,
        "expert_parallel": instance.expert_parallel,
        "weights": instance.weight_precision.value,
        "kv": instance.kv_precision.value,
        "time_model": type(group.time_model).__name__.lower(),
        "scheduler": batching.policy.value,
        "token_budget": batching.chunk_tokens if batching.policy is BatchPolicy.CHUNKED else None,
        "max_batched_tokens": batching.max_batched_tokens,
        "fill_tokens": batching.fill_tokens if group.role is Role.PREFILL else None,
        "prefill_burst": batching.prefill_burst,
        "admission": batching.admission.value,
        "watermark": batching.watermark,
        "queue_order": batching.queue_order.value,
        "ageing_seconds_per_token": batching.ageing_seconds_per_token,
        "max_sequences": batching.max_sequences,
        "scheduling_overhead_seconds": batching.scheduling_overhead_seconds,
        "speculation": _speculation(batching.speculation),
        "kv_capacity_tokens": group.capacity_tokens,
        "ledger": group.ledger.value,
        "block_tokens": group.block_tokens,
        "startup_seconds": group.startup_seconds,
    }


def _speculation(speculation: Speculation | None) -> dict[str, Any] | None:
    if speculation is None:
        return None
    return {
        "draft_tokens": speculation.draft_tokens,
        "acceptance": speculation.acceptance,
        "draft_cost": speculation.draft_cost,
        "drawn": speculation.draw is not None,
    }


def build_result(recording: Recording, slo: Slo) -> Result:
    """The result of a recording."""
    figures = Figures.of(recording)
    completed = figures.completed
    met_ttft, met_tpot = figures.met(slo)
    good = met_ttft & met_tpot
    stability = judge(figures)
    duration = _duration(figures, recording)

    def shown(values: Floats) -> Distribution | None:
        chosen = values[completed]
        chosen = chosen[~np.isnan(chosen)]
        return None if stability.unstable and grows(chosen) else distribution(chosen)

    def per_second(count: int) -> float | None:
        return a_second(count, duration)

    ttft = shown(figures.ttft)
    output_tokens = int(figures.tokens.sum(dtype=np.int64))
    count = figures.arrival.size
    good_count = int(np.count_nonzero(good))
    return Result(
        deployment=recording.deployment,
        workload=recording.requests.name,
        seed=recording.seed,
        slo=slo,
        requests=count,
        completed=figures.count(Outcome.COMPLETED),
        refused=figures.count(Outcome.REFUSED),
        failed=figures.count(Outcome.FAILED),
        unfinished=figures.count(Outcome.UNFINISHED),
        requests_over_context=figures.over_context,
        duration_seconds=duration,
        stability=stability,
        throughput_requests_per_second=per_second(figures.count(Outcome.COMPLETED)),
        throughput_tokens_per_second=per_second(output_tokens),
        good_requests=good_count,
        good_requests_per_second=per_second(good_count),
        input_tokens=int(np.frombuffer(recording.requests.input_tokens, dtype=np.int32)[:count].sum(dtype=np.int64)),
        output_tokens=output_tokens,
        transfer_tokens=recording.transfer_tokens,
        ttft_seconds=ttft,
        ttft_parts_seconds=None if ttft is None else _parts(figures, completed),
        tpot_seconds=shown(figures.tpot),
        tbt_seconds=None if recording.gaps is None else _gaps(recording.gaps),
        e2e_seconds=shown(figures.finish - figures.arrival),
        attainment=_attainment(met_ttft, met_tpot) if count else None,
        attainment_interval=share_interval(good) if count else None,
        gpus=recording.deployment.gpus,
        gpu_seconds=gpu_seconds(recording),
        changed=any(each.started_seconds > 0 or not isnan(each.stopped_seconds) for each in recording.instances),
        usage=group_usage(recording),
        cost=cost(recording),
    )


def judge(figures: Figures) -> Stability:
    """Whether the requests that were let in were kept up with."""
    let_in = (figures.outcome != int(Outcome.REFUSED)) & (figures.outcome != int(Outcome.FAILED))
    return assess(figures.arrival[let_in], figures.finish[let_in])


def _duration(figures: Figures, recording: Recording) -> float:
    """From the first arrival to the last answer, or to the end of the run where something is unfinished."""
    if not figures.arrival.size:
        return 0.0
    if figures.count(Outcome.UNFINISHED) or np.isnan(figures.finish).all():
        return float(recording.end_seconds - figures.arrival[0])
    return float(np.nanmax(figures.finish) - figures.arrival[0])


def _parts(figures: Figures, completed: Bools) -> TtftParts | None:
    columns = [column[completed] for column in (figures.queueing, figures.prefill, figures.transfer)]
    if any(np.isnan(column).any() for column in columns):
        return None
    queueing, prefill, transfer = (distribution(column) for column in columns)
    if queueing is None or prefill is None or transfer is None:
        return None
    return TtftParts(queueing=queueing, prefill=prefill, transfer=transfer)


def _gaps(gaps: Gaps) -> Distribution | None:
    return weighted_distribution(
        np.frombuffer(gaps.seconds, dtype=np.float64), np.frombuffer(gaps.count, dtype=np.int64)
    )


def _attainment(ttft: Bools, tpot: Bools) -> Attainment:
    return Attainment(ttft=float(ttft.mean()), tpot=float(tpot.mean()), both=float((ttft & tpot).mean()))
