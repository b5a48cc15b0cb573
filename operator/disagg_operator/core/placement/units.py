"""Pods that share a node are one unit, and so one item of the packing.

Mostly a unit is a pod. Where stages are paired, a unit is the pods of one pipeline stage of prefill and decode: with n
prefill and m decode instances there are min(n, m) partnerships, and the instances are dealt to them in turn. An
instance that comes later joins partners that have nodes already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagg_contract.labels import Role
from disagg_operator.core.placement.request import GangRequest, Present
from disagg_operator.core.placement.snapshot import PodDemand

PAIRED = (Role.PREFILL.value, Role.DECODE.value)


@dataclass(frozen=True, slots=True)
class Unit:
    """Pods for one node, by their place in the request. ``only``: names of the nodes that may take them, if limited."""

    pods: tuple[int, ...]
    only: frozenset[str] | None = None


def units(request: GangRequest, *, paired: bool) -> tuple[Unit, ...]:
    """The units of a gang in the order of its pods."""
    if not paired:
        return tuple(Unit((index,)) for index in range(len(request.pods)))
    instances = {role: _instances(request.pods, role) for role in PAIRED}
    partnerships = min(len(found) for found in instances.values())
    if not partnerships:
        return tuple(_join(index, pod, request) for index, pod in enumerate(request.pods))
    shared: dict[tuple[int, int, int], list[int]] = {}
    for found in instances.values():
        for number, pods in enumerate(found.values()):
            for (stage, rank), index in _seats(request.pods, pods).items():
                shared.setdefault((number % partnerships, stage, rank), []).append(index)
    others = [index for index, pod in enumerate(request.pods) if pod.role not in PAIRED]
    groups = [*shared.values(), *([index] for index in others)]
    return tuple(Unit(tuple(sorted(group))) for group in sorted(groups, key=min))


def _instances(pods: Sequence[PodDemand], role: str) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, pod in enumerate(pods):
        if pod.role == role:
            found.setdefault(pod.owner, []).append(index)
    return found


def _seats(pods: Sequence[PodDemand], members: Sequence[int]) -> dict[tuple[int, int], int]:
    """Pods of an instance by stage and by their number within it."""
    seats: dict[tuple[int, int], int] = {}
    ranks: dict[int, int] = {}
    for index in members:
        stage = pods[index].stage
        seats[stage, ranks.get(stage, 0)] = index
        ranks[stage] = ranks.get(stage, 0) + 1
    return seats


def _join(index: int, pod: PodDemand, request: GangRequest) -> Unit:
    """A pod whose partners are placed goes to one of their nodes; one that has no partners is free."""
    partners = [seen for seen in request.present if _partner(pod, seen)]
    if not partners:
        return Unit((index,))
    return Unit((index,), frozenset(seen.node for seen in partners))


def _partner(pod: PodDemand, seen: Present) -> bool:
    return pod.role in PAIRED and seen.role in PAIRED and seen.role != pod.role and seen.stage == pod.stage
