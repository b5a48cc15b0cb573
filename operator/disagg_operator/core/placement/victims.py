"""Whom the scheduler would evict for a pinned pod.

kube-scheduler preempts for a pod that fits nowhere: on a node where it would fit without the pods of lower priority, it
evicts as few of them as it must, the lowest first. A pinned pod has one such node. So room held by pods of lower
priority is no free room (nobody is evicted while there is a place without), but it can become one, and this module says
at whose cost. Pods that are not bound hold no node that could be taken from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disagg_operator.core.placement.request import GangRequest
from disagg_operator.core.placement.snapshot import NodeView, PodUse, Snapshot
from disagg_operator.core.quantity import PODS


@dataclass(frozen=True, slots=True)
class Eviction:
    """``uids`` of the pods that have to go, and the ``highest`` priority among them."""

    uids: tuple[str, ...]
    highest: int


def preemptible(request: GangRequest, snapshot: Snapshot) -> tuple[PodUse, ...]:
    """Bound pods of lower priority than every pod of a gang that may preempt."""
    if not all(pod.preempts for pod in request.pods):
        return ()
    lowest = min(pod.priority for pod in request.pods)
    return tuple(use for use in snapshot.uses if use.node and use.priority < lowest)


def evictions(
    request: GangRequest, nodes: Mapping[str, NodeView], snapshot: Snapshot, lower: Sequence[PodUse]
) -> Eviction:
    """The pods among ``lower`` that have to go for the gang on ``nodes``: as few as can be, the lowest first."""
    load: dict[str, dict[str, int]] = {}
    for pod in request.pods:
        here = load.setdefault(nodes[pod.uid].name, {})
        for resource, value in pod.requests.items():
            here[resource] = here.get(resource, 0) + value
        here[PODS] = here.get(PODS, 0) + 1
    by_node: dict[str, list[PodUse]] = {}
    for use in lower:
        if use.node in load:
            by_node.setdefault(use.node, []).append(use)
    gone: list[PodUse] = []
    for node in sorted(by_node):
        gone += _on_node(load[node], dict(snapshot.free[node]), by_node[node])
    return Eviction(tuple(sorted(use.uid for use in gone)), max((use.priority for use in gone), default=-(1 << 31)))


def _on_node(load: Mapping[str, int], free: dict[str, int], there: Sequence[PodUse]) -> list[PodUse]:
    """Everybody of lower priority leaves, and those that still fit beside the gang come back, the highest first."""
    amounts = {use.uid: {**dict(use.requests), PODS: 1} for use in there}
    for use in there:
        for resource, value in amounts[use.uid].items():
            free[resource] = free.get(resource, 0) + value
    for resource, value in load.items():
        free[resource] = free.get(resource, 0) - value
    gone: list[PodUse] = []
    for use in sorted(there, key=lambda use: (-use.priority, use.uid)):
        wants = amounts[use.uid]
        if all(free.get(resource, 0) >= value for resource, value in wants.items() if value and resource in load):
            for resource, value in wants.items():
                free[resource] = free.get(resource, 0) - value
        else:
            gone.append(use)
    return gone
