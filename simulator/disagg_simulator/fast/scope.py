"""What the fast lane can run. Whatever it does not know is not its own: unknown settings rule it out by themselves.

Each value is compared with a copy whose known fields are the same and whose others have their defaults, so a field that
is added elsewhere and used makes the cluster lane run.
"""

from __future__ import annotations

from disagg_contract.choices import Admission, BatchPolicy, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig, FirstToken
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Ledger, Mode, Transfer
from disagg_simulator.options import Options

MOST_REQUESTS = 1 << 31
"""Indices and loads share whole numbers with other counts (`server.INDEX_BITS`)."""


def applies(deployment: Deployment, requests: Columns, options: Options) -> bool:
    """Whether the fast lane can run this and gives what the cluster lane gives."""
    return reason_not(deployment, requests, options) is None


def reason_not(deployment: Deployment, requests: Columns, options: Options) -> str | None:
    """What rules the fast lane out, in words; None where it applies."""
    if options != Options(lane=options.lane, gaps=options.gaps):
        return "only gaps between tokens can be asked for: no series, faults, closed loop or early end"
    if requests.priorities is not None and len(set(requests.priorities)) > 1:
        return "requests have priorities"
    if len(requests) >= MOST_REQUESTS:
        return "too many requests"
    known = Deployment(
        mode=deployment.mode,
        prefill=deployment.prefill,
        decode=deployment.decode,
        workers=deployment.workers,
        link=deployment.link,
        transfer=Transfer.PULL,
        first_token=deployment.first_token,
        routing=deployment.routing,
        overlap_weight=deployment.overlap_weight,
    )
    if known != deployment:
        return "transfers are pushed, or something else is asked of the deployment"
    if deployment.routing not in (RoutingPolicy.ROUND_ROBIN, RoutingPolicy.LEAST_LOADED):
        return f"routing is {deployment.routing.value}"
    if len({group.block_tokens for group in deployment.groups}) > 1:
        return "groups have blocks of different sizes"
    pulled = deployment.mode in (Mode.DISAGGREGATED, Mode.DECODE_ONLY)
    if pulled and deployment.first_token is not FirstToken.PREFILL:
        return "the first token is the decode instance's"
    for group in deployment.groups:
        if (reason := _group(group)) is not None:
            return f"{group.role.value}: {reason}"
    return None


def _group(group: Group) -> str | None:
    known = Group(
        instance=group.instance,
        time_model=group.time_model,
        batching=group.batching,
        replicas=group.replicas,
        kv_capacity_tokens=group.kv_capacity_tokens,
        ledger=Ledger.COUNTING,
        block_tokens=group.block_tokens,
        startup_seconds=group.startup_seconds,
    )
    if known != group:
        return "the ledger has blocks with identities, or something else is asked of the group"
    batching = group.batching
    plain = BatchingConfig(
        role=batching.role,
        policy=batching.policy,
        admission=Admission.RESERVE,
        max_batched_tokens=batching.max_batched_tokens,
        fill_tokens=batching.fill_tokens,
        chunk_tokens=batching.chunk_tokens,
        max_sequences=batching.max_sequences,
        watermark=batching.watermark,
        pipeline=batching.pipeline,
    )
    if plain != batching:
        return "batching is not plain: admission reserve, first come first served, no burst limit, no speculation"
    if batching.pipeline > 1 and batching.role is Role.WORKER:
        return "a colocated instance has pipeline stages"
    if batching.policy is BatchPolicy.CHUNKED:
        if batching.role is Role.PREFILL:
            return "a prefill instance computes in chunks"
    elif batching.policy is not BatchPolicy.PREFILL_FIRST:
        return f"the policy is {batching.policy.value}"
    if batching.pipeline == 1 and group.time_model.decode_window(1, 1, 1) is None:
        return "the time model cannot tell successive decode iterations in closed form"
    return None
