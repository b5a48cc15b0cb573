"""From flags to what is simulated."""

from __future__ import annotations

import argparse
from dataclasses import replace

from disagg_cli.catalogues import read_catalogue
from disagg_cli.errors import UsageError
from disagg_cli.instances import build_instance, build_time_model
from disagg_cli.simulation.idle import refuse_idle
from disagg_contract.config import Admission, BatchPolicy, QueueOrder, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig, FirstToken
from disagg_engine.catalogue import Catalogue
from disagg_engine.errors import EngineError
from disagg_engine.instance import link_bandwidth
from disagg_simulator.deployment import INSTANT, Deployment, Group, Ledger, Link, Mode, Sharing, Transfer
from disagg_simulator.errors import SimulatorError

DEFAULT_BLOCK_TOKENS = 16


_COUNTS = {
    Mode.COLOCATED: ("replicas",),
    Mode.DISAGGREGATED: ("prefill", "decode"),
    Mode.PREFILL_ONLY: ("prefill", "replicas"),
    Mode.DECODE_ONLY: ("decode", "replicas"),
}
"""The flags that say how many instances a mode has; two for a mode of one role are the same thing twice."""

_SHAPE = ("gpu", "tensor", "pipeline", "data_parallel", "expert_parallel")
"""What a role's instances may have of their own, in flags such as --decode-gpu."""


def mode_of(arguments: argparse.Namespace) -> Mode:
    """The mode that was asked for, or that the flags of the roles mean. Raises `UsageError` where they differ."""
    given = [flag for flag in ("replicas", "prefill", "decode") if getattr(arguments, flag) is not None]
    own = {role: _own_flags(arguments, role) for role in ("prefill", "decode")}
    named = {role for role, flags in own.items() if flags or role in given}
    if arguments.mode is not None:
        mode = Mode(arguments.mode)
    elif not named:
        mode = Mode.COLOCATED
    elif len(named) > 1 or not named & set(given):  # what sets one role apart speaks of two
        mode = Mode.DISAGGREGATED
    else:
        mode = Mode.PREFILL_ONLY if "prefill" in named else Mode.DECODE_ONLY
    takes = _COUNTS[mode]
    for role, flags in own.items():
        if flags and role not in takes and not getattr(arguments, "ratios", None):  # a sweep's ratios pick from them
            raise UsageError(f"{flags[0]} does not go with --mode {mode}, which has no {role} instances")
    for flag in given:
        if flag not in takes:
            wanted = " and ".join(f"--{name}" for name in takes)
            raise UsageError(f"--{flag} does not go with --mode {mode}, which takes {wanted}")
    if mode is not Mode.DISAGGREGATED and len(given) > 1:
        raise UsageError(f"{' and '.join(f'--{flag}' for flag in given)} say the same for --mode {mode}; give one")
    return mode


def _own_flags(arguments: argparse.Namespace, role: str) -> list[str]:
    """The flags given that set this role's instances apart."""
    given = (f"{role}_{name}" for name in _SHAPE if getattr(arguments, f"{role}_{name}") is not None)
    return [f"--{name.replace('_', '-')}" for name in given]


