"""What the instances did: how busy they were, how full their KV, what they cost.

Utilisation is the time that the first pipeline stage of an instance worked, over the time the instance existed.
Occupancy is KV in use over KV room, weighted by time. A GPU draws its full power while its instance works and the idle
share of it otherwise, and is paid for as long as its instance exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np

from disagg_contract.labels import Role
from disagg_engine.instance import Instance
from disagg_simulator.deployment import Ledger
from disagg_simulator.recording import InstanceRecord, Recording
from disagg_simulator.statistics import Floats

POINTS = 60
"""Intervals that the occupancy over time is told in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Share of KV room in use: mean and highest of the run, and the mean of each of `POINTS` equal intervals."""

    interval_seconds: float
    mean: float
    max: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """Usage of the instances of one role. None: nothing to tell it from."""

    role: str
    instances: int
    gpus: int
    utilisation: float | None
    iterations: int
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    prefix_hit_rate: float | None
    kv_capacity_tokens: int
    kv_occupancy: Occupancy | None


def life_seconds(instance: InstanceRecord, end_seconds: float) -> float:
    """How long the instance existed until the run ended."""
    stopped = end_seconds if isnan(instance.stopped_seconds) else instance.stopped_seconds
    return max(0.0, stopped - instance.started_seconds)


def gpu_seconds(recording: Recording) -> float:
    """GPUs of all instances, each for as long as it existed."""
    return sum(instance.gpus * life_seconds(instance, recording.end_seconds) for instance in recording.instances)


def group_usage(recording: Recording) -> tuple[GroupUsage, ...]:
    """The usage of each role that has instances, in the order they were recorded."""
    roles = list(dict.fromkeys(instance.role for instance in recording.instances))
    return tuple(
        _usage(role.value, [instance for instance in recording.instances if instance.role is role], recording)
        for role in roles
    )


def _usage(role: str, instances: Sequence[InstanceRecord], recording: Recording) -> GroupUsage:
    life = sum(life_seconds(instance, recording.end_seconds) for instance in instances)
    reused = any(group.role.value == role and group.ledger is Ledger.BLOCKS for group in recording.deployment.groups)
    queried = sum(instance.prefix_queried_tokens for instance in instances) if reused else 0
    return GroupUsage(
        role=role,
        instances=len(instances),
        gpus=sum(instance.gpus for instance in instances),
        utilisation=sum(instance.busy_seconds for instance in instances) / life if life > 0 else None,
        iterations=sum(instance.iterations for instance in instances),
        prompt_tokens=sum(instance.prompt_tokens for instance in instances),
        output_tokens=sum(instance.output_tokens for instance in instances),
        preemptions=sum(instance.preemptions for instance in instances),
        prefix_hit_rate=sum(instance.prefix_hit_tokens for instance in instances) / queried if queried else None,
        kv_capacity_tokens=sum(instance.capacity_tokens for instance in instances),
        kv_occupancy=_occupancy(instances, recording.end_seconds),
    )


def _occupancy(instances: Sequence[InstanceRecord], end_seconds: float) -> Occupancy | None:
    room = sum(instance.capacity_tokens for instance in instances)
    recorded = [instance for instance in instances if instance.series_seconds]
    if not recorded or not room or end_seconds <= 0:
        return None
    edges = np.linspace(0.0, end_seconds, POINTS + 1)
    means = np.zeros(POINTS)
    changes: list[Floats] = []
    for instance in recorded:
        times = np.frombuffer(instance.series_seconds, dtype=np.float64)
        tokens = np.frombuffer(instance.series_kv_tokens, dtype=np.int64).astype(np.float64)
        means += _interval_means(times, tokens, edges)
        changes.append(np.column_stack((times, np.diff(tokens, prepend=0.0))))
    together = np.concatenate(changes)
    together = together[np.argsort(together[:, 0], kind="stable")]
    settled = np.append(np.diff(together[:, 0]) > 0, True)
    return Occupancy(
        interval_seconds=end_seconds / POINTS,
        mean=float(means.mean()) / room,
        max=float(np.cumsum(together[:, 1])[settled].max()) / room,
        shares=tuple((means / room).tolist()),
    )


def _interval_means(times: Floats, values: Floats, edges: Floats) -> Floats:
    """Mean of a step function (0 before its first entry) over each interval between neighbouring edges."""
    steps = np.diff(times, append=max(float(edges[-1]), float(times[-1])))
    area = np.concatenate(([0.0], np.cumsum(values * steps)))
    index = np.searchsorted(times, edges, side="right") - 1
    inside = np.clip(index, 0, None)
    until = np.where(index < 0, 0.0, area[inside] + values[inside] * (edges - times[inside]))
    means: Floats = np.diff(until) / np.diff(edges)
    return means


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the run took: dollars and joules of all GPUs; None where a GPU's price or power is not known."""

    dollars: float | None
    joules: float | None


def cost(recording: Recording) -> Cost:
    """The cost of a recording, by the price and power of the catalogue."""
    dollars: float | None = 0.0
    joules: float | None = 0.0
    for record, instance in zip(recording.instances, _instances(recording), strict=True):
        life = life_seconds(record, recording.end_seconds)
        busy = min(1.0, record.busy_seconds / life) if life > 0 else 0.0
        price, power = instance.dollars_per_hour, instance.power_watts(busy)
        dollars = None if dollars is None or price is None else dollars + price * life / 3600
        joules = None if joules is None or power is None else joules + power * life
    known = bool(recording.instances)
    return Cost(dollars=dollars if known else None, joules=joules if known else None)


def _instances(recording: Recording) -> list[Instance]:
    """What each recorded instance is: groups of a role come one after another, and a fleet grows at the last one."""
    kinds: dict[Role, list[Instance]] = {}
    for group in recording.deployment.groups:
        kinds.setdefault(group.role, []).extend([group.instance] * group.replicas)
    seen = dict.fromkeys(kinds, 0)
    instances = []
    for record in recording.instances:
        same = kinds[record.role]
        instances.append(same[min(seen[record.role], len(same) - 1)])
        seen[record.role] += 1
    return instances