def build_deployment(arguments: argparse.Namespace) -> Deployment:
    """The deployment of a command line. Raises `UsageError`, also for a model that does not fit."""
    mode = mode_of(arguments)
    refuse_idle(arguments, mode)
    mixed = bool(getattr(arguments, "ratios", None))  # of a sweep: then this is about its colocated cells
    if mode is not Mode.COLOCATED and (arguments.scheduler or arguments.token_budget) and not mixed:
        flag = "--scheduler" if arguments.scheduler else "--token-budget"
        raise UsageError(f"{flag} is about colocated instances; the mode is {mode}")
    if arguments.token_budget and arguments.scheduler != BatchPolicy.CHUNKED:
        raise UsageError(f"--token-budget is for --scheduler {BatchPolicy.CHUNKED}")
    catalogue = read_catalogue(arguments.catalogue)
    groups: dict[Role, tuple[Group, ...]] = {}
    try:
        if mode is Mode.COLOCATED:
            groups[Role.WORKER] = (_group(arguments, catalogue, Role.WORKER, arguments.replicas),)
        if mode in (Mode.DISAGGREGATED, Mode.PREFILL_ONLY):
            prefill = arguments.prefill or arguments.replicas
            groups[Role.PREFILL] = (_group(arguments, catalogue, Role.PREFILL, prefill),)
        if mode in (Mode.DISAGGREGATED, Mode.DECODE_ONLY):
            decode = arguments.decode or arguments.replicas
            groups[Role.DECODE] = (_group(arguments, catalogue, Role.DECODE, decode),)
        for group in (group for role in groups.values() for group in role):
            _ = group.instance.kv_capacity_tokens()  # the model has to fit, whatever room is asked for
        return Deployment(
            mode=mode,
            prefill=groups.get(Role.PREFILL, ()),
            decode=groups.get(Role.DECODE, ()),
            workers=groups.get(Role.WORKER, ()),
            link=_link(arguments, catalogue, groups) if mode is Mode.DISAGGREGATED else INSTANT,
            transfer=Transfer(arguments.transfer),
            first_token=FirstToken.PREFILL if arguments.first_token == "prefill" else FirstToken.LOGITS,
            routing=RoutingPolicy(arguments.routing),
            overlap_weight=arguments.overlap_weight,
        )
    except (EngineError, SimulatorError) as error:
        raise UsageError(str(error)) from None


def _group(arguments: argparse.Namespace, catalogue: Catalogue, role: Role, replicas: int | None) -> Group:
    own = argparse.Namespace(**vars(arguments))
    for name in _SHAPE:
        value = getattr(arguments, f"{role}_{name}", None)
        if value is not None:
            setattr(own, name, value)
    instance = build_instance(own, catalogue)
    batching = BatchingConfig(
        role=role,
        policy=BatchPolicy((role is Role.WORKER and arguments.scheduler) or BatchPolicy.PREFILL_FIRST),
        admission=Admission(arguments.admission),
        queue_order=QueueOrder(arguments.queue_order),
        speculation=None if role is Role.PREFILL else arguments.speculation,
        scheduling_overhead_seconds=arguments.scheduling_overhead or 0.0,
        pipeline=instance.pipeline,
        ranks=instance.data_parallel,
    )
    for field, value in (
        ("chunk_tokens", arguments.token_budget),
        ("max_batched_tokens", arguments.max_batched_tokens),
        ("fill_tokens", arguments.fill_tokens),
        ("max_sequences", arguments.max_sequences),
        ("prefill_burst", arguments.prefill_burst),
    ):
        if value is not None:
            batching = replace(batching, **{field: value})
    blocks = arguments.prefix_caching or arguments.block_tokens is not None
    return Group(
        instance=instance,
        time_model=build_time_model(own, instance),
        batching=batching,
        replicas=replicas or 1,
        kv_capacity_tokens=arguments.kv_capacity_tokens or 0,
        ledger=Ledger.BLOCKS if blocks else Ledger.COUNTING,
        startup_seconds=arguments.startup or 0.0,
        block_tokens=(arguments.block_tokens or DEFAULT_BLOCK_TOKENS) if blocks else 1,
    )


def _link(arguments: argparse.Namespace, catalogue: Catalogue, groups: dict[Role, tuple[Group, ...]]) -> Link:
    described = catalogue.link(arguments.link)
    source, target = (groups[role][0].instance.gpu for role in (Role.PREFILL, Role.DECODE))
    return Link(
        name=described.name,
        bytes_per_second=link_bandwidth(described, source=source, target=target),
        latency_seconds=described.latency_seconds,
        sharing=Sharing(arguments.link_sharing),
    )
